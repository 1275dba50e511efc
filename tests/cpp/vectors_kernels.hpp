// Compiled for each instruction set by foreach_isa.hpp: the arithmetic,
// comparisons and reductions of vectors.hpp, between arrays.

#define EK_PROBE(name, expression)                                                \
  template <typename S>                                                           \
  static void probe_##name(const S* pa, const S* pb, const S* pc, S* to) {        \
    [[maybe_unused]] const VectorOf<S> a = load(pa), b = load(pb), c = load(pc);  \
    store(to, (expression));                                                      \
  }
EK_PROBE(broadcast, broadcast(pa[0]))
EK_PROBE(add, a + b)
EK_PROBE(subtract, a - b)
EK_PROBE(multiply, a * b)
EK_PROBE(divide, a / b)
EK_PROBE(fma, fma(a, b, c))
EK_PROBE(maximum, maximum(a, b))
EK_PROBE(minimum, minimum(a, b))
EK_PROBE(absolute, absolute(a))
EK_PROBE(select, select(less(a, b), c, a))
EK_PROBE(sum, broadcast(sum(a)))
EK_PROBE(highest, broadcast(highest(a)))
EK_PROBE(round, round_to_integer(a))
EK_PROBE(scale, scale_by_power(a, b))
#undef EK_PROBE

template <typename S>
static uint32_t probe_lanes(const S* a, const S* b) {
  return lanes_at_least(load(a), load(b));
}

static inline Floats::Mask between_for(Floats, const int32_t* lowest, const int32_t* highest,
                                       int32_t x) {
  return between<Floats>(lowest, highest, x);
}
static inline Doubles::Mask between_for(Doubles, const int32_t* lowest, const int32_t* highest,
                                        int32_t x) {
  return between<Doubles>(lowest, highest, x);
}
template <typename S>
static void probe_between(const int32_t* lowest, const int32_t* highest, int32_t x, S* to) {
  const VectorOf<S> yes = broadcast(S(1)), no = broadcast(S(0));
  store(to, select(between_for(yes, lowest, highest, x), yes, no));
}

template <typename S>
static Operations<S> operations() {
  Operations<S> all;
  all.size = VectorOf<S>::size;
  all.broadcast = &probe_broadcast<S>;
  all.add = &probe_add<S>;
  all.subtract = &probe_subtract<S>;
  all.multiply = &probe_multiply<S>;
  all.divide = &probe_divide<S>;
  all.fma = &probe_fma<S>;
  all.maximum = &probe_maximum<S>;
  all.minimum = &probe_minimum<S>;
  all.absolute = &probe_absolute<S>;
  all.select = &probe_select<S>;
  all.sum = &probe_sum<S>;
  all.highest = &probe_highest<S>;
  all.lanes_at_least = &probe_lanes<S>;
  all.between = &probe_between<S>;
  return all;
}

static FloatOperations float_operations() { return {Floats::size, &probe_round<float>, &probe_scale<float>}; }

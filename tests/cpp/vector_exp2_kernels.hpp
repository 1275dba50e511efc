// Compiled for each instruction set by foreach_isa.hpp: exp2 of vectors.hpp, between arrays.

template <typename S>
static void probe_exp2(const S* a, S* to) {
  store(to, exp2(load(a)));
}
template <typename S>
static void probe_exp2_in_range(const S* a, S* to) {
  store(to, exp2_in_range(load(a)));
}
template <typename S>
static Powers<S> powers() {
  return {VectorOf<S>::size, &probe_exp2<S>, &probe_exp2_in_range<S>};
}

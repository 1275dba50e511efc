// Vectors of float64; part of vectors.hpp. Without AVX-512 they are written for the compiler to
// vectorise.

#if EK_ISA >= 2

struct Doubles {
  using Scalar = double;
  using Mask = __mmask8;
  static constexpr int size = 8;
  __m512d v;
};

static inline Doubles broadcast(double x) { return {_mm512_set1_pd(x)}; }
static inline Doubles load(const double* p) { return {_mm512_loadu_pd(p)}; }
static inline void store(double* p, Doubles a) { _mm512_storeu_pd(p, a.v); }
static inline Doubles operator+(Doubles a, Doubles b) { return {_mm512_add_pd(a.v, b.v)}; }
static inline Doubles operator-(Doubles a, Doubles b) { return {_mm512_sub_pd(a.v, b.v)}; }
static inline Doubles operator*(Doubles a, Doubles b) { return {_mm512_mul_pd(a.v, b.v)}; }
static inline Doubles operator/(Doubles a, Doubles b) { return {_mm512_div_pd(a.v, b.v)}; }
static inline Doubles fma(Doubles a, Doubles b, Doubles c) {
  return {_mm512_fmadd_pd(a.v, b.v, c.v)};
}
static inline Doubles maximum(Doubles a, Doubles b) { return {_mm512_max_pd(a.v, b.v)}; }
static inline Doubles minimum(Doubles a, Doubles b) { return {_mm512_min_pd(a.v, b.v)}; }
static inline Doubles absolute(Doubles a) { return {_mm512_abs_pd(a.v)}; }
static inline Doubles::Mask less(Doubles a, Doubles b) {
  return _mm512_cmp_pd_mask(a.v, b.v, _CMP_LT_OQ);
}
static inline uint32_t lanes_at_least(Doubles a, Doubles b) {
  return _mm512_cmp_pd_mask(a.v, b.v, _CMP_GE_OQ);
}
static inline uint32_t lanes_above(Doubles a, Doubles b) {
  return _mm512_cmp_pd_mask(a.v, b.v, _CMP_GT_OQ);
}
static inline Doubles select(Doubles::Mask m, Doubles yes, Doubles no) {
  return {_mm512_mask_blend_pd(m, no.v, yes.v)};
}
template <>
inline Doubles::Mask between<Doubles>(const int32_t* lowest, const int32_t* highest, int32_t x) {
  const __m256i at = _mm256_set1_epi32(x);
  return _mm256_cmple_epi32_mask(
             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lowest)), at) &
         _mm256_cmpge_epi32_mask(
             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(highest)), at);
}
static inline double sum(Doubles a) { return _mm512_reduce_add_pd(a.v); }
// The series of 2^f, whose rest is below 1e-17 for |f| <= 1/2; 0 below 2^-1075.
static inline Doubles exp2(Doubles x) {
  x = maximum(broadcast(-1080.0), x);
  const Doubles n = {
      _mm512_roundscale_pd(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  const Doubles f = x - n;
  Doubles p = broadcast(1.3691488853904124e-12);
  p = fma(p, f, broadcast(2.5678435993488196e-11));
  p = fma(p, f, broadcast(4.44553827187081e-10));
  p = fma(p, f, broadcast(7.054911620801121e-09));
  p = fma(p, f, broadcast(1.0178086009239696e-07));
  p = fma(p, f, broadcast(1.3215486790144305e-06));
  p = fma(p, f, broadcast(1.5252733804059838e-05));
  p = fma(p, f, broadcast(0.00015403530393381606));
  p = fma(p, f, broadcast(0.0013333558146428441));
  p = fma(p, f, broadcast(0.009618129107628477));
  p = fma(p, f, broadcast(0.055504108664821576));
  p = fma(p, f, broadcast(0.2402265069591007));
  p = fma(p, f, broadcast(0.6931471805599453));
  p = fma(p, f, broadcast(1.0));
  return {_mm512_scalef_pd(p.v, n.v)};
}

#else

struct Doubles {
  using Scalar = double;
  struct Mask {
    bool lane[8];
  };
  static constexpr int size = 8;
  double v[8];
};

#define EK_LANES(expression)                \
  Doubles r;                                \
  for (int i = 0; i < Doubles::size; ++i) { \
    r.v[i] = (expression);                  \
  }                                         \
  return r
static inline Doubles broadcast(double x) { EK_LANES(x); }
static inline Doubles load(const double* p) { EK_LANES(p[i]); }
static inline void store(double* p, Doubles a) { std::memcpy(p, a.v, sizeof a.v); }
static inline Doubles operator+(Doubles a, Doubles b) { EK_LANES(a.v[i] + b.v[i]); }
static inline Doubles operator-(Doubles a, Doubles b) { EK_LANES(a.v[i] - b.v[i]); }
static inline Doubles operator*(Doubles a, Doubles b) { EK_LANES(a.v[i] * b.v[i]); }
static inline Doubles operator/(Doubles a, Doubles b) { EK_LANES(a.v[i] / b.v[i]); }
static inline Doubles fma(Doubles a, Doubles b, Doubles c) { EK_LANES(a.v[i] * b.v[i] + c.v[i]); }
static inline Doubles maximum(Doubles a, Doubles b) { EK_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline Doubles minimum(Doubles a, Doubles b) { EK_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline Doubles absolute(Doubles a) { EK_LANES(std::fabs(a.v[i])); }
static inline Doubles::Mask less(Doubles a, Doubles b) {
  Doubles::Mask m;
  for (int i = 0; i < Doubles::size; ++i) {
    m.lane[i] = a.v[i] < b.v[i];
  }
  return m;
}
static inline uint32_t lanes_at_least(Doubles a, Doubles b) {
  uint32_t lanes = 0;
  for (int i = 0; i < Doubles::size; ++i) {
    lanes |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
  }
  return lanes;
}
static inline uint32_t lanes_above(Doubles a, Doubles b) {
  uint32_t lanes = 0;
  for (int i = 0; i < Doubles::size; ++i) {
    lanes |= static_cast<uint32_t>(a.v[i] > b.v[i]) << i;
  }
  return lanes;
}
static inline Doubles select(Doubles::Mask m, Doubles yes, Doubles no) {
  EK_LANES(m.lane[i] ? yes.v[i] : no.v[i]);
}
static inline double sum(Doubles a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
template <>
inline Doubles::Mask between<Doubles>(const int32_t* lowest, const int32_t* highest, int32_t x) {
  Doubles::Mask m;
  for (int i = 0; i < Doubles::size; ++i) {
    m.lane[i] = lowest[i] <= x && x <= highest[i];
  }
  return m;
}


// The series of 2^f, whose rest is below 1e-17 for |f| <= 1/2; 0 below 2^-1075.
static inline Doubles exp2(Doubles x) {
  constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves no bits behind the
  Doubles r;                                    // point, and an integer in the lowest ones
  for (int i = 0; i < Doubles::size; ++i) {
    const double above = x.v[i] < -1080.0 ? -1080.0 : x.v[i];
    const double bounded = above > 1030.0 ? 1030.0 : above;
    const double shifted = bounded + magic;
    const double f = bounded - (shifted - magic);
    double p = 1.3691488853904124e-12;
    p = p * f + 2.5678435993488196e-11;
    p = p * f + 4.44553827187081e-10;
    p = p * f + 7.054911620801121e-09;
    p = p * f + 1.0178086009239696e-07;
    p = p * f + 1.3215486790144305e-06;
    p = p * f + 1.5252733804059838e-05;
    p = p * f + 0.00015403530393381606;
    p = p * f + 0.0013333558146428441;
    p = p * f + 0.009618129107628477;
    p = p * f + 0.055504108664821576;
    p = p * f + 0.2402265069591007;
    p = p * f + 0.6931471805599453;
    p = p * f + 1.0;
    // In two steps, since one double holds only 2^-1022 to 2^1023. NaN stays, whatever its bits.
    const int64_t whole = static_cast<int64_t>(as_bits(shifted) - as_bits(magic));
    const int64_t half = whole >> 1;
    const auto power = [](int64_t n) EK_INLINE {
      return as_double(static_cast<uint64_t>(n + 1023) << 52);
    };
    r.v[i] = p * power(half) * power(whole - half);
  }
  return r;
}

#undef EK_LANES
#endif

static inline Doubles exp2_in_range(Doubles x) { return exp2(x); }

static inline Doubles tanh(Doubles a) {
  double lanes[Doubles::size];
  store(lanes, a);
  for (double& lane : lanes) {
    lane = std::tanh(lane);
  }
  return load(lanes);
}

static inline double highest(Doubles a) {
  double lanes[Doubles::size];
  store(lanes, a);
  double best = lanes[0];
  for (int i = 1; i < Doubles::size; ++i) {
    best = best > lanes[i] ? best : lanes[i];
  }
  return best;
}

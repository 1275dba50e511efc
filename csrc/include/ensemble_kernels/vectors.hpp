// Vectors of the instruction set EK_ISA (0 portable, 1 AVX2, 2 AVX-512, 3 with bfloat16 products).
// Included by foreach_isa.hpp inside a namespace for each.
//
// `Floats` has `Floats::size` lanes, `Doubles` serves float64 inputs. `VectorOf<T>` is the one that
// inputs of type T are computed in.

// Lanes where lowest <= x <= highest.
template <typename V>
typename V::Mask between(const int32_t* lowest, const int32_t* highest, int32_t x);

#if EK_ISA >= 2

struct Floats {
  using Scalar = float;
  using Mask = __mmask16;
  static constexpr int size = 16;
  __m512 v;
};

static inline Floats broadcast(float x) { return {_mm512_set1_ps(x)}; }
static inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline Floats load(const BFloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
static inline Floats load(const Float16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
static inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c
static inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b where either is NaN
static inline Floats maximum(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Floats minimum(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline Floats absolute(Floats a) { return {_mm512_abs_ps(a.v)}; }
static inline Floats::Mask less(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ);
}
// Bit i: lane i of a is at least b.
static inline uint32_t lanes_at_least(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
// Bit i: lane i of a is above b.
static inline uint32_t lanes_above(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
static inline Floats select(Floats::Mask m, Floats yes, Floats no) {
  return {_mm512_mask_blend_ps(m, no.v, yes.v)};
}
template <>
inline Floats::Mask between<Floats>(const int32_t* lowest, const int32_t* highest, int32_t x) {
  const __m512i at = _mm512_set1_epi32(x);
  return _mm512_cmple_epi32_mask(_mm512_loadu_si512(lowest), at) &
         _mm512_cmpge_epi32_mask(_mm512_loadu_si512(highest), at);
}
static inline float sum(Floats a) { return _mm512_reduce_add_ps(a.v); }
static inline Floats round_to_integer(Floats a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for an integer n, with gradual underflow.
static inline Floats scale_by_power(Floats a, Floats n) { return {_mm512_scalef_ps(a.v, n.v)}; }

#elif EK_ISA == 1

struct Floats {
  using Scalar = float;
  using Mask = __m256;
  static constexpr int size = 8;
  __m256 v;
};

static inline Floats broadcast(float x) { return {_mm256_set1_ps(x)}; }
static inline Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline Floats load(const BFloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
static inline Floats load(const Float16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline void store(float* p, Floats a) { _mm256_storeu_ps(p, a.v); }
static inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline Floats maximum(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline Floats minimum(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline Floats absolute(Floats a) {
  return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)};
}
static inline Floats::Mask less(Floats a, Floats b) {
  return _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ);
}
static inline uint32_t lanes_at_least(Floats a, Floats b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)));
}
static inline uint32_t lanes_above(Floats a, Floats b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)));
}
static inline Floats select(Floats::Mask m, Floats yes, Floats no) {
  return {_mm256_blendv_ps(no.v, yes.v, m)};
}
template <>
inline Floats::Mask between<Floats>(const int32_t* lowest, const int32_t* highest, int32_t x) {
  const __m256i at = _mm256_set1_epi32(x);
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lowest));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(highest));
  const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(low, at), _mm256_cmpgt_epi32(at, high));
  return _mm256_castsi256_ps(_mm256_xor_si256(outside, _mm256_set1_epi32(-1)));
}
static inline float sum(Floats a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline Floats round_to_integer(Floats a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// n from -252 to 254: in two steps, since one float holds only 2^-126 to 2^127.
static inline Floats scale_by_power(Floats a, Floats n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, power_of_two(half)),
                        power_of_two(_mm256_sub_epi32(whole, half)))};
}

#else

struct Floats {
  using Scalar = float;
  struct Mask {
    bool lane[8];
  };
  static constexpr int size = 8;
  float v[8];
};

#define EK_LANES(expression)               \
  Floats r;                                \
  for (int i = 0; i < Floats::size; ++i) { \
    r.v[i] = (expression);                 \
  }                                        \
  return r
static inline Floats broadcast(float x) { EK_LANES(x); }
template <typename T>
static inline Floats load(const T* p) { EK_LANES(widen(p[i])); }
static inline void store(float* p, Floats a) { std::memcpy(p, a.v, sizeof a.v); }
static inline Floats operator+(Floats a, Floats b) { EK_LANES(a.v[i] + b.v[i]); }
static inline Floats operator-(Floats a, Floats b) { EK_LANES(a.v[i] - b.v[i]); }
static inline Floats operator*(Floats a, Floats b) { EK_LANES(a.v[i] * b.v[i]); }
static inline Floats operator/(Floats a, Floats b) { EK_LANES(a.v[i] / b.v[i]); }
static inline Floats fma(Floats a, Floats b, Floats c) { EK_LANES(a.v[i] * b.v[i] + c.v[i]); }
static inline Floats maximum(Floats a, Floats b) { EK_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline Floats minimum(Floats a, Floats b) { EK_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline Floats absolute(Floats a) { EK_LANES(std::fabs(a.v[i])); }
static inline Floats::Mask less(Floats a, Floats b) {
  Floats::Mask m;
  for (int i = 0; i < Floats::size; ++i) {
    m.lane[i] = a.v[i] < b.v[i];
  }
  return m;
}
static inline uint32_t lanes_at_least(Floats a, Floats b) {
  uint32_t lanes = 0;
  for (int i = 0; i < Floats::size; ++i) {
    lanes |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
  }
  return lanes;
}
static inline uint32_t lanes_above(Floats a, Floats b) {
  uint32_t lanes = 0;
  for (int i = 0; i < Floats::size; ++i) {
    lanes |= static_cast<uint32_t>(a.v[i] > b.v[i]) << i;
  }
  return lanes;
}
static inline Floats select(Floats::Mask m, Floats yes, Floats no) {
  EK_LANES(m.lane[i] ? yes.v[i] : no.v[i]);
}
template <>
inline Floats::Mask between<Floats>(const int32_t* lowest, const int32_t* highest, int32_t x) {
  Floats::Mask m;
  for (int i = 0; i < Floats::size; ++i) {
    m.lane[i] = lowest[i] <= x && x <= highest[i];
  }
  return m;
}
static inline float sum(Floats a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
// Adding 1.5 * 2^23 leaves no bits behind the point. Right for |x| < 2^22.
static inline Floats round_to_integer(Floats a) {
  EK_LANES((a.v[i] + 12582912.0f) - 12582912.0f);
}
static inline Floats scale_by_power(Floats a, Floats n) {
  Floats r;
  for (int i = 0; i < Floats::size; ++i) {
    // Others, NaN among them, may fit no integer. They come from rows with NaN, which stays.
    const int whole = n.v[i] >= -252 && n.v[i] <= 254 ? static_cast<int>(n.v[i]) : 0;
    const int half = whole >> 1;
    const float low = as_float(static_cast<uint32_t>(half + 127) << 23);
    const float high = as_float(static_cast<uint32_t>(whole - half + 127) << 23);
    r.v[i] = a.v[i] * low * high;
  }
  return r;
}
#undef EK_LANES

#endif

// 2^x for x from -126 to 128, to 2 units in the last place; NaN stays. A polynomial on [-1/2, 1/2]
// by Remez's algorithm: its relative error is 1.9e-9.
static inline Floats exp2_in_range(Floats x) {
  const Floats n = round_to_integer(x);
  const Floats f = x - n;
  Floats p = broadcast(1.5345812e-4f);
  p = fma(p, f, broadcast(1.3399931e-3f));
  p = fma(p, f, broadcast(9.6184890e-3f));
  p = fma(p, f, broadcast(5.5503288e-2f));
  p = fma(p, f, broadcast(2.4022647e-1f));
  p = fma(p, f, broadcast(6.9314721e-1f));
  p = fma(p, f, broadcast(1.0f));
  return scale_by_power(p, n);
}

// 2^x for x up to 128: exactly 0 below -150 and for -inf.
static inline Floats exp2(Floats x) { return exp2_in_range(maximum(broadcast(-151.0f), x)); }

// The same to 2.6e-6, for what is rounded to bfloat16.
static inline Floats exp2_rough(Floats x) {
  x = maximum(broadcast(-151.0f), x);
  const Floats n = round_to_integer(x);
  const Floats f = x - n;
  Floats p = broadcast(9.5701020e-3f);
  p = fma(p, f, broadcast(5.5917860e-2f));
  p = fma(p, f, broadcast(2.4024745e-1f));
  p = fma(p, f, broadcast(6.9312181e-1f));
  p = fma(p, f, broadcast(9.9999926e-1f));
  return scale_by_power(p, n);
}

// To 3 units in the last place: the series near 0, where the other form would cancel.
static inline Floats tanh(Floats x) {
  const Floats one = broadcast(1.0f), square = x * x, size = absolute(x);
  Floats series = broadcast(-1382.0f / 155925);
  series = fma(series, square, broadcast(62.0f / 2835));
  series = fma(series, square, broadcast(-17.0f / 315));
  series = fma(series, square, broadcast(2.0f / 15));
  series = fma(series, square, broadcast(-1.0f / 3));
  series = fma(series * square, x, x);
  const Floats power = exp2(size * broadcast(-2.88539008f));  // e^(-2 |x|)
  const Floats away = (one - power) / (one + power);
  const Floats signed_away = select(less(x, broadcast(0.0f)), broadcast(0.0f) - away, away);
  return select(less(size, broadcast(0.25f)), series, signed_away);
}

static inline float highest(Floats a) {
  float lanes[Floats::size];
  store(lanes, a);
  float best = lanes[0];
  for (int i = 1; i < Floats::size; ++i) {
    best = best > lanes[i] ? best : lanes[i];
  }
  return best;
}

#include "ensemble_kernels/vectors_double.hpp"

template <typename T>
struct VectorFor {
  using Type = Floats;
};
template <>
struct VectorFor<double> {
  using Type = Doubles;
};
template <typename T>
using VectorOf = typename VectorFor<T>::Type;

// The first n lanes from memory, `fill` in the others.
template <typename T>
static inline VectorOf<T> load_some(const T* p, int64_t n, typename VectorOf<T>::Scalar fill) {
  typename VectorOf<T>::Scalar lanes[VectorOf<T>::size];
  for (int i = 0; i < VectorOf<T>::size; ++i) {
    lanes[i] = i < n ? widen(p[i]) : fill;
  }
  return load(lanes);
}

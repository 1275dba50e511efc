// Compiled for each instruction set by foreach_isa.hpp; see top_k_union.hpp.
#include "ensemble_kernels/gathers.hpp"

// What is read in order is asked for that much earlier, since a processor's own prefetch begins
// anew in each page. More than a page is no better.
constexpr int64_t bytes_ahead = 3072;

template <typename T>
static inline void prefetch_ahead(const T* p) {
  EK_PREFETCH(reinterpret_cast<const char*>(p) + bytes_ahead);
}

// The highest score, logit over temperature, of each `block` of `count` logits from `start` on.
// True where one is NaN.
template <typename T>
bool block_maxima(const ModelRow& row, int64_t start, int64_t count, int64_t block,
                  double temperature, double* maxima) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  constexpr uint32_t all = V::size == 16 ? 0xffffu : 0xffu;
  uint32_t numbers = all;
  bool broken = false;
  const T* data = static_cast<const T*>(row.data) + start * row.stride;
  for (int64_t i = 0; i < count; i += block) {
    V best = broadcast(-std::numeric_limits<Scalar>::infinity());
    for_each_logits<T>(row, start + i, count - i < block ? count - i : block,
                       [&](int64_t j, V logits, int64_t) EK_INLINE {
                         prefetch_ahead(data + (i + j) * row.stride);
                         best = maximum(logits, best);
                         numbers &= lanes_at_least(logits, logits);
                       });
    // A quotient rounds the same way everywhere, so that the highest logit has the highest one.
    const Scalar score = highest(best) / static_cast<Scalar>(temperature);
    broken = broken || score != score;
    *maxima++ = static_cast<double>(score);
  }
  return broken || numbers != all;
}

// Of `count` ids from `start` on, those that score at least `lowest` and not -inf. Their number.
template <typename T>
int64_t ids_at_least(const ModelRow& row, int64_t start, int64_t count, double temperature,
                     double lowest, int32_t* ids) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  const V divisor = broadcast(static_cast<Scalar>(temperature));
  const V limit = broadcast(static_cast<Scalar>(lowest));
  const V nothing = broadcast(-std::numeric_limits<Scalar>::infinity());
  int64_t found = 0;
  for_each_logits<T>(row, start, count, [&](int64_t i, V logits, int64_t) EK_INLINE {
    const V scores = logits / divisor;
    const uint32_t lanes = lanes_at_least(scores, limit) & lanes_above(scores, nothing);
    for (int lane = 0; lanes >> lane; ++lane) {
      if (lanes >> lane & 1) {
        ids[found++] = static_cast<int32_t>(start + i + lane);
      }
    }
  });
  return found;
}

// Of `count` columns, those with more than one id. Their number, or -1 where the `count + 1`
// offsets are not those of a map of `id_count` ids.
inline int64_t columns_of_several(const int32_t* offsets, int64_t count, int64_t id_count,
                                  int32_t* columns) {
  constexpr int64_t step = 64;
  if (offsets[0] < 0 || offsets[count] > id_count) {
    return -1;
  }
  int64_t found = 0;
  for (int64_t start = 0; start < count; start += step) {
    const int64_t n = count - start < step ? count - start : step;
    uint32_t several = 0;
    if (n == step) {
      for (int64_t i = start; i < start + step; i += 16) {
        prefetch_ahead(offsets + i);
      }
      for (int64_t i = start; i < start + step; ++i) {
        several |= static_cast<uint32_t>(offsets[i + 1]) - static_cast<uint32_t>(offsets[i]);
      }
    }
    if (n == step && several < 2) {
      continue;
    }
    for (int64_t i = start; i < start + n; ++i) {
      if (offsets[i + 1] < offsets[i]) {
        return -1;
      }
      if (offsets[i + 1] - offsets[i] > 1) {
        columns[found++] = static_cast<int32_t>(i);
      }
    }
  }
  return found;
}

// Bit i: ids[i] is marked.
static inline uint32_t marked_lanes(const MarkedIds& marks, const int32_t* ids) {
#if EK_ISA >= 2
  const __m512i at = _mm512_loadu_si512(ids);
  const __mmask16 there =
      _mm512_cmplt_epu32_mask(at, _mm512_set1_epi32(static_cast<int>(marks.width)));
  const __m512i words = _mm512_mask_i32gather_epi32(
      _mm512_setzero_si512(), there, _mm512_srli_epi32(at, 5), marks.bits.data(), 4);
  return _mm512_test_epi32_mask(_mm512_rorv_epi32(words, at), _mm512_set1_epi32(1));
#else
  uint32_t lanes = 0;
  for (int i = 0; i < Floats::size; ++i) {
    lanes |= static_cast<uint32_t>(marks.has(ids[i])) << i;
  }
  return lanes;
#endif
}

// Bit i: ids[i] may be marked, as far as its digits tell.
static inline uint32_t passing_lanes(const MarkedIds& marks, const int32_t* ids) {
#if EK_ISA >= 2
  const __m512i at = _mm512_loadu_si512(ids), next = _mm512_srli_epi32(at, 9);
  // Permutations and rotations take of an index the bits that they need.
  const auto digit = [](const uint32_t* table, __m512i at) EK_INLINE {
    const __m512i words =
        _mm512_permutexvar_epi32(_mm512_srli_epi32(at, 5), _mm512_loadu_si512(table));
    return _mm512_rorv_epi32(words, at);
  };
  const __m512i both = _mm512_and_si512(digit(marks.low, at), digit(marks.high, next));
  return _mm512_test_epi32_mask(both, _mm512_set1_epi32(1));
#elif EK_ISA == 1
  const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids));
  const auto digit = [](const uint32_t* table, __m256i at) EK_INLINE {
    const __m256i* halves = reinterpret_cast<const __m256i*>(table);
    const __m256i folded =
        _mm256_or_si256(_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1));
    const __m256i words = _mm256_permutevar8x32_epi32(folded, _mm256_srli_epi32(at, 5));
    // The bit wanted as the sign, which is what movemask takes.
    return _mm256_sllv_epi32(words, _mm256_andnot_si256(at, _mm256_set1_epi32(31)));
  };
  const __m256i both = _mm256_and_si256(digit(marks.low, at),
                                        digit(marks.high, _mm256_srli_epi32(at, 9)));
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(both)));
#else
  return marked_lanes(marks, ids);
#endif
}

// Where in `count` ids those stand that are marked. Their number.
inline int64_t marked_positions(const MarkedIds& marks, const int32_t* ids, int64_t count,
                                int32_t* positions) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += Floats::size) {
    prefetch_ahead(ids + i);
    uint32_t lanes = (1u << (count - i < Floats::size ? count - i : Floats::size)) - 1;
    if (count - i >= Floats::size) {
      lanes = marks.few() ? passing_lanes(marks, ids + i) : marked_lanes(marks, ids + i);
    }
    for (int lane = 0; lanes >> lane; ++lane) {
      if ((lanes >> lane & 1) && marks.has(ids[i + lane])) {
        positions[found++] = static_cast<int32_t>(i + lane);
      }
    }
  }
  return found;
}

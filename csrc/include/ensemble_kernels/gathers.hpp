// Reads of logits in order and of what was made of them through the map of a union vocabulary. Part
// of the kernels that include it, which foreach_isa.hpp compiles for each instruction set.

// Calls `use(i, logits, n)` for each n <= V::size of `count` logits from `start` on; lanes behind
// are -inf.
template <typename T, typename Use>
static inline void for_each_logits(const ModelRow& row, int64_t start, int64_t count,
                                   const Use& use) {
  using V = VectorOf<T>;
  const T* data = static_cast<const T*>(row.data) + start * row.stride;
  const int64_t stride = row.stride, whole = stride == 1 ? count - count % V::size : 0;
  for (int64_t i = 0; i < whole; i += V::size) {
    use(i, load(data + i), V::size);
  }
  for (int64_t i = whole; i < count; i += V::size) {
    const int64_t n = count - i < V::size ? count - i : V::size;
    T lanes[V::size];
    for (int64_t lane = 0; lane < n; ++lane) {
      lanes[lane] = data[(i + lane) * stride];
    }
    use(i, load_some(lanes, n, -std::numeric_limits<typename V::Scalar>::infinity()), n);
  }
}

// The first n lanes to memory, in its type.
static inline void store_first(float* to, Floats values, int64_t n) {
  if (n == Floats::size) {
    store(to, values);
    return;
  }
  float lanes[Floats::size];
  store(lanes, values);
  std::memcpy(to, lanes, n * sizeof(float));
}
template <typename V>
static inline void store_first(double* to, V values, int64_t n) {
  typename V::Scalar lanes[V::size];
  store(lanes, values);
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<double>(lanes[i]);
  }
}

// Lane i: `values[ids[i]]`, `missing` where that is not among the `width` of them.
static inline Doubles gather(const double* values, int64_t width, double missing,
                             const int32_t* ids) {
  Doubles lanes;
  for (int i = 0; i < Doubles::size; ++i) {
    const bool there = static_cast<uint32_t>(ids[i]) < static_cast<uint64_t>(width);
    lanes.v[i] = there ? values[ids[i]] : missing;
  }
  return lanes;
}
static inline Floats gather(const float* values, int64_t width, float missing, const int32_t* ids) {
#if EK_ISA >= 2
  const __m512i at = _mm512_loadu_si512(ids);
  const __mmask16 there =
      _mm512_cmplt_epu32_mask(at, _mm512_set1_epi32(static_cast<int>(width)));
  return {_mm512_mask_i32gather_ps(_mm512_set1_ps(missing), there, at, values, 4)};
#elif EK_ISA == 1
  const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids));
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(width)), at);
  const __m256 there = _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_srai_epi32(at, 31), below));
  return {_mm256_mask_i32gather_ps(_mm256_set1_ps(missing), values, at, there, 4)};
#else
  float lanes[Floats::size];
  for (int i = 0; i < Floats::size; ++i) {
    const bool there = static_cast<uint32_t>(ids[i]) < static_cast<uint64_t>(width);
    lanes[i] = there ? values[ids[i]] : missing;
  }
  return load(lanes);
#endif
}

// Calls `use(i, values)` with the values of one vector of ids from the i-th on, `missing` behind the
// last id.
template <typename Scalar, typename Use>
static inline void for_each_gathered(const Scalar* values, int64_t width, Scalar missing,
                                     const int32_t* ids, int64_t count, const Use& use) {
  constexpr int64_t step = VectorOf<Scalar>::size;
  const int64_t whole = count - count % step;
  for (int64_t i = 0; i < whole; i += step) {
    use(i, gather(values, width, missing, ids + i));
  }
  if (whole < count) {
    int32_t last[step];
    for (int64_t i = 0; i < step; ++i) {
      last[i] = whole + i < count ? ids[whole + i] : -1;
    }
    use(whole, gather(values, width, missing, last));
  }
}

// The values of V::size columns with at most one id each, from `values`, those of the chunk's ids
// in turn; false where a column has more.
template <typename V>
static inline bool spread(const int32_t* offsets, int32_t first, const typename V::Scalar* values,
                          typename V::Scalar missing, V& columns) {
  typename V::Scalar lanes[V::size];
  uint32_t several = 0;
  for (int i = 0; i < V::size; ++i) {
    several |= static_cast<uint32_t>(offsets[i + 1] - offsets[i]) & ~1u;
  }
  if (several) {
    return false;
  }
  for (int i = 0; i < V::size; ++i) {
    const typename V::Scalar value = values[offsets[i] - first];
    lanes[i] = offsets[i + 1] == offsets[i] ? missing : value;
  }
  columns = load(lanes);
  return true;
}

#if EK_ISA >= 2
static inline bool spread(const int32_t* offsets, int32_t first, const float* values, float missing,
                          Floats& columns) {
  const __m512i begin = _mm512_loadu_si512(offsets);
  // Not a load from offsets + 1, half of which lies in another cache line.
  const __m512i behind = _mm512_castsi128_si512(_mm_cvtsi32_si128(offsets[16]));
  const __m512i counts = _mm512_sub_epi32(_mm512_alignr_epi32(behind, begin, 1), begin);
  if (_mm512_cmpgt_epu32_mask(counts, _mm512_set1_epi32(1))) {
    return false;
  }
  // Of 16 values at most, each lane's: faster than an expanding load.
  const __m512 next = _mm512_loadu_ps(values + (offsets[0] - first));
  const __m512i lane = _mm512_sub_epi32(
      begin, _mm512_broadcastd_epi32(_mm512_castsi512_si128(begin)));
  const __m512 each = _mm512_permutexvar_ps(lane, next);
  columns.v = _mm512_mask_blend_ps(_mm512_test_epi32_mask(counts, counts),
                                   _mm512_set1_ps(missing), each);
  return true;
}
#elif EK_ISA == 1
static inline bool spread(const int32_t* offsets, int32_t first, const float* values, float missing,
                          Floats& columns) {
  const __m256i begin = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(offsets));
  const __m256i end = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(offsets + 1));
  const __m256i counts = _mm256_sub_epi32(end, begin);
  if (!_mm256_testz_si256(counts, _mm256_set1_epi32(~1))) {
    return false;
  }
  const __m256 next = _mm256_loadu_ps(values + (offsets[0] - first));
  const __m256i lane = _mm256_sub_epi32(begin, _mm256_set1_epi32(offsets[0]));
  const __m256i none = _mm256_cmpeq_epi32(counts, _mm256_setzero_si256());
  columns.v = _mm256_blendv_ps(_mm256_permutevar8x32_ps(next, lane), _mm256_set1_ps(missing),
                               _mm256_castsi256_ps(none));
  return true;
}
#endif

// Calls `use(column, values, n)` for each n <= V::size columns of a chunk. `values` holds those of
// the chunk's ids and room for `count + V::size` more; `combine(p, n)` makes one of n values.
// False, with no read out of bounds, where the offsets are not those of a map.
template <typename V, typename Combine, typename Use>
static inline bool for_each_spread(const MapChunk& map, const typename V::Scalar* values,
                                   typename V::Scalar missing, const Combine& combine,
                                   const Use& use) {
  // Copies, since a store of a vector may be to anywhere for all that a compiler knows.
  const int32_t *start = map.offsets, first = start[0];
  const int64_t count = map.count, id_count = start[count] - first;
  for (int64_t column = 0; column < count; column += V::size) {
    const int32_t* offsets = start + column;
    const int64_t n = count - column < V::size ? count - column : V::size;
    V columns;
    if (n < V::size || !spread(offsets, first, values, missing, columns)) {
      typename V::Scalar lanes[V::size];
      for (int i = 0; i < V::size; ++i) {
        lanes[i] = missing;
      }
      for (int64_t i = 0; i < n; ++i) {
        const int64_t begin = offsets[i] - first, end = offsets[i + 1] - first;
        if (begin < 0 || begin > end || end > id_count) {
          return false;
        }
        if (begin < end) {
          lanes[i] = end - begin == 1 ? values[begin] : combine(values + begin, end - begin);
        }
      }
      columns = load(lanes);
    }
    use(column, columns, n);
  }
  return true;
}

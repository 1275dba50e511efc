// Reads through the map of a union vocabulary. Part of the kernels that include it, which
// foreach_isa.hpp compiles for each instruction set.

#if EK_ISA >= 2

// `width` is at least 2 where elements have 16 bits.
static inline Floats gather_near(const float* data, __m512i ids, __mmask16 there) {
  const __m512 nothing = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  return {_mm512_mask_i32gather_ps(nothing, there, ids, data, 4)};
}
// The element in the upper half of each lane. A word that ends with the element lies within the row,
// except for the first element.
static inline __m512i gather_halves(const void* data, __m512i ids, __mmask16 there) {
  const __m512i none = _mm512_setzero_si512();
  const __m512i before = _mm512_sub_epi32(_mm512_max_epu32(ids, _mm512_set1_epi32(1)),
                                          _mm512_set1_epi32(1));
  const __m512i words = _mm512_mask_i32gather_epi32(none, there, before, data, 2);
  return _mm512_mask_slli_epi32(words, _mm512_cmpeq_epi32_mask(ids, none), words, 16);
}
static inline Floats gather_near(const BFloat16* data, __m512i ids, __mmask16 there) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i bits = _mm512_and_si512(gather_halves(data, ids, there), upper);
  const __m512i nothing = _mm512_set1_epi32(static_cast<int>(0xff800000u));
  return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(there, nothing, bits))};
}
static inline Floats gather_near(const Float16* data, __m512i ids, __mmask16 there) {
  const __m512i bits = _mm512_srli_epi32(gather_halves(data, ids, there), 16);
  const __m512 values = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits));
  const __m512 nothing = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  return {_mm512_mask_blend_ps(there, nothing, values)};
}

#endif

// Lane i: the logit of `ids[i]`, -inf where the row has none.
template <typename T>
static inline VectorOf<T> gather(const T* data, int64_t stride, int64_t width, const int32_t* ids) {
  using V = VectorOf<T>;
#if EK_ISA >= 2
  if constexpr (sizeof(T) <= 4) {
    if (stride == 1 && width > 1) {
      const __m512i at = _mm512_loadu_si512(ids);
      const __m512i end = _mm512_set1_epi32(static_cast<int>(width));
      return gather_near(data, at, _mm512_cmplt_epu32_mask(at, end));
    }
  }
#endif
  T nothing;
  narrow(-std::numeric_limits<typename V::Scalar>::infinity(), nothing);
  T lanes[V::size];
  for (int i = 0; i < V::size; ++i) {
    const bool there = static_cast<uint32_t>(ids[i]) < static_cast<uint64_t>(width);
    lanes[i] = there ? data[ids[i] * stride] : nothing;
  }
  return load(lanes);
}

// Calls `use(i, logits, n)` with the logits of `ids[i]` to `ids[i + n - 1]`; lanes behind are -inf.
template <typename T, typename Use>
static inline void for_each_gathered(const ModelRow& row, const int32_t* ids, int64_t count,
                                     const Use& use) {
  using V = VectorOf<T>;
  const T* data = static_cast<const T*>(row.data);
  const int64_t whole = count - count % V::size;
  for (int64_t i = 0; i < whole; i += V::size) {
    use(i, gather(data, row.stride, row.width, ids + i));
  }
  if (whole < count) {
    int32_t last[V::size];
    for (int i = 0; i < V::size; ++i) {
      last[i] = whole + i < count ? ids[whole + i] : -1;
    }
    use(whole, gather(data, row.stride, row.width, last));
  }
}

// The values of V::size columns with at most one id each, from `values`, those of the chunk's ids in
// turn; false where a column has more.
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
  const __m512i counts =
      _mm512_sub_epi32(_mm512_loadu_si512(offsets + 1), _mm512_loadu_si512(offsets));
  if (_mm512_cmpgt_epu32_mask(counts, _mm512_set1_epi32(1))) {
    return false;
  }
  const __mmask16 there = _mm512_test_epi32_mask(counts, counts);
  const __m512 next = _mm512_loadu_ps(values + (offsets[0] - first));
  columns.v = _mm512_mask_expand_ps(_mm512_set1_ps(missing), there, next);
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
  const int32_t first = map.offsets[0];
  const int64_t id_count = map.offsets[map.count] - first;
  for (int64_t column = 0; column < map.count; column += V::size) {
    const int32_t* offsets = map.offsets + column;
    const int64_t n = map.count - column < V::size ? map.count - column : V::size;
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

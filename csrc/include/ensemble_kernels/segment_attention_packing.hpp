// How queries, keys, values and weights are laid out for the two products; part of
// segment_attention_kernels.hpp.

template <typename T>
static const T* states_at(const States& states, int64_t batch, int64_t head, int64_t slot) {
  return static_cast<const T*>(states.data) + batch * states.batch_stride +
         head * states.head_stride + slot * states.slot_stride;
}

static inline uint32_t pair_bits(BFloat16 first, BFloat16 second) {
  return first.bits | static_cast<uint32_t>(second.bits) << 16;
}

// The unit's queries, transposed. A thread's next unit is often of the same rows.
template <typename T, typename Product>
static void pack_query(const AttentionCall& call, const AttentionUnit& unit, int64_t padded,
                       AttentionWork<Product>& work) {
  if (work.call == call.id && work.batch == unit.batch && work.key_head == unit.key_head &&
      work.row_begin == unit.row_begin) {
    return;
  }
  using Element = typename Product::Element;
  constexpr int pair = Product::elements;
  const int64_t steps = (call.size + pair - 1) / pair;
  work.query.resize(steps * padded);
  work.scores.resize(attention_block * attention_width);
  work.weights.resize(attention_block * attention_width);
  const int64_t stride = call.query.element_stride;
  // By squares, since a column of the result written number by number would use one cache set.
  constexpr int64_t side = attention_lanes;
  Element square[side][side];
  for (int64_t column = 0; column < padded; column += side) {
    const T* rows[side];
    const int64_t real = std::min(side, unit.row_end - unit.row_begin - column);
    for (int64_t i = 0; i < real; ++i) {
      const int64_t packed = unit.row_begin + column + i;
      rows[i] = states_at<T>(call.query, unit.batch,
                             unit.key_head * call.heads_per_key + packed % call.heads_per_key,
                             packed / call.heads_per_key);
    }
    std::fill(&square[0][0], &square[0][0] + side * side, Element(0));
    for (int64_t step = 0; step < steps; step += side) {
      const int64_t count = std::min(side, steps - step);
      for (int64_t i = 0; i < real; ++i) {
        for (int64_t d = 0; d < count; ++d) {
          const int64_t at = pair * (step + d) * stride;
          if constexpr (pair == 2) {
            square[d][i] = pair_bits(rows[i][at], rows[i][at + stride]);
          } else {
            square[d][i] = widen(rows[i][at]);
          }
        }
      }
      for (int64_t d = 0; d < count; ++d) {
        std::memcpy(work.query.data() + (step + d) * padded + column, square[d], sizeof square[d]);
      }
    }
  }
  work.call = call.id;
  work.batch = unit.batch;
  work.key_head = unit.key_head;
  work.row_begin = unit.row_begin;
}

// `count` rows of D numbers in the type that is computed in.
template <typename T, typename Scalar>
static void widen_rows(const T* from, int64_t row_stride, int64_t element_stride, int64_t count,
                       int64_t size, Scalar* to) {
  using V = VectorOf<T>;
  for (int64_t j = 0; j < count; ++j, from += row_stride, to += size) {
    int64_t d = 0;
    if (element_stride == 1) {
      for (; d + V::size <= size; d += V::size) {
        store(to + d, load(from + d));
      }
    }
    for (; d < size; ++d) {
      to[d] = widen(from[d * element_stride]);
    }
  }
}

#if EK_ISA == 3
// Rows 2i and 2i + 1 of `count`, number by number next to each other; a missing last row is 0.
static void pair_rows(const BFloat16* from, int64_t row_stride, int64_t count, int64_t size,
                      uint32_t* to) {
  const __m512i even = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                        39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(16));
  for (int64_t j = 0; j < count; j += 2, to += size) {
    const BFloat16* first = from + j * row_stride;
    const bool whole = j + 1 < count;
    const BFloat16* second = whole ? first + row_stride : first;
    int64_t d = 0;
    for (; d + 32 <= size; d += 32) {
      const __m512i a = _mm512_loadu_si512(first + d);
      const __m512i b = whole ? _mm512_loadu_si512(second + d) : _mm512_setzero_si512();
      _mm512_storeu_si512(to + d, _mm512_permutex2var_epi16(a, even, b));
      _mm512_storeu_si512(to + d + 16, _mm512_permutex2var_epi16(a, odd, b));
    }
    for (; d < size; ++d) {
      to[d] = pair_bits(first[d], whole ? second[d] : BFloat16{0});
    }
  }
}
#endif

// Values that are not finite, among `count` rows: 0 · NaN would reach rows that do not see them.
template <typename T>
static bool all_finite(const T* from, int64_t row_stride, int64_t element_stride, int64_t count,
                       int64_t size) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
#if EK_ISA >= 2
  // Exponents of ones alone are those of NaN and infinity.
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    if (element_stride == 1 && size % 32 == 0) {
      const __m512i ones = _mm512_set1_epi16(std::is_same_v<T, BFloat16> ? 0x7f80 : 0x7c00);
      __mmask32 found = 0;
      for (int64_t j = 0; j < count; ++j, from += row_stride) {
        for (int64_t d = 0; d < size; d += 32) {
          const __m512i exponents = _mm512_and_si512(_mm512_loadu_si512(from + d), ones);
          found |= _mm512_cmpeq_epi16_mask(exponents, ones);
        }
      }
      return found == 0;
    }
  }
#endif
  // 0 · x is 0 for finite x alone.
  V zeros = broadcast(Scalar(0));
  Scalar zero = 0;
  for (int64_t j = 0; j < count; ++j, from += row_stride) {
    int64_t d = 0;
    if (element_stride == 1) {
      for (; d + V::size <= size; d += V::size) {
        zeros = fma(load(from + d), broadcast(Scalar(0)), zeros);
      }
    }
    for (; d < size; ++d) {
      zero += widen(from[d * element_stride]) * Scalar(0);
    }
  }
  return sum(zeros) + zero == 0;
}

// Notes the values that are not finite, and puts 0 in their place.
template <typename T, typename Product>
static void set_spoiled_apart(const T* from, const States& states, int64_t count, int64_t size,
                              AttentionWork<Product>& work) {
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t d = 0; d < size; ++d) {
      const auto value = widen(from[j * states.slot_stride + d * states.element_stride]);
      if (value * 0 == 0) {
        continue;
      }
      work.spoiled.push_back({j, d, value});
      auto& packed = work.values[j / Product::elements * size + d];
      if constexpr (Product::elements == 2) {
        packed &= j % 2 ? 0x0000ffffu : 0xffff0000u;
      } else {
        packed = 0;
      }
    }
  }
}

// Adds them for the rows that see them.
template <typename Product, int vectors>
static void add_spoiled(const AttentionWork<Product>& work, const Visibility& rows,
                        const KeyBlock<Product>& block,
                        const AttentionPart<typename Product::Vector::Scalar>& part,
                        int64_t column) {
  using V = typename Product::Vector;
  constexpr int64_t width = vectors * V::size;
  for (const auto& one : work.spoiled) {
    const int64_t slot = one.slot - block.skipped;
    if (slot < 0 || slot >= block.count) {
      continue;
    }
    for (int v = 0; v < vectors; ++v) {
      typename V::Scalar weights[V::size];
      for (int i = 0; i < V::size; ++i) {
        const auto packed =
            work.weights[slot / Product::elements * width + v * V::size + i];
        if constexpr (Product::elements == 2) {
          weights[i] = as_float(slot % 2 ? packed & 0xffff0000u : packed << 16);
        } else {
          weights[i] = packed;
        }
      }
      auto* out = part.out + one.d * part.padded + column + v * V::size;
      const auto sees = rows.template who_see<V>(block.first + slot, v * V::size);
      store(out, select(sees, fma(load(weights), broadcast(one.value), load(out)), load(out)));
    }
  }
}

// Weights 2^(score · unit + shift) as the second product reads them; adds them to `total`.
template <typename Product, int vectors>
static inline void weights_of_scores(const typename Product::Vector::Scalar* scores, int64_t count,
                                     typename Product::Vector unit,
                                     const typename Product::Vector* shift,
                                     typename Product::Vector* total,
                                     typename Product::Element* weights) {
  using V = typename Product::Vector;
  constexpr int64_t width = vectors * V::size;
  if constexpr (Product::elements == 1) {
    for (int64_t j = 0; j < count; ++j) {
      for (int v = 0; v < vectors; ++v) {
        const V score = load(scores + j * width + v * V::size);
        const V weight = exp2(fma(score, unit, shift[v]));
        total[v] = total[v] + weight;
        store(weights + j * width + v * V::size, weight);
      }
    }
  } else {
#if EK_ISA == 3
    const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25,
                                                 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                                 17, 1, 16, 0);
    for (int64_t j = 0; j < count; j += 2) {
      for (int v = 0; v < vectors; ++v) {
        const auto* at = scores + j * width + v * V::size;
        const V first = exp2_rough(fma(load(at), unit, shift[v]));
        const V second =
            j + 1 < count ? exp2_rough(fma(load(at + width), unit, shift[v])) : broadcast(0.0f);
        total[v] = total[v] + (first + second);
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second.v, first.v);
        _mm512_storeu_si512(weights + j / 2 * width + v * V::size,
                            _mm512_permutexvar_epi16(interleaved, both));
      }
    }
#endif
  }
}

// Rows as the full product reads them, and their stride: in place where that is possible and allowed,
// else widened into `copy`.
template <typename T, typename Scalar>
static std::pair<const Scalar*, int64_t> full_rows(const T* from, const States& states,
                                                   bool in_place, int64_t count, int64_t size,
                                                   std::vector<Scalar>& copy) {
  if (std::is_same_v<T, Scalar> && states.element_stride == 1 && in_place) {
    return {reinterpret_cast<const Scalar*>(from), states.slot_stride};
  }
  copy.resize(attention_block * size);
  widen_rows(from, states.slot_stride, states.element_stride, count, size, copy.data());
  return {copy.data(), size};
}

template <typename T, typename Product>
static KeyBlock<Product> key_block(const AttentionCall& call, const AttentionUnit& unit,
                                   int64_t slot, int64_t count, AttentionWork<Product>& work) {
  KeyBlock<Product> block{slot, count, 0, nullptr, 0, nullptr, 0};
  const T* keys = states_at<T>(call.key, unit.batch, unit.key_head, slot);
  const T* values = states_at<T>(call.value, unit.batch, unit.key_head, slot);
  work.spoiled.clear();
  const bool finite = all_finite(values, call.value.slot_stride, call.value.element_stride, count,
                                 call.size);
  if constexpr (Product::elements == 2) {
#if EK_ISA == 3
    block.keys = reinterpret_cast<const uint32_t*>(keys);
    block.key_stride = call.key.slot_stride / 2;
    work.values.resize((attention_block + 1) / 2 * call.size);
    pair_rows(values, call.value.slot_stride, count, call.size, work.values.data());
    block.values = work.values.data();
    block.value_stride = call.size;
#endif
  } else {
    std::tie(block.keys, block.key_stride) =
        full_rows(keys, call.key, true, count, call.size, work.keys);
    // What set_spoiled_apart changes must be a copy.
    std::tie(block.values, block.value_stride) =
        full_rows(values, call.value, finite, count, call.size, work.values);
  }
  if (!finite) {
    set_spoiled_apart(values, call.value, count, call.size, work);
  }
  return block;
}

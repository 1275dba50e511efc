// Compiled for each instruction set by foreach_isa.hpp; see segment_attention.hpp.

#include "ensemble_kernels/segment_attention_products.hpp"

// A value that is not finite, and its slot in the block.
template <typename Scalar>
struct Spoiled {
  int64_t slot, d;
  Scalar value;
};

template <typename Product>
struct AttentionWork {
  using Vector = typename Product::Vector;
  using Scalar = typename Vector::Scalar;
  using Element = typename Product::Element;

  std::vector<Element> query;      // [steps of D][padded rows]
  std::vector<Scalar> scores;      // [block][lanes of a tile]
  std::vector<Element> weights;    // the same, as elements of the second product
  std::vector<Element> keys;       // [block][steps of D], where they cannot be read in place
  std::vector<Element> values;     // [steps of block][D], likewise
  std::vector<Spoiled<Scalar>> spoiled;
  uint64_t call = 0;
  int64_t batch = -1, key_head = -1, row_begin = -1;
};

// One block of keys as the kernels read it.
template <typename Product>
struct KeyBlock {
  using Element = typename Product::Element;
  int64_t first, count;
  int64_t skipped;  // slots of the block as it was packed, before `first`
  const Element* keys;
  int64_t key_stride;
  const Element* values;
  int64_t value_stride;  // between steps of k
};

#include "ensemble_kernels/segment_attention_visibility.hpp"
#include "ensemble_kernels/segment_attention_packing.hpp"

// From here on a number has no digits behind the point: rounding moves it by a unit and more.
template <typename Scalar>
static constexpr Scalar rounds_to_integers =
    static_cast<Scalar>(int64_t{1} << std::numeric_limits<Scalar>::digits);

// Scores of a tile become weights: masked, capped, their maxima looked at, raised to powers of two.
template <typename Product, int vectors>
EK_NOINLINE static void weigh_scores(const AttentionCall& call, const KeyBlock<Product>& block, bool masked,
                         const Visibility& rows, AttentionWork<Product>& work,
                         typename Product::Vector::Scalar* peaks,
                         typename Product::Vector::Scalar* totals,
                         typename Product::Vector::Scalar* rescale) {
  using V = typename Product::Vector;
  using Scalar = typename V::Scalar;
  constexpr int64_t width = vectors * V::size;
  constexpr Scalar nothing = -std::numeric_limits<Scalar>::infinity();
  Scalar* scores = work.scores.data();
  // To units of log2.
  V unit = broadcast(static_cast<Scalar>(call.scale * 1.4426950408889634));
  if (call.softcap > 0) {
    const V inner = broadcast(static_cast<Scalar>(call.scale / call.softcap));
    const V outer = broadcast(static_cast<Scalar>(call.softcap * 1.4426950408889634));
    for (int64_t i = 0; i < block.count * width; i += V::size) {
      store(scores + i, tanh(load(scores + i) * inner) * outer);
    }
    unit = broadcast(Scalar(1));
  }
  V highest_seen[vectors];
  for (int v = 0; v < vectors; ++v) {
    highest_seen[v] = broadcast(nothing);
  }
  for (int64_t j = 0; j < block.count; ++j) {
    for (int v = 0; v < vectors; ++v) {
      Scalar* at = scores + j * width + v * V::size;
      V score = load(at) * unit;
      if (masked) {
        score = select(rows.template who_see<V>(block.first + j, v * V::size), score,
                       broadcast(nothing));
        store(at, score);
      }
      highest_seen[v] = maximum(highest_seen[v], score);
    }
  }
  if (masked) {
    unit = broadcast(Scalar(1));
  }
  // A finite stand-in where nothing was seen, since (-inf) - (-inf) is NaN.
  const V least = broadcast(std::numeric_limits<Scalar>::lowest());
  V shift[vectors], total[vectors];
  uint32_t huge = 0;
  for (int v = 0; v < vectors; ++v) {
    const V before = load(peaks + v * V::size);
    const V peak = maximum(before, highest_seen[v]);
    store(peaks + v * V::size, peak);
    const V kept = exp2(maximum(least, before) - maximum(least, peak));
    store(rescale + v * V::size, kept);
    total[v] = load(totals + v * V::size) * kept;
    shift[v] = broadcast(Scalar(0)) - maximum(least, peak);
    huge |= lanes_above(absolute(peak), broadcast(rounds_to_integers<Scalar>));
  }
  if (huge && !masked) {
    // What rounding takes from a maximum as large as these would be left as an exponent, of any
    // size, by the fused product: all scores are rounded as their maximum was.
    for (int64_t i = 0; i < block.count * width; i += V::size) {
      store(scores + i, load(scores + i) * unit);
    }
    unit = broadcast(Scalar(1));
  }
  weights_of_scores<Product, vectors>(scores, block.count, unit, shift, total, work.weights.data());
  for (int v = 0; v < vectors; ++v) {
    store(totals + v * V::size, total[v]);
  }
}

template <typename Product, int vectors>
static void attend_tile(const AttentionCall& call, const Visibility& rows,
                        const KeyBlock<Product>& whole, int64_t column,
                        AttentionWork<Product>& work,
                        const AttentionPart<typename Product::Vector::Scalar>& part) {
  using V = typename Product::Vector;
  constexpr int64_t width = vectors * V::size;
  const KeyBlock<Product> block = trimmed(whole, rows);
  const Seen seen = rows.seen(block.first, block.first + block.count - 1);
  if (block.count <= 0 || seen == Seen::nothing) {
    return;
  }
  product<Product, vectors>(block.keys, block.key_stride, 1, block.count,
                            (call.size + Product::elements - 1) / Product::elements,
                            work.query.data() + column, part.padded, work.scores.data(), width,
                            nullptr);
  typename V::Scalar rescale[width];
  weigh_scores<Product, vectors>(call, block, seen == Seen::partly, rows, work, part.peak + column,
                                 part.total + column, rescale);
  product<Product, vectors>(block.values, 1, block.value_stride, call.size,
                            (block.count + Product::elements - 1) / Product::elements,
                            work.weights.data(), width, part.out + column, part.padded, rescale);
  add_spoiled<Product, vectors>(work, rows, block, part, column);
}

template <typename T, typename Product>
static void attend_unit(const AttentionCall& call, const RowView& view, const AttentionUnit& unit,
                        const AttentionPart<typename Product::Vector::Scalar>& part) {
  using V = typename Product::Vector;
  using Scalar = typename V::Scalar;
  thread_local AttentionWork<Product> work;
  const int64_t rows = unit.row_end - unit.row_begin;
  pack_query<T, Product>(call, unit, part.padded, work);
  std::fill(part.out, part.out + call.size * part.padded, Scalar(0));
  std::fill(part.peak, part.peak + part.padded, -std::numeric_limits<Scalar>::infinity());
  std::fill(part.total, part.total + part.padded, Scalar(0));
  int64_t end = unit.slot_end;
  if (unit.own) {
    end = *std::max_element(view.own_high.begin() + unit.row_begin,
                            view.own_high.begin() + unit.row_end) + 1;
  }
  for (int64_t slot = unit.slot_begin; slot < end; slot += call.block()) {
    const auto block =
        key_block<T, Product>(call, unit, slot, std::min(call.block(), end - slot), work);
    for (int64_t row = 0; row < rows;) {
      const int64_t left = (rows - row + V::size - 1) / V::size;
      // Five vectors are three and two, not four and one.
      const int64_t taken = left == 5 ? 3 : std::min<int64_t>(4, left);
      const Visibility tile_rows(view, unit.row_begin + row,
                                 std::min(rows - row, taken * V::size));
      const auto tile = [&](auto count) {
        attend_tile<Product, decltype(count)::value>(call, tile_rows, block, row, work, part);
      };
      switch (taken) {
        case 1:
          tile(std::integral_constant<int, 1>{});
          break;
        case 2:
          tile(std::integral_constant<int, 2>{});
          break;
        case 3:
          tile(std::integral_constant<int, 3>{});
          break;
        default:
          tile(std::integral_constant<int, 4>{});
      }
      row += taken * V::size;
    }
  }
}

template <typename T>
void attention_unit(const AttentionCall& call, const RowView& view, const AttentionUnit& unit,
                    const AttentionPart<typename VectorOf<T>::Scalar>& part) {
#if EK_ISA == 3
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (in_pairs(call.key) && call.value.element_stride == 1 && call.size % 2 == 0) {
      attend_unit<T, PairProduct>(call, view, unit, part);
      return;
    }
  }
#endif
  attend_unit<T, FullProduct<VectorOf<T>>>(call, view, unit, part);
}

// Merges the parts of the same rows and writes them: `out` is [heads][T][D] of the key head's query
// heads, `lse` [heads][T], both contiguous with `total_rows` = T.
template <typename T>
void merge_attention(const AttentionCall& call, const AttentionPart<typename VectorOf<T>::Scalar>* parts,
                     int64_t count, int64_t row_begin, int64_t row_end, int64_t total_rows, T* out,
                     float* lse) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  constexpr Scalar nothing = -std::numeric_limits<Scalar>::infinity();
  thread_local std::vector<Scalar> transposed, shares;
  transposed.resize(call.size * V::size);
  shares.resize(count * V::size);
  for (int64_t row = 0; row < row_end - row_begin; row += V::size) {
    V peak = broadcast(nothing);
    for (int64_t i = 0; i < count; ++i) {
      peak = maximum(peak, load(parts[i].peak + row));
    }
    const V shift = maximum(broadcast(std::numeric_limits<Scalar>::lowest()), peak);
    V total = broadcast(Scalar(0));
    for (int64_t i = 0; i < count; ++i) {
      const V share = exp2(load(parts[i].peak + row) - shift);
      store(shares.data() + i * V::size, share);
      total = fma(share, load(parts[i].total + row), total);
    }
    // 0 where nothing was seen; of NaN, NaN.
    const V inverse = select(less(broadcast(Scalar(0)), total), broadcast(Scalar(1)) / total, total);
    for (int64_t d = 0; d < call.size; ++d) {
      V sum = broadcast(Scalar(0));
      for (int64_t i = 0; i < count; ++i) {
        const V share = load(shares.data() + i * V::size);
        sum = fma(share, load(parts[i].out + d * parts[i].padded + row), sum);
      }
      store(transposed.data() + d * V::size, sum * inverse);
    }
    Scalar peaks[V::size], totals[V::size];
    store(peaks, shift);
    store(totals, total);
    const int64_t real = std::min<int64_t>(V::size, row_end - row_begin - row);
    for (int64_t i = 0; i < real; ++i) {
      const int64_t packed = row_begin + row + i;
      const int64_t place =
          packed % call.heads_per_key * total_rows + packed / call.heads_per_key;
      for (int64_t d = 0; d < call.size; ++d) {
        narrow(transposed[d * V::size + i], out[place * call.size + d]);
      }
      lse[place] = totals[i] == 0 ? -std::numeric_limits<float>::infinity()
                                  : static_cast<float>((peaks[i] + std::log2(totals[i])) *
                                                       Scalar(0.69314718055994530942));
    }
  }
}

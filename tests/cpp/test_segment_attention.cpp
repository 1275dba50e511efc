// Packs of segments against double loops, in each instruction set. Every tensor ends where its
// allocation ends, so that the address sanitizer sees a read behind it.
#include "ensemble_kernels/segment_attention.hpp"

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#define EK_WITH_BF16
#define EK_KERNELS "ensemble_kernels/segment_attention_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

#include "each_isa.hpp"

using namespace ensemble_kernels;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Shape {
  std::vector<int64_t> offsets;
  int64_t prefix, heads_per_key, size, window, first;
  int64_t element_stride;  // 2: every other number
  double softcap;
  int64_t bad_slot;  // holds NaN as its first value; -1: none
  float size_of_states = 1;  // of queries and keys
};

// One key head: [slots][D] of keys and of values, [heads][T][D] of queries.
template <typename T>
struct Pack {
  std::unique_ptr<T[]> query, key, value;
  std::vector<double> q, k, v;  // the same, as T holds them
  int64_t rows, slots;

  Pack(const Shape& shape, uint32_t seed) : rows(shape.offsets.back()), slots(shape.prefix + rows) {
    std::mt19937 random(seed);
    query = fill(shape.heads_per_key * rows * shape.size, shape, shape.size_of_states, random, q);
    key = fill(slots * shape.size, shape, shape.size_of_states, random, k);
    value = fill(slots * shape.size, shape, 1, random, v);
    if (shape.bad_slot >= 0) {
      const int64_t at = shape.bad_slot * shape.size;
      narrow(std::numeric_limits<decltype(widen(T{}))>::quiet_NaN(),
             value[at * shape.element_stride]);
      v[at] = std::nan("");
    }
  }

  static std::unique_ptr<T[]> fill(int64_t count, const Shape& shape, float size,
                                   std::mt19937& random, std::vector<double>& kept) {
    const int64_t stride = shape.element_stride;
    std::normal_distribution<float> normal;
    std::unique_ptr<T[]> data(new T[std::max<int64_t>(0, (count - 1) * stride + 1)]());
    for (int64_t i = 0; i < count; ++i) {
      narrow(normal(random) * size, data[i * stride]);
      kept.push_back(widen(data[i * stride]));
    }
    return data;
  }
};

// Of one row of one head: the output, and the log-sum-exp.
template <typename T>
double expected_row(const Shape& shape, const Pack<T>& pack, int64_t head, int64_t row,
                    std::vector<double>& out) {
  int64_t segment = 0;
  while (shape.offsets[segment + 1] <= row) {
    ++segment;
  }
  const int64_t start = shape.offsets[segment];
  std::vector<int64_t> seen;
  for (int64_t slot = shape.first; slot < pack.slots; ++slot) {
    const int64_t own = slot - shape.prefix;
    const int64_t place = own < 0 ? slot : slot - start;
    const bool near = shape.window == 0 || shape.prefix + row - start - place < shape.window;
    if (near && (own < 0 || (own >= start && own <= row))) {
      seen.push_back(slot);
    }
  }
  std::vector<double> scores;
  double highest = -infinity, total = 0;
  for (const int64_t slot : seen) {
    double score = 0;
    for (int64_t d = 0; d < shape.size; ++d) {
      score += pack.q[(head * pack.rows + row) * shape.size + d] * pack.k[slot * shape.size + d];
    }
    score /= std::sqrt(static_cast<double>(shape.size));
    score = shape.softcap > 0 ? shape.softcap * std::tanh(score / shape.softcap) : score;
    scores.push_back(score);
    highest = std::max(highest, score);
  }
  out.assign(shape.size, 0);
  for (size_t i = 0; i < seen.size(); ++i) {
    const double weight = std::exp(scores[i] - highest);
    total += weight;
    for (int64_t d = 0; d < shape.size; ++d) {
      out[d] += weight * pack.v[seen[i] * shape.size + d];
    }
  }
  for (double& number : out) {
    number = seen.empty() ? 0 : number / total;
  }
  return seen.empty() ? -infinity : highest + std::log(total);
}

template <typename T>
using Unit = void (*)(const AttentionCall&, const RowView&, const AttentionUnit&,
                      const AttentionPart<decltype(widen(T{}))>&);
template <typename T>
using Merge = void (*)(const AttentionCall&, const AttentionPart<decltype(widen(T{}))>*, int64_t,
                       int64_t, int64_t, int64_t, T*, float*);

template <typename T>
void compare(Unit<T> run, Merge<T> merge, const Shape& shape, double tolerance) {
  using Scalar = decltype(widen(T{}));
  static uint64_t calls = 0;
  const Pack<T> pack(shape, static_cast<uint32_t>(++calls));
  const int64_t step = shape.size * shape.element_stride;
  const auto states = [&](const T* data, int64_t slots) {
    return States{data, 0, slots * step, step, shape.element_stride};
  };
  const AttentionCall call{states(pack.query.get(), pack.rows), states(pack.key.get(), pack.slots),
                           states(pack.value.get(), pack.slots), shape.heads_per_key, shape.size,
                           1 / std::sqrt(static_cast<double>(shape.size)), shape.softcap, calls};
  const RowView view =
      row_view(shape.offsets, shape.prefix, shape.first, shape.window, shape.heads_per_key);
  std::vector<AttentionUnit> units;
  add_units(view, 0, 1, units);
  std::vector<T> out(shape.heads_per_key * pack.rows * shape.size);
  std::vector<float> lse(shape.heads_per_key * pack.rows);
  for (size_t begin = 0, end; begin < units.size(); begin = end) {
    std::vector<std::vector<Scalar>> memory;
    std::vector<AttentionPart<Scalar>> parts;
    for (end = begin; end < units.size() && units[end].row_begin == units[begin].row_begin; ++end) {
      const int64_t padded = padded_rows(units[end].row_end - units[end].row_begin);
      memory.emplace_back((shape.size + 2) * padded);
      Scalar* part = memory.back().data();
      parts.push_back({part, part + shape.size * padded, part + (shape.size + 1) * padded, padded});
      run(call, view, units[end], parts.back());
    }
    merge(call, parts.data(), static_cast<int64_t>(parts.size()), units[begin].row_begin,
          units[begin].row_end, pack.rows, out.data(), lse.data());
  }
  std::vector<double> expected;
  for (int64_t head = 0; head < shape.heads_per_key; ++head) {
    for (int64_t row = 0; row < pack.rows; ++row) {
      const int64_t at = head * pack.rows + row;
      const double expected_lse = expected_row(shape, pack, head, row, expected);
      CHECK_CLOSE(expected_lse, lse[at],
                  1e-2 * tolerance + std::max(2e-5, 1e-6 * std::fabs(expected_lse)));
      for (int64_t d = 0; d < shape.size; ++d) {
        CHECK_CLOSE(expected[d], widen(out[at * shape.size + d]), tolerance);
      }
    }
  }
}

const std::vector<Shape> shapes = {
    {{0, 5, 12}, 0, 1, 8, 0, 0, 1, 0, -1},       {{0, 5, 5, 12}, 130, 3, 64, 0, 0, 1, 0, -1},
    {{0, 10, 21}, 300, 4, 16, 40, 0, 1, 0, -1},  {{0, 9}, 97, 2, 7, 0, 3, 1, 0, -1},
    {{0, 1, 2}, 200, 1, 80, 0, 190, 1, 5, -1},   {{0, 3, 6}, 50, 2, 32, 0, 0, 2, 0, -1},
    {{0, 4, 9}, 20, 2, 34, 0, 0, 1, 0, 23},      {{0, 4, 9}, 20, 2, 34, 0, 0, 1, 0, 5},
    {{0, 4, 9}, 20, 2, 34, 6, 0, 1, 2, 15},      {{0, 90, 150}, 600, 7, 24, 500, 0, 1, 0, 611},
    {{0, 2}, 1, 1, 2, 1, 0, 1, 0, -1},           {{0, 6}, 3, 1, 1, 0, 8, 1, 0, -1},
};

// Scores whose rounding is more than any exponent may be, with blocks that all rows see.
const std::vector<Shape> huge = {
    {{0, 5, 12}, 600, 2, 16, 0, 0, 1, 0, -1, 1e6f},
    {{0, 5, 12}, 600, 2, 16, 0, 0, 1, 0, -1, 1e10f},
    {{0, 5, 12}, 600, 2, 16, 0, 0, 1, 0, -1, 1e18f},
};

#define EK_COMPARE(T, isa, shapes, tolerance)                                                  \
  if (check::enter(Isa::isa, #T)) {                                                            \
    for (const Shape& shape : shapes) {                                                        \
      compare<T>(&isa::attention_unit<T>, &isa::merge_attention<T>, shape, tolerance);         \
    }                                                                                          \
  }
#if EK_X86
#define EK_COMPARE_ALL(T, shapes, tolerance)        \
  EK_COMPARE(T, portable, shapes, tolerance)        \
  EK_COMPARE(T, avx2, shapes, tolerance)            \
  EK_COMPARE(T, avx512, shapes, tolerance)          \
  EK_COMPARE(T, avx512_bf16, shapes, tolerance)
#else
#define EK_COMPARE_ALL(T, shapes, tolerance) EK_COMPARE(T, portable, shapes, tolerance)
#endif

// 16-bit outputs are rounded once, and bfloat16 weights may be as well.
TEST(float32) { EK_COMPARE_ALL(float, shapes, 5e-6) }
TEST(float64) { EK_COMPARE_ALL(double, shapes, 1e-13) }
TEST(float16) { EK_COMPARE_ALL(Float16, shapes, 2e-3) }
TEST(bfloat16) { EK_COMPARE_ALL(BFloat16, shapes, 2e-2) }

TEST(huge_scores_of_float32) { EK_COMPARE_ALL(float, huge, 5e-6) }
TEST(huge_scores_of_float64) { EK_COMPARE_ALL(double, huge, 1e-13) }
TEST(huge_scores_of_bfloat16) { EK_COMPARE_ALL(BFloat16, huge, 2e-2) }

}  // namespace

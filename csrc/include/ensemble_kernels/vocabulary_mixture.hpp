// `mix_distributions`: several models' distributions over one union vocabulary.
//
// Floor: R·Σ V_m·b bytes + map + 4·R·U bytes. A row's logits are read in order, for the maximum and
// then for the powers, which are written to a buffer that stays in a cache and are gathered from it
// through the map: all random reads go there, whatever the dtype and strides of the logits. This
// second pass cuts the columns into chunks; a chunk's ids lie next to each other in a map, so that
// gathers leave no lane idle, and are then spread over its columns. Stretches and chunks have fixed
// sizes and are merged in double precision and in order, so that a row's result depends neither on
// the number of threads nor on its neighbours.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace ensemble_kernels {

constexpr int64_t mixture_stretch = 8192;  // logits of a unit of work of the first pass
constexpr int64_t mixture_block = 1024;    // logits that are summed in float32
constexpr int64_t mixture_chunk = 2048;    // columns of a unit of the second: 8 KiB of each array

// One row of one model's logits; the stride is in elements.
struct ModelRow {
  const void* data;
  int64_t stride, width;
};

// `count` columns of one model's map: their `count + 1` offsets into `ids`, those of the whole map.
struct MapChunk {
  const int32_t* offsets;
  const int32_t* ids;
  int64_t count;
};

// How one model's row enters the mixture: by powers 2^((x - maximum) · factor), where `factor` is
// log2(e) / temperature, of which there are `width` and whose sum is `total`.
struct ModelShare {
  double weight;  // normalised; 0: only the mass counts
  double total;
  int64_t width;

  // NaN, +inf, or nothing but -inf
  bool broken() const { return !(total > 0); }
};

// Of a chunk of logarithms: the maximum, and the sum of their powers relative to it.
struct ChunkTotal {
  double maximum = -std::numeric_limits<double>::infinity();
  double total = 0;
};

inline ChunkTotal merge_totals(const std::vector<ChunkTotal>& parts) {
  ChunkTotal all;
  for (const ChunkTotal& part : parts) {
    all.maximum = part.maximum > all.maximum ? part.maximum : all.maximum;
  }
  for (const ChunkTotal& part : parts) {
    if (part.total != 0) {
      all.total += std::exp2(part.maximum - all.maximum) * part.total;
    }
  }
  return all;
}

// log2 Σ 2^x
template <typename Scalar>
Scalar log_sum_of_powers(const Scalar* x, int64_t count) {
  Scalar peak = x[0];
  for (int64_t i = 1; i < count; ++i) {
    peak = x[i] > peak ? x[i] : peak;
  }
  if (peak == -std::numeric_limits<Scalar>::infinity()) {
    return peak;
  }
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    total += std::exp2(static_cast<double>(x[i]) - static_cast<double>(peak));
  }
  return static_cast<Scalar>(static_cast<double>(peak) + std::log2(total));
}

}  // namespace ensemble_kernels

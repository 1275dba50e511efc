// The merge of `segment_attention`'s states: what each split of the keys made of a row, its output
// and its natural log-sum-exp, becomes what all keys make of it.
//
// Floor: R·P·(D·b + 4) + R·(D·b + 4) bytes for R rows of P splits. A warp takes a row, splits in
// the order of their index; a split that saw nothing (LSE -inf) is never read, whatever lies there.
#pragma once

#include "ensemble_kernels/cuda/logits.cuh"
#include "ensemble_kernels/cuda/reductions.cuh"

namespace ensemble_kernels::cuda {

constexpr unsigned states_threads = 128;

// How a row's splits are weighted: by e^(lse - peak) / total.
template <typename Scalar>
struct RowWeights {
  Scalar peak, total;
};

template <typename Scalar>
__device__ RowWeights<Scalar> row_weights(const EkAttentionStates& call, int64_t row) {
  const unsigned lane = threadIdx.x % warp_lanes;
  const float* lse = call.lse + row;
  Scalar peak = minus_infinity<Scalar>, total = 0;
  for (int64_t split = lane; split < call.splits; split += warp_lanes) {
    const Scalar own = lse[split * call.rows];
    peak = own > peak ? own : peak;
  }
  peak = warp_reduce(peak, Maximum{});
  // A finite stand-in where no split saw anything, since (-inf) - (-inf) is NaN.
  peak = peak > minus_infinity<Scalar> ? peak : Scalar(0);
  for (int64_t split = lane; split < call.splits; split += warp_lanes) {
    total += exp(lse[split * call.rows] - peak);
  }
  return {peak, warp_reduce(total, Add{})};
}

// Merges `count` columns from `column` on.
template <int count, typename T>
__device__ void merge_columns(const EkAttentionStates& call, int64_t row, int64_t column,
                              const RowWeights<ScalarOf<T>>& weights, const T* states, T* out) {
  using Scalar = ScalarOf<T>;
  struct alignas(count * sizeof(T)) Vector {
    T values[count];
  };
  Scalar sums[count] = {};
  for (int64_t split = 0; split < call.splits; ++split) {
    const Scalar lse = call.lse[split * call.rows + row];
    if (lse == minus_infinity<Scalar>) {
      continue;
    }
    const Scalar weight = exp(lse - weights.peak);
    const Vector loaded =
        *reinterpret_cast<const Vector*>(states + (split * call.rows + row) * call.size + column);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      sums[i] += weight * widen(loaded.values[i]);
    }
  }
  // 0 where nothing was seen; of NaN, NaN.
  const Scalar inverse = weights.total == 0 ? Scalar(0) : Scalar(1) / weights.total;
  Vector merged;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    merged.values[i] = narrow<T>(sums[i] * inverse);
  }
  *reinterpret_cast<Vector*>(out + row * call.size + column) = merged;
}

template <typename T>
__global__ void __launch_bounds__(states_threads, 4)
    merge_states(const __grid_constant__ EkAttentionStates call) {
  constexpr int vector = 16 / sizeof(T);
  const unsigned lane = threadIdx.x % warp_lanes;
  const int64_t row =
      int64_t{blockIdx.x} * (states_threads / warp_lanes) + threadIdx.x / warp_lanes;
  if (row >= call.rows) {
    return;
  }
  const auto weights = row_weights<ScalarOf<T>>(call, row);
  const T* states = static_cast<const T*>(call.states);
  T* out = static_cast<T*>(call.out);
  if (call.aligned) {
    for (int64_t column = int64_t{lane} * vector; column < call.size;
         column += int64_t{warp_lanes} * vector) {
      merge_columns<vector>(call, row, column, weights, states, out);
    }
  } else {
    for (int64_t column = lane; column < call.size; column += warp_lanes) {
      merge_columns<1>(call, row, column, weights, states, out);
    }
  }
  if (lane == 0) {
    call.merged_lse[row] = static_cast<float>(
        weights.total == 0 ? minus_infinity<ScalarOf<T>> : weights.peak + log(weights.total));
  }
}

}  // namespace ensemble_kernels::cuda

// Reductions over a warp and over a block. They pair lanes and warps in a fixed way, so that a
// result is the same, bit by bit, on every run and on every thread.
#pragma once

#include "ensemble_kernels/cuda/launch.cuh"

namespace ensemble_kernels::cuda {

struct Add {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// A NaN is passed over.
struct Maximum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

template <typename T>
__device__ T from_lane_across(T value, int lanes) {
  return __shfl_xor_sync(all_lanes, value, lanes);
}

template <typename T, typename Combine>
__device__ T warp_reduce(T value, const Combine& combine) {
#pragma unroll
  for (int lanes = warp_lanes / 2; lanes > 0; lanes /= 2) {
    value = combine(value, from_lane_across(value, lanes));
  }
  return value;
}

// Of all threads of a block of `threads`, to all of them. Every thread must come.
template <unsigned threads, typename T, typename Combine>
__device__ T block_reduce(T value, T nothing, const Combine& combine) {
  static_assert(threads % warp_lanes == 0 && threads <= 1024, "whole warps, of a block");
  constexpr unsigned warps = threads / warp_lanes;
  __shared__ T of_warps[warps];
  const unsigned lane = threadIdx.x % warp_lanes;
  value = warp_reduce(value, combine);
  if (lane == 0) {
    of_warps[threadIdx.x / warp_lanes] = value;
  }
  __syncthreads();
  value = warp_reduce(lane < warps ? of_warps[lane] : nothing, combine);
  __syncthreads();  // before the next one writes
  return value;
}

// How much the threads before this one have, and all of them together.
struct Ranks {
  int before, all;
};

template <unsigned threads>
__device__ Ranks block_ranks(int count) {
  constexpr unsigned warps = threads / warp_lanes;
  static_assert(threads % warp_lanes == 0 && warps <= warp_lanes, "whole warps, of a block");
  __shared__ int of_warps[warps];
  const unsigned lane = threadIdx.x % warp_lanes, warp = threadIdx.x / warp_lanes;
  int upto = count;
#pragma unroll
  for (unsigned lanes = 1; lanes < warp_lanes; lanes *= 2) {
    const int lower = __shfl_up_sync(all_lanes, upto, lanes);
    upto += lane >= lanes ? lower : 0;
  }
  if (lane == warp_lanes - 1) {
    of_warps[warp] = upto;
  }
  __syncthreads();
  Ranks ranks{upto - count, 0};
  for (unsigned i = 0; i < warps; ++i) {
    ranks.before += i < warp ? of_warps[i] : 0;
    ranks.all += of_warps[i];
  }
  __syncthreads();  // before the next one writes
  return ranks;
}

}  // namespace ensemble_kernels::cuda

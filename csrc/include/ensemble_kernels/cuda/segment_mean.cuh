// `segment_mean`: means of values over segments, a warp a segment, in double precision.
//
// Floor: T·b bytes; the launch costs more.
#pragma once

#include "ensemble_kernels/cuda/logits.cuh"
#include "ensemble_kernels/cuda/reductions.cuh"

namespace ensemble_kernels::cuda {

constexpr unsigned mean_threads = 128;

template <typename T>
__global__ void __launch_bounds__(mean_threads) segment_means(const EkSegmentMean call) {
  const unsigned lane = threadIdx.x % warp_lanes;
  const int64_t segment =
      int64_t{blockIdx.x} * (mean_threads / warp_lanes) + threadIdx.x / warp_lanes;
  if (segment >= call.segments) {
    return;
  }
  const int64_t begin = call.offsets[segment * call.offset_stride];
  const int64_t end = call.offsets[(segment + 1) * call.offset_stride];
  const T* values = static_cast<const T*>(call.values);
  double total = 0;
  for (int64_t i = begin + lane; i < end; i += warp_lanes) {
    total += widen(values[i * call.stride]);
  }
  total = warp_reduce(total, Add{});
  if (lane == 0) {
    call.means[segment] = end > begin ? static_cast<float>(total / static_cast<double>(end - begin))
                                      : minus_infinity<float>;
  }
}

}  // namespace ensemble_kernels::cuda

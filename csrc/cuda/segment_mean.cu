#include "ensemble_kernels/cuda/segment_mean.cuh"

using namespace ensemble_kernels::cuda;

int ek_segment_mean(const EkSegmentMean* call, void* stream) {
  const int64_t blocks = ceil_div(call->segments, mean_threads / warp_lanes);
  if (blocks == 0) {
    return cudaSuccess;
  }
  if (blocks > most_blocks) {
    return cudaErrorInvalidConfiguration;
  }
  return with_type(call->type, [&](auto* element) -> int {
    using T = std::remove_pointer_t<decltype(element)>;
    return launch(segment_means<T>, dim3(static_cast<unsigned>(blocks)), mean_threads, stream,
                  *call);
  });
}

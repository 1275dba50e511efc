#include "ensemble_kernels/cuda/token_statistics.cuh"

using namespace ensemble_kernels::cuda;

int64_t ek_token_statistics_parts(int64_t rows, int64_t vocab_size) {
  return rows * ceil_div(vocab_size, ensemble_kernels::statistics_stretch) *
         int64_t{sizeof(ensemble_kernels::StretchStatistics)};
}

int ek_token_statistics(const EkTokenStatistics* given, void* stream) {
  EkTokenStatistics call = *given;
  call.stretches = ceil_div(call.vocab_size, ensemble_kernels::statistics_stretch);
  const int64_t blocks = call.rows * call.stretches;
  if (blocks == 0) {
    return cudaSuccess;
  }
  if (blocks > most_blocks) {
    return cudaErrorInvalidConfiguration;
  }
  const auto merging_blocks = ceil_div(call.rows, merging_threads / warp_lanes);
  return with_type(call.type, [&](auto* element) -> int {
    using T = std::remove_pointer_t<decltype(element)>;
    const cudaError_t error = launch(stretch_statistics<T>, dim3(static_cast<unsigned>(blocks)),
                                     statistics_threads, stream, call);
    return error != cudaSuccess
               ? error
               : launch(merge_stretches<T>, dim3(static_cast<unsigned>(merging_blocks)),
                        merging_threads, stream, call);
  });
}

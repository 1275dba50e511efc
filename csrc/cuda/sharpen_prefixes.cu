#include "ensemble_kernels/cuda/sharpen_prefixes.cuh"

using namespace ensemble_kernels::cuda;

int64_t ek_sharpen_prefixes_sums(int64_t rows, int64_t size) {
  return rows * sharpening_chunks(size);
}

int ek_sharpen_prefixes(const EkSharpening* call, void* stream) {
  const int64_t chunks = ek_sharpen_prefixes_sums(call->rows, call->size);
  const int64_t groups = call->rows * ceil_div(call->candidates, sharpening_threads);
  if (chunks > most_blocks || groups > most_blocks) {
    return cudaErrorInvalidConfiguration;
  }
  if (chunks == 0) {
    return cudaSuccess;
  }
  return with_type(call->type, [&](auto* element) -> int {
    using T = std::remove_pointer_t<decltype(element)>;
    const cudaError_t error = launch(copy_and_sum_chunks<T>, dim3(static_cast<unsigned>(chunks)),
                                     sharpening_threads, stream, *call);
    if (error != cudaSuccess || groups == 0) {
      return error;
    }
    return launch(sharpen_candidates<T>, dim3(static_cast<unsigned>(groups)), sharpening_threads,
                  stream, *call);
  });
}

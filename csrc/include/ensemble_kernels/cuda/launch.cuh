// A launch on the caller's stream, with its error.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace ensemble_kernels::cuda {

constexpr unsigned warp_lanes = 32;
constexpr unsigned all_lanes = 0xffffffffu;
constexpr int64_t most_blocks = 0x7fffffff;  // in the first dimension of a grid

template <typename... Parameters, typename... Given>
cudaError_t launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, void* stream,
                   Given&&... given) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, kernel, std::forward<Given>(given)...);
}

__host__ __device__ constexpr int64_t ceil_div(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

}  // namespace ensemble_kernels::cuda

// Kernels that touch what is not theirs, for the sanitizers to find: `memory_faults NAME` must die.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <memory>

namespace {

constexpr unsigned threads = 64;

__global__ void write_behind(int* out) { out[threadIdx.x + 1] = 1; }

template <typename T>
__global__ void write_behind_shared(T* out, unsigned shift) {
  __shared__ T shared[threads];
  shared[threadIdx.x + shift] = T(1);
  out[threadIdx.x] = shared[threadIdx.x];
}

__global__ void write_behind_own(int* out, unsigned shift) {
  int own[4] = {};
  volatile int* place = own;
  place[3 + shift] = 1;
  out[threadIdx.x] = place[0];
}

__global__ void load_unaligned(const unsigned* from, unsigned* out) {
  out[threadIdx.x] = reinterpret_cast<const uint4*>(from + 1)->x;
}

}  // namespace

int main(int count, char** names) {
  const auto asked = [&](const char* name) { return count == 2 && !std::strcmp(names[1], name); };
  const std::unique_ptr<int[]> out(new int[threads]);
  const cudaLaunchConfig_t config{dim3(1), dim3(threads), 0, nullptr};
  if (asked("global")) {
    cudaLaunchKernelEx(&config, write_behind, out.get());
  } else if (asked("shared")) {
    cudaLaunchKernelEx(&config, write_behind_shared<int>, out.get(), 1u);
  } else if (asked("local")) {
    cudaLaunchKernelEx(&config, write_behind_own, out.get(), 1u);
  } else if (asked("alignment")) {
    alignas(16) const unsigned from[8] = {};
    unsigned result[threads];
    cudaLaunchKernelEx(&config, load_unaligned, from, result);
  }
  std::puts("nothing was found");
}

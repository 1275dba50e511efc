// Runs CUDA kernels on the CPU, for tests: what of <cuda_runtime.h> the kernels of this project
// use. See README.md for what it finds and what it cannot.
#pragma once

#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "detail/block.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// One block runs at a time, on one thread of the system. Not thread_local, since AddressSanitizer
// guards static arrays alone.
#define __shared__ static

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using std::max;
using std::min;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719
};
using cudaStream_t = void*;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace emulator {

inline std::string last_fault;

// One for all launches, whose stacks are used again.
inline Block& the_block() {
  static Block block;
  return block;
}

inline cudaError_t failed(cudaError_t error, const std::string& what) {
  last_fault = what;
  return error;
}

template <typename... Parameters>
cudaError_t run_grid(void (*kernel)(Parameters...), const std::tuple<Parameters...>& given) {
  Block& block = the_block();
  Turns turns(gridDim.x * gridDim.y * gridDim.z);
  for (const unsigned i : turns.next()) {
    blockIdx = {i % gridDim.x, i / gridDim.x % gridDim.y, i / (gridDim.x * gridDim.y)};
    // A copy, since a kernel may write to its parameters.
    const std::string fault =
        block.run([&] { std::apply(kernel, std::tuple<Parameters...>(given)); });
    if (!fault.empty()) {
      return failed(cudaErrorLaunchFailure, fault);
    }
  }
  return cudaSuccess;
}

}  // namespace emulator

template <typename... Parameters, typename... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Given&&... given) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  const dim3 &grid = gridDim = config->gridDim, &size = blockDim = config->blockDim;
  const bool some = grid.x && grid.y && grid.z && size.x && size.y && size.z;
  if (!some || size.x * size.y * size.z > 1024 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535 || config->dynamicSmemBytes) {
    return emulator::failed(cudaErrorInvalidConfiguration, "no grid that a GPU would run");
  }
  std::tuple<Parameters...> parameters(std::forward<Given>(given)...);
  return emulator::run_grid(kernel, parameters);
}

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : emulator::last_fault.c_str();
}

// The barrier and the collectives know by their default arguments where they are called.

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::Block::running->barrier({file, line});
}

inline int __syncthreads_count(int predicate, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
  return emulator::Block::running->barrier({file, line}, predicate != 0);
}

namespace emulator {

template <typename T>
T of_lane(uint32_t mask, T value, unsigned lane, Site site) {
  static_assert(sizeof(T) <= 16, "a collective exchanges 16 bytes at the most");
  const char* all = Block::running->collective(mask, &value, sizeof(T), site);
  if (!(mask >> lane & 1)) {
    Block::running->fault("a lane reads from one that is not in the mask at " + site.name());
    Block::running->stop();
  }
  std::memcpy(&value, all + 16 * lane, sizeof(T));
  return value;
}

}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return emulator::of_lane(mask, value, static_cast<unsigned>(lane) % 32, {file, line});
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  return emulator::of_lane(mask, value, emulator::Block::current->lane ^ lanes, {file, line});
}

// As on a GPU, the first lanes get back their own.
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const unsigned lane = emulator::Block::current->lane;
  return emulator::of_lane(mask, value, lane < delta ? lane : lane - delta, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  const int given = predicate != 0;
  const char* all = emulator::Block::running->collective(mask, &given, sizeof given, {file, line});
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    int vote = 0;
    if (mask >> lane & 1) {
      std::memcpy(&vote, all + 16 * lane, sizeof vote);
    }
    votes |= static_cast<unsigned>(vote) << lane;
  }
  return votes;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

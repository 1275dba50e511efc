// That the emulator finds what it is there to find, and runs what is right.
#include <cuda_runtime.h>

#include <algorithm>

#include "check.hpp"

namespace {

constexpr unsigned threads = 64;
constexpr unsigned everyone = 0xffffffffu;

template <typename... Parameters, typename... Given>
cudaError_t launch(void (*kernel)(Parameters...), unsigned blocks, unsigned size, Given... given) {
  const cudaLaunchConfig_t config{dim3(blocks), dim3(size), 0, nullptr};
  return cudaLaunchKernelEx(&config, kernel, given...);
}

template <typename Body>
void in_each_order(const Body& body) {
  for (emulator::order = 0; emulator::order < 8; ++emulator::order) {
    check::context = "order " + std::to_string(emulator::order);
    body();
  }
  emulator::order = 0;
}

std::string fault_of(cudaError_t error) {
  CHECK_EQUAL(static_cast<int>(error), static_cast<int>(cudaErrorLaunchFailure));
  return cudaGetErrorString(error);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

__global__ void reverse(int* out, bool with_barrier) {
  __shared__ int shared[threads];
  const unsigned t = threadIdx.x;
  shared[t] = static_cast<int>(t + blockIdx.x);
  if (with_barrier) {
    __syncthreads();
  }
  out[blockIdx.x * threads + t] = shared[threads - 1 - t];
  if (with_barrier) {
    __syncthreads();  // before the next write
  }
  shared[t] = -1;
}

bool reversed(const std::vector<int>& out) {
  for (unsigned i = 0; i < out.size(); ++i) {
    if (out[i] != static_cast<int>(threads - 1 - i % threads + i / threads)) {
      return false;
    }
  }
  return true;
}

TEST(a_missing_barrier_shows_in_every_order_and_one_that_is_there_in_none) {
  in_each_order([] {
    std::vector<int> out(3 * threads);
    CHECK(launch(reverse, 3, threads, out.data(), true) == cudaSuccess);
    CHECK(reversed(out));
    CHECK(launch(reverse, 3, threads, out.data(), false) == cudaSuccess);
    CHECK(!reversed(out));
  });
}

__global__ void write_after_read(int* out) {
  __shared__ int shared[threads];
  const unsigned t = threadIdx.x;
  shared[t] = static_cast<int>(t);
  __syncthreads();
  out[t] = shared[t == 0 ? 0 : t - 1];
  shared[t] = -1;
}

TEST(a_write_that_does_not_wait_for_readers_shows_in_every_order) {
  in_each_order([] {
    std::vector<int> out(threads);
    CHECK(launch(write_after_read, 1, threads, out.data()) == cudaSuccess);
    CHECK(std::count(out.begin(), out.end(), -1) > 0);
  });
}

// A sum over the warps, twice, with one array: the second may be written before all have read.
__global__ void two_sums(int* out, bool with_barrier) {
  __shared__ int of_warps[threads / 32];
  const unsigned warp = threadIdx.x / 32;
  int sum = 0;
  for (int round = 1; round <= 2; ++round) {
    const int all = __popc(__ballot_sync(everyone, 1)) * round;
    if (threadIdx.x % 32 == 0) {
      of_warps[warp] = all;
    }
    __syncthreads();
    sum += of_warps[0] + of_warps[1];
    if (with_barrier) {
      __syncthreads();
    }
  }
  out[threadIdx.x] = sum;
}

TEST(a_warp_that_is_ahead_of_the_others_shows) {
  in_each_order([] {
    std::vector<int> out(threads);
    CHECK(launch(two_sums, 1, threads, out.data(), true) == cudaSuccess);
    CHECK(std::count(out.begin(), out.end(), 64 + 128) == threads);
    CHECK(launch(two_sums, 1, threads, out.data(), false) == cudaSuccess);
    CHECK(std::count(out.begin(), out.end(), 64 + 128) < threads);
  });
}

__global__ void last_block_wins(int* out) { out[threadIdx.x % 2] = static_cast<int>(blockIdx.x); }

TEST(blocks_take_their_turns_in_the_order_too) {
  std::vector<int> winners;
  in_each_order([&] {
    int out[2];
    CHECK(launch(last_block_wins, 9, 32, &out[0]) == cudaSuccess);
    winners.push_back(out[0]);
  });
  CHECK_EQUAL(winners[0], 8);
  CHECK_EQUAL(winners[1], 0);
  CHECK(*std::min_element(winners.begin() + 2, winners.end()) !=
        *std::max_element(winners.begin() + 2, winners.end()));
}

__global__ void barrier_for_some() {
  if (threadIdx.x < 16) {
    __syncthreads();
  }
}

__global__ void two_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(a_barrier_that_not_all_threads_reach_is_reported) {
  in_each_order([] {
    const std::string fault = fault_of(launch(barrier_for_some, 1, threads));
    CHECK(contains(fault, "16 at the barrier") && contains(fault, "48 have finished"));
    CHECK(contains(fault, "test_emulator.cpp:"));
    CHECK(contains(fault_of(launch(two_barriers, 1, threads)), "at two places"));
  });
}

__global__ void collective_for_some(int* out) {
  if (threadIdx.x % 32 < 16) {
    out[threadIdx.x] = __shfl_xor_sync(everyone, 1, 1);
  } else {
    __syncthreads();
  }
}

__global__ void from_outside_of_the_mask(int* out) {
  if (threadIdx.x % 32 < 16) {
    out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
  }
}

__global__ void outside_of_the_mask(int* out) { out[threadIdx.x] = __shfl_sync(1u, 1, 0); }

TEST(a_collective_that_not_all_lanes_reach_is_reported) {
  std::vector<int> out(threads);
  in_each_order([&] {
    const std::string fault = fault_of(launch(collective_for_some, 1, threads, out.data()));
    CHECK(contains(fault, "32 at the collective") && contains(fault, "32 at the barrier"));
    CHECK(contains(fault_of(launch(from_outside_of_the_mask, 1, threads, out.data())),
                   "not in the mask"));
    CHECK(contains(fault_of(launch(outside_of_the_mask, 1, threads, out.data())),
                   "its own collective"));
  });
}

__global__ void sums(int* out) {
  int value = static_cast<int>(threadIdx.x);
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(everyone, value, lanes);
  }
  int before = 1;
  for (unsigned lanes = 1; lanes < 32; lanes *= 2) {
    const int lower = __shfl_up_sync(everyone, before, lanes);
    before += threadIdx.x % 32 >= lanes ? lower : 0;
  }
  const unsigned odd = __ballot_sync(everyone, threadIdx.x % 2);
  out[threadIdx.x] = value + 1000 * before + 100000 * __popc(odd);
}

TEST(collectives_exchange_what_the_lanes_of_a_warp_have) {
  in_each_order([] {
    std::vector<int> out(threads);
    CHECK(launch(sums, 1, threads, out.data()) == cudaSuccess);
    for (unsigned i = 0; i < threads; ++i) {
      const int sum = i < 32 ? 31 * 16 : 31 * 16 + 32 * 32;
      CHECK_EQUAL(out[i], sum + 1000 * static_cast<int>(i % 32 + 1) + 1600000);
    }
  });
}

__global__ void votes(int* out) {
  const int t = static_cast<int>(threadIdx.x);
  const int few = __syncthreads_count(t < 5), many = __syncthreads_count(t >= 5);
  out[t] = 1000 * few + many;
}

TEST(a_barrier_counts_the_votes_of_a_block) {
  in_each_order([] {
    std::vector<int> out(threads);
    CHECK(launch(votes, 1, threads, out.data()) == cudaSuccess);
    CHECK(std::count(out.begin(), out.end(), 5059) == threads);
  });
}

__global__ void halves(int* out) {
  const bool low = threadIdx.x < 16;
  int value = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 100; ++round) {
    value = low ? __shfl_xor_sync(0xffffu, value, 1) : __shfl_xor_sync(0xffff0000u, value, 2);
  }
  out[threadIdx.x] = value;
}

TEST(halves_of_a_warp_may_part) {
  in_each_order([] {
    std::vector<int> out(32);
    CHECK(launch(halves, 1, 32, out.data()) == cudaSuccess);
    for (int i = 0; i < 32; ++i) {
      CHECK_EQUAL(out[i], i);
    }
  });
}

__global__ void places(uint3* out) {
  const unsigned thread = threadIdx.x + blockDim.x * threadIdx.y;
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  out[block * blockDim.x * blockDim.y + thread] = {threadIdx.y, blockIdx.y, blockIdx.z};
}

TEST(every_thread_of_every_block_knows_its_place) {
  in_each_order([] {
    std::vector<uint3> out(6 * 2 * 3 * 4);
    const cudaLaunchConfig_t config{dim3(1, 3, 2), dim3(4, 2), 0, nullptr};
    CHECK(cudaLaunchKernelEx(&config, places, out.data()) == cudaSuccess);
    for (unsigned i = 0; i < 6 * 8; ++i) {
      CHECK(out[i].x == i % 8 / 4 && out[i].y == i / 8 % 3 && out[i].z == i / 24);
    }
  });
}

TEST(grids_that_a_gpu_would_refuse_are_refused) {
  CHECK(launch(sums, 0, 32, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(launch(sums, 1, 1056, nullptr) == cudaErrorInvalidConfiguration);
  const cudaLaunchConfig_t tall{dim3(1, 65536), dim3(32), 0, nullptr};
  CHECK(cudaLaunchKernelEx(&tall, sums, nullptr) == cudaErrorInvalidConfiguration);
}

}  // namespace

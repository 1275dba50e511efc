// `sharpen_prefixes`: the mass of a candidate's continuations, which lie behind it in the union.
//
// Floor: 2·R·U·b bytes and the ranges, of which a row has at most 1 / threshold at each depth. The
// first launch copies and, since it reads everything anyway, sums each chunk in double precision;
// the second asks every candidate and adds up a likely one's range: whole chunks from their sums,
// so that even b" ", with half of the union behind it, reads no more than two chunks.
#pragma once

#include "ensemble_kernels/cuda/logits.cuh"
#include "ensemble_kernels/cuda/reductions.cuh"

namespace ensemble_kernels::cuda {

constexpr unsigned sharpening_threads = 256;
constexpr int copied_by_thread = 16;
constexpr int64_t sharpening_chunk = int64_t{sharpening_threads} * copied_by_thread;

struct AsItIs {
  template <typename T>
  __device__ T operator()(T value) const {
    return value;
  }
};

__host__ __device__ inline int64_t sharpening_chunks(int64_t size) {
  return ceil_div(size, sharpening_chunk);
}

template <typename T>
__global__ void __launch_bounds__(sharpening_threads, 2)
    copy_and_sum_chunks(const __grid_constant__ EkSharpening call) {
  using Layout = Tile<T, sharpening_threads>;
  const int64_t chunks = sharpening_chunks(call.size);
  const int64_t row = blockIdx.x / chunks, start = blockIdx.x % chunks * sharpening_chunk;
  const int64_t count = call.size - start;
  const T* from = static_cast<const T*>(call.probabilities) + row * call.row_stride +
                  start * call.column_stride;
  T* to = static_cast<T*>(call.sharpened) + row * call.size + start;
  T held[copied_by_thread];
  load_tile<sharpening_threads>(from, call.column_stride, count, T{}, AsItIs{}, held);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < copied_by_thread; ++i) {
    const int column = Layout::column(i);
    if (column < count) {
      to[column] = held[i];
      sum += widen(held[i]);
    }
  }
  sum = block_reduce<sharpening_threads>(sum, 0.0, Add{});
  if (threadIdx.x == 0) {
    call.sums[blockIdx.x] = sum;
  }
}

// Of a row's columns from `begin` to before `end`. Every thread must come.
template <typename T>
__device__ double range_sum(const EkSharpening& call, int64_t row, int64_t begin, int64_t end) {
  const T* data = static_cast<const T*>(call.probabilities) + row * call.row_stride;
  const double* sums = call.sums + row * sharpening_chunks(call.size);
  double sum = 0;
  const auto add_columns = [&](int64_t from, int64_t to) {
    for (int64_t i = from + threadIdx.x; i < to; i += sharpening_threads) {
      sum += widen(data[i * call.column_stride]);
    }
  };
  const int64_t first = ceil_div(begin, sharpening_chunk), last = end / sharpening_chunk;
  if (first >= last) {
    add_columns(begin, end);
  } else {
    add_columns(begin, first * sharpening_chunk);
    for (int64_t i = first + threadIdx.x; i < last; i += sharpening_threads) {
      sum += sums[i];
    }
    add_columns(last * sharpening_chunk, end);
  }
  return block_reduce<sharpening_threads>(sum, 0.0, Add{});
}

// A block takes as many candidates of one row as it has threads. One that is repeated is written
// several times, with the same bits.
template <typename T>
__global__ void __launch_bounds__(sharpening_threads, 2)
    sharpen_candidates(const __grid_constant__ EkSharpening call) {
  const int64_t groups = ceil_div(call.candidates, sharpening_threads);
  const int64_t row = blockIdx.x / groups;
  const int64_t candidate = blockIdx.x % groups * sharpening_threads + threadIdx.x;
  int64_t column = -1;
  if (candidate < call.candidates) {
    column = call.columns[row * call.candidate_row_stride + candidate * call.candidate_stride];
  }
  bool likely = false;
  if (column >= 0 && column < call.size) {
    const T* data = static_cast<const T*>(call.probabilities) + row * call.row_stride;
    likely = static_cast<double>(widen(data[column * call.column_stride])) > call.threshold;
  }
  __shared__ int64_t likely_columns[sharpening_threads];
  const Ranks ranks = block_ranks<sharpening_threads>(likely);
  if (likely) {
    likely_columns[ranks.before] = column;
  }
  __syncthreads();
  for (int i = 0; i < ranks.all; ++i) {
    const int64_t begin = likely_columns[i];
    const int64_t end = call.prefix_end[begin * call.end_stride];
    const double sum = range_sum<T>(call, row, begin, end < call.size ? end : call.size);
    if (threadIdx.x == 0) {
      static_cast<T*>(call.sharpened)[row * call.size + begin] = narrow<T>(sum);
    }
  }
}

}  // namespace ensemble_kernels::cuda

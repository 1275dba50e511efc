// `compact_kv_`: moves of whole slots within a cache, in one launch for all layers and heads.
//
// Floor: 2 · (bytes of the kept slots), read once and written once; at decoding sizes the launch
// costs more than the moves.
//
// A thread owns a column: one unit of up to 16 bytes of each slot of one [S, D] matrix. It walks
// the kept slots upward, so that no thread touches what another owns and no barrier is needed: a
// destination lies at or before its source, hence before all later sources. For the same reason
// some slots may be loaded before any is stored, which hides the latency of memory. How many slots
// there are is read on the device, so that a captured graph replays with other lengths.
#pragma once

#include "cuda/launchers.h"
#include "ensemble_kernels/cuda/launch.cuh"

namespace ensemble_kernels::cuda {

constexpr unsigned compaction_threads = 128;
constexpr int slots_in_flight = 8;

template <typename Unit>
struct Column {
  char* data;
  int64_t slot_stride;

  __device__ Unit& at(int64_t slot) const {
    return *reinterpret_cast<Unit*>(data + slot * slot_stride);
  }
};

// The byte offset of a matrix, and its row of `keep`.
__device__ inline int64_t matrix_offset(const EkCompaction& call, int64_t matrix, int64_t& row) {
  int64_t offset = 0;
  for (int dim = call.leading - 1; dim >= 0; --dim) {
    const int64_t place = matrix % call.sizes[dim];
    matrix /= call.sizes[dim];
    offset += place * call.strides[dim];
    row = dim == call.batch ? place : row;
  }
  return offset;
}

template <typename Unit>
__global__ void __launch_bounds__(compaction_threads) compact_columns(const EkCompaction call) {
  const int64_t thread = int64_t{blockIdx.x} * compaction_threads + threadIdx.x;
  const int64_t columns = call.groups * call.group_units;
  if (thread >= call.matrices * columns) {
    return;
  }
  const int64_t unit = thread % columns;
  int64_t row = 0;
  const int64_t offset = matrix_offset(call, thread / columns, row) +
                         unit / call.group_units * call.group_stride +
                         unit % call.group_units * int64_t{sizeof(Unit)};
  const Column<Unit> column{static_cast<char*>(call.cache) + offset, call.slot_stride};
  const int64_t* keep = call.keep + row * call.keep_row_stride;
  const int64_t start = call.start[row * call.start_stride];

  for (int64_t first = 0; first < call.kept; first += slots_in_flight) {
    Unit held[slots_in_flight];
    int64_t source[slots_in_flight];
#pragma unroll
    for (int i = 0; i < slots_in_flight; ++i) {
      const int64_t slot = first + i < call.kept ? keep[(first + i) * call.keep_stride] : -1;
      // Padding, and what the contract rules out, moves nothing: it must not leave the cache.
      const int64_t destination = start + first + i;
      source[i] = destination >= 0 && destination < slot && slot < call.slots ? slot : -1;
      if (source[i] >= 0) {
        held[i] = column.at(slot);
      }
    }
#pragma unroll
    for (int i = 0; i < slots_in_flight; ++i) {
      if (source[i] >= 0) {
        column.at(start + first + i) = held[i];
      }
    }
  }
}

}  // namespace ensemble_kernels::cuda

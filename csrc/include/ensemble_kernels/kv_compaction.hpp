// `compact_kv_`: moves of whole slots within a cache.
//
// Floor: 2 · (bytes of the kept slots), read once and written once; at decoding sizes the call
// itself costs more than the moves.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace ensemble_kernels {

struct SlotRun {
  int64_t destination, source, count;
};

// Runs of neighbouring slots among `keep`, which ascends; those that keep their place are left out.
inline std::vector<SlotRun> slot_runs(const std::vector<int64_t>& keep, int64_t destination) {
  std::vector<SlotRun> runs;
  const int64_t n = static_cast<int64_t>(keep.size());
  for (int64_t begin = 0, end; begin < n; begin = end) {
    end = begin + 1;
    while (end < n && keep[end] == keep[end - 1] + 1) {
      ++end;
    }
    if (keep[begin] != destination + begin) {
      runs.push_back({destination + begin, keep[begin], end - begin});
    }
  }
  return runs;
}

// Moves the runs of one [S, D] matrix, the first run first: a destination lies at or before its
// source, hence before all later sources. Strides are in bytes.
inline void move_runs(char* matrix, const std::vector<SlotRun>& runs, int64_t slot_stride,
                      int64_t element_stride, int64_t row_length, int64_t element_size) {
  const bool rows_whole = element_stride == element_size;
  const bool slots_whole = rows_whole && slot_stride == row_length * element_size;
  for (const SlotRun& run : runs) {
    char* to = matrix + run.destination * slot_stride;
    const char* from = matrix + run.source * slot_stride;
    if (slots_whole) {
      std::memmove(to, from, run.count * slot_stride);
      continue;
    }
    for (int64_t i = 0; i < run.count; ++i, to += slot_stride, from += slot_stride) {
      if (rows_whole) {
        std::memmove(to, from, row_length * element_size);
        continue;
      }
      for (int64_t d = 0; d < row_length; ++d) {
        std::memcpy(to + d * element_stride, from + d * element_stride, element_size);
      }
    }
  }
}

}  // namespace ensemble_kernels

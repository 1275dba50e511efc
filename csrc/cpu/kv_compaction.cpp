// `compact_kv_` on CPU tensors.
#include "ensemble_kernels/kv_compaction.hpp"

#include "ensemble_kernels/isa.hpp"
#include "kv_arguments.hpp"

namespace ensemble_kernels {

namespace {

// Each matrix lies in pages of its own, of which the processor fetches nothing ahead.
constexpr int64_t matrices_ahead = 4, most_fetched = 2048;

void fetch(const char* matrix, const std::vector<SlotRun>& runs, int64_t slot_stride) {
  if (!runs.empty() && slot_stride > 0) {
    const SlotRun& run = runs.front();
    const int64_t bytes = std::min(run.count * slot_stride, most_fetched);
    for (int64_t at = 0; at < bytes; at += 64) {
      EK_PREFETCH(matrix + run.source * slot_stride + at);
      EK_PREFETCH(matrix + run.destination * slot_stride + at);
    }
  }
}

}  // namespace

void compact_kv_(Tensor cache, Tensor keep, Tensor destination_start) {
  count_call("compact_kv_");
  const int64_t slots = cache.size(-2), size = element_size(cache);
  std::vector<std::vector<SlotRun>> runs;
  bool any = false;
  double bytes = 0;
  for (const KeptSlots& kept : checked_keep(keep, destination_start, slots)) {
    runs.push_back(slot_runs(kept.slots, kept.start));
    any = any || !runs.back().empty();
    for (const SlotRun& run : runs.back()) {
      bytes += static_cast<double>(run.count * cache.size(-1) * size);
    }
  }
  if (!any) {
    return;
  }
  const Leading leading(cache, size, keep.dim() == 2);
  char* data = static_cast<char*>(cache.mutable_data_ptr());
  const int64_t slot_stride = cache.stride(-2) * size, element_stride = cache.stride(-1) * size;
  const int64_t row_length = cache.size(-1);
  for_each_unit(leading.count(), 10 + bytes / static_cast<double>(runs.size()) / 30, [&](int64_t i) {
    const auto [ahead, ahead_row] = leading.at(std::min(i + matrices_ahead, leading.count() - 1));
    fetch(data + ahead, runs[ahead_row], slot_stride);
    const auto [offset, row] = leading.at(i);
    move_runs(data + offset, runs[row], slot_stride, element_stride, row_length, size);
  });
}

}  // namespace ensemble_kernels

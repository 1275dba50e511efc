// `compact_kv_` on CPU tensors.
#include "ensemble_kernels/kv_compaction.hpp"

#include <utility>

#include "arguments.hpp"
#include "ensemble_kernels/isa.hpp"

namespace ensemble_kernels {

namespace {

int64_t element_size(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Bool:
    case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e4m3fnuz:
    case ScalarType::Float8_e5m2:
    case ScalarType::Float8_e5m2fnuz:
    case ScalarType::Float8_e8m0fnu:
    case ScalarType::Float4_e2m1fn_x2:
      return 1;
    case ScalarType::Short:
    case ScalarType::UInt16:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Int:
    case ScalarType::UInt32:
    case ScalarType::Float:
    case ScalarType::ComplexHalf:
      return 4;
    case ScalarType::Long:
    case ScalarType::UInt64:
    case ScalarType::Double:
    case ScalarType::ComplexFloat:
      return 8;
    case ScalarType::ComplexDouble:
      return 16;
    default:
      throw std::invalid_argument("cache must be of a dtype whose elements are whole bytes");
  }
}

// The slots that one row of `keep` names, without the padding at its end.
std::vector<int64_t> checked_keep(const std::string& name, const int64_t* keep, int64_t count,
                                  int64_t stride, int64_t slots, bool padded,
                                  const std::string& start_name, int64_t start) {
  std::vector<int64_t> kept(count);
  for (int64_t i = 0; i < count; ++i) {
    kept[i] = keep[i * stride];
  }
  while (padded && !kept.empty() && kept.back() == -1) {
    kept.pop_back();
  }
  if (start < 0) {
    throw std::invalid_argument(start_name + " must not be negative, got " + std::to_string(start));
  }
  int64_t previous = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(kept.size()); ++i) {
    const std::string at = name + "[" + std::to_string(i) + "]";
    if (kept[i] < 0 || kept[i] >= slots) {
      throw std::invalid_argument(at + " must be a slot from 0 to " + std::to_string(slots - 1) +
                                  ", got " + std::to_string(kept[i]));
    }
    if (kept[i] <= previous) {
      throw std::invalid_argument(name + " must ascend strictly, got " + std::to_string(previous) +
                                  " before " + std::to_string(kept[i]));
    }
    if (kept[i] < start + i) {
      throw std::invalid_argument(at + " must be at or behind its destination " +
                                  std::to_string(start + i) + ", got " + std::to_string(kept[i]));
    }
    previous = kept[i];
  }
  return kept;
}

// The leading dimensions of a cache [..., S, D], neighbours taken for one where their strides allow;
// `batch` is the fourth-last dimension, which stays one of its own where rows differ.
class Leading {
 public:
  Leading(const Tensor& cache, int64_t element_size, bool rows_differ) {
    const int64_t dimensions = cache.dim() - 2;
    for (int64_t dim = 0; dim < dimensions; ++dim) {
      const int64_t size = cache.size(dim), stride = cache.stride(dim) * element_size;
      const bool batch = rows_differ && dim == dimensions - 2;
      const bool after_batch = batch_ >= 0 && batch_ == static_cast<int64_t>(sizes_.size()) - 1;
      count_ *= size;
      if (!sizes_.empty() && !batch && !after_batch && strides_.back() == size * stride) {
        sizes_.back() *= size;
        strides_.back() = stride;
        continue;
      }
      if (batch) {
        batch_ = static_cast<int64_t>(sizes_.size());
      }
      sizes_.push_back(size);
      strides_.push_back(stride);
    }
  }

  int64_t count() const { return count_; }

  // Where the i-th matrix begins, in bytes, and its place in `batch`.
  std::pair<int64_t, int64_t> at(int64_t i) const {
    int64_t offset = 0, row = 0;
    for (int64_t dim = static_cast<int64_t>(sizes_.size()) - 1; dim >= 0; --dim) {
      const int64_t place = i % sizes_[dim];
      i /= sizes_[dim];
      offset += place * strides_[dim];
      row = dim == batch_ ? place : row;
    }
    return {offset, row};
  }

 private:
  std::vector<int64_t> sizes_, strides_;
  int64_t count_ = 1, batch_ = -1;
};

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
  const bool by_row = keep.dim() == 2;
  const int64_t rows = by_row ? keep.size(0) : 1;
  const int64_t* kept = data_of<int64_t>(keep);
  const int64_t* starts = data_of<int64_t>(destination_start);
  std::vector<std::vector<SlotRun>> runs;
  bool any = false;
  double bytes = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const std::string at = by_row ? "[" + std::to_string(row) + "]" : "";
    const int64_t start = starts[by_row ? row * destination_start.stride(0) : 0];
    runs.push_back(slot_runs(
        checked_keep("keep" + at, kept + (by_row ? row * keep.stride(0) : 0), keep.size(-1),
                     keep.stride(-1), slots, by_row, "destination_start" + at, start),
        start));
    any = any || !runs.back().empty();
    for (const SlotRun& run : runs.back()) {
      bytes += static_cast<double>(run.count * cache.size(-1) * size);
    }
  }
  if (!any) {
    return;
  }
  const Leading leading(cache, size, by_row);
  char* data = static_cast<char*>(cache.mutable_data_ptr());
  const int64_t slot_stride = cache.stride(-2) * size, element_stride = cache.stride(-1) * size;
  const int64_t row_length = cache.size(-1);
  for_each_unit(leading.count(), 10 + bytes / static_cast<double>(rows) / 30, [&](int64_t i) {
    const auto [ahead, ahead_row] = leading.at(std::min(i + matrices_ahead, leading.count() - 1));
    fetch(data + ahead, runs[ahead_row], slot_stride);
    const auto [offset, row] = leading.at(i);
    move_runs(data + offset, runs[row], slot_stride, element_stride, row_length, size);
  });
}

}  // namespace ensemble_kernels

// What `compact_kv_` asks of its arguments, on every device.
#pragma once

#include <utility>

#include "arguments.hpp"

namespace ensemble_kernels {

// In bytes.
int64_t element_size(const Tensor& tensor);

// What one row of `keep` says, without the padding at its end.
struct KeptSlots {
  std::vector<int64_t> slots;
  int64_t start;
};

// Of all rows, read on the CPU. Raises std::invalid_argument where a row does not ascend, names
// slots that are not there or moves any to the right.
std::vector<KeptSlots> checked_keep(const Tensor& keep, const Tensor& destination_start,
                                    int64_t slots);

// The leading dimensions of a cache [..., S, D], neighbours taken for one where their strides
// allow; `batch` is the fourth-last dimension, which stays one of its own where rows differ.
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
  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<int64_t>& strides() const { return strides_; }  // in bytes
  int64_t batch() const { return batch_; }                          // -1: rows do not differ

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

}  // namespace ensemble_kernels

#include "arguments.hpp"

#include <cstring>

namespace ensemble_kernels {

std::vector<int64_t> checked_offsets(const std::string& name, const Tensor& offsets, int64_t length,
                                     int64_t batch_row) {
  const bool by_row = offsets.dim() == 2;
  const int64_t count = offsets.size(by_row ? 1 : 0), stride = offsets.stride(by_row ? 1 : 0);
  const int32_t* data = data_of<int32_t>(offsets) + (by_row ? batch_row * offsets.stride(0) : 0);
  std::vector<int64_t> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = data[i * stride];
  }
  if (values[0] != 0) {
    throw std::invalid_argument(name + " must start at 0, got " + std::to_string(values[0]));
  }
  for (int64_t i = 1; i < count; ++i) {
    if (values[i] < values[i - 1]) {
      std::string all;
      for (const int64_t value : values) {
        all += (all.empty() ? "" : ", ") + std::to_string(value);
      }
      throw std::invalid_argument(name + " must be non-decreasing, got [" + all + "]");
    }
  }
  if (values[count - 1] > length) {
    throw std::invalid_argument(name + " must end at or before " + std::to_string(length) +
                                ", got " + std::to_string(values[count - 1]));
  }
  return values;
}

}  // namespace ensemble_kernels

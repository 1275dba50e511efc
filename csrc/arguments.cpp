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

void check_token_ids(const Tensor& token_ids, int64_t vocab_size) {
  const int64_t* ids = data_of<int64_t>(token_ids);
  for (int64_t row = 0; row < token_ids.size(0); ++row) {
    const int64_t id = ids[row * token_ids.stride(0)];
    if (id < 0 || id >= vocab_size) {
      throw std::invalid_argument("token_ids[" + std::to_string(row) +
                                  "] must be from 0 to vocab_size - 1 = " +
                                  std::to_string(vocab_size - 1) + ", got " + std::to_string(id));
    }
  }
}

void check_columns(const Tensor& columns, int64_t size) {
  const int64_t* data = data_of<int64_t>(columns);
  const int64_t rows = columns.size(0), count = columns.size(1);
  const int64_t row_stride = columns.stride(0), stride = columns.stride(1);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t column = data[row * row_stride + i * stride];
      if (column < -1 || column >= size) {
        throw std::invalid_argument("columns must be from -1 to " + std::to_string(size - 1) +
                                    ", got " + std::to_string(column));
      }
    }
  }
}

}  // namespace ensemble_kernels

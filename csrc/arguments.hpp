// What the operators' torch side shares: dtypes, strides, memory for scratch, and work on threads.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "ensemble_kernels/scalars.hpp"

namespace ensemble_kernels {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// How often each operator's native kernel has run: what shows a test that it did.
void count_call(const char* operator_name);

template <typename T>
struct TypeTag {
  using Type = T;
};

// Calls `body(TypeTag<T>)` with the element type of a floating-point tensor.
template <typename Body>
auto with_float_type(const Tensor& tensor, const Body& body) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return body(TypeTag<float>{});
    case ScalarType::Double:
      return body(TypeTag<double>{});
    case ScalarType::Half:
      return body(TypeTag<Float16>{});
    case ScalarType::BFloat16:
      return body(TypeTag<BFloat16>{});
    default:
      throw std::invalid_argument("expected a tensor of a floating-point dtype");
  }
}

template <typename T>
const T* data_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
T* writable(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

inline Tensor empty_cpu(const std::vector<int64_t>& sizes, ScalarType dtype) {
  return torch::stable::empty(sizes, dtype, std::nullopt,
                              torch::stable::Device(torch::headeronly::DeviceType::CPU));
}

// Offsets of segments as int64, `[N+1]`: from 0, non-decreasing, the last at most `length`.
// Raises std::invalid_argument otherwise.
std::vector<int64_t> checked_offsets(const std::string& name, const Tensor& offsets,
                                     int64_t length, int64_t batch_row = -1);

// Raises std::invalid_argument for a token id that is not below `vocab_size`.
void check_token_ids(const Tensor& token_ids, int64_t vocab_size);

// Raises std::invalid_argument for a column that is neither -1 nor below `size`.
void check_columns(const Tensor& columns, int64_t size);

// `body(i)` for each i below `count`, on all threads where there is work for them: `cost` is that
// of one i, in units of about a nanosecond. Threads take the next i when they are done, since units
// of work differ; what they compute may depend on i alone.
template <typename Body>
void for_each_unit(int64_t count, double cost, const Body& body) {
  constexpr double worth_a_thread = 10000;
  const int64_t wanted = static_cast<int64_t>(static_cast<double>(count) * cost / worth_a_thread) + 1;
  const int64_t available = torch::stable::get_num_threads();
  const int64_t threads = std::min(count, std::min(wanted, available));
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) {
      body(i);
    }
    return;
  }
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      for (int64_t i = next++; i < count; i = next++) {
        body(i);
      }
    }
  });
}

}  // namespace ensemble_kernels

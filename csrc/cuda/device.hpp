// What the operators' torch side needs of the device.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <string>

#include "arguments.hpp"
#include "cuda/launchers.h"

namespace ensemble_kernels::cuda {

// Makes the device of a tensor the current one for as long as it lives.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const Tensor& tensor);

  // The caller's, on that device.
  void* stream() const { return stream_; }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  void* stream_ = nullptr;
};

// Raises std::runtime_error for what a launcher returned.
void check_launch(const char* operator_name, int error);

// Whether values of index tensors are checked: reading them back stops the queue, so only with
// ENSEMBLE_KERNELS_DEBUG=1.
bool contents_are_checked();

// As the launchers name it. Raises std::invalid_argument for what is no floating-point dtype.
int32_t type_of(const Tensor& tensor);

inline Tensor on_cpu(const Tensor& tensor) {
  return torch::stable::to(tensor,
                           torch::stable::Device(torch::headeronly::DeviceType::CPU));
}

inline Tensor empty_beside(const Tensor& tensor, const std::vector<int64_t>& sizes,
                           ScalarType dtype) {
  return torch::stable::empty(sizes, dtype, std::nullopt, tensor.device());
}

}  // namespace ensemble_kernels::cuda

#include <cstdlib>
#include <cstring>

#include "cuda/device.hpp"

namespace ensemble_kernels::cuda {

void check_launch(const char* operator_name, int error) {
  if (error != 0) {
    throw std::runtime_error(std::string(operator_name) +
                             ": CUDA could not launch: " + ek_error_name(error));
  }
}

bool contents_are_checked() {
  const char* value = std::getenv("ENSEMBLE_KERNELS_DEBUG");
  return value && std::strcmp(value, "1") == 0;
}

int32_t type_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return EK_FLOAT32;
    case ScalarType::Double:
      return EK_FLOAT64;
    case ScalarType::Half:
      return EK_FLOAT16;
    case ScalarType::BFloat16:
      return EK_BFLOAT16;
    default:
      throw std::invalid_argument("expected a tensor of a floating-point dtype");
  }
}

}  // namespace ensemble_kernels::cuda

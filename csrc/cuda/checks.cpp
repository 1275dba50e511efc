#include <cstdlib>
#include <cstring>

#include "device.hpp"

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

}  // namespace ensemble_kernels::cuda

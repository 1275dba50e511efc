#include "cuda/device.hpp"

#include <dlfcn.h>

#include <cstdint>

namespace ensemble_kernels::cuda {

namespace {

using CurrentStream = int32_t (*)(int32_t device, void** stream);

// The stable headers have it from torch 2.13 on. Tensors on a GPU are there, and so is
// libtorch_cuda; one that is not loaded yet would be another one.
CurrentStream current_stream() {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* found = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
  if (!found) {
    throw std::runtime_error("libtorch_cuda.so is not loaded, or tells no current stream");
  }
  return reinterpret_cast<CurrentStream>(found);
}

}  // namespace

OnDeviceOf::OnDeviceOf(const Tensor& tensor) : guard_(tensor.get_device_index()) {
  static const CurrentStream find = current_stream();
  if (find(tensor.get_device_index(), &stream_) != 0) {
    throw std::runtime_error("torch told no current stream");
  }
}

}  // namespace ensemble_kernels::cuda

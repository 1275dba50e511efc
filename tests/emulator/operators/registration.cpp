// The operators of csrc/cuda, run on CPU tensors by the emulator: their torch side is the very one
// that a GPU gets. The schemas are defined in Python, copied from the real operators.
#include <torch/csrc/stable/library.h>

#include <cuda_runtime.h>

#include "cuda/device.hpp"
#include "cuda/operators.hpp"

namespace ensemble_kernels {

void count_call(const char*) {}

namespace cuda {

OnDeviceOf::OnDeviceOf(const Tensor&) {}

}  // namespace cuda

namespace {

void set_order(int64_t order) { emulator::order = static_cast<unsigned>(order); }

}  // namespace

}  // namespace ensemble_kernels

STABLE_TORCH_LIBRARY_IMPL(ensemble_kernels_emulated, CPU, m) {
  ensemble_kernels::cuda::implement_operators(m);
  m.impl("merge_attention_states", TORCH_BOX(&ensemble_kernels::cuda::merge_attention_states));
}

STABLE_TORCH_LIBRARY_FRAGMENT(ensemble_kernels_emulated, m) { m.def("set_order(int order) -> ()"); }

STABLE_TORCH_LIBRARY_IMPL(ensemble_kernels_emulated, CompositeExplicitAutograd, m) {
  m.impl("set_order", TORCH_BOX(&ensemble_kernels::set_order));
}

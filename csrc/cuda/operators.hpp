// The operators on CUDA tensors, with the arguments of the schemas in ensemble_kernels/_library.py.
// Shapes, dtypes and devices have been checked in Python. Nothing here waits for the device.
#pragma once

#include <torch/csrc/stable/library.h>

#include "arguments.hpp"

namespace ensemble_kernels::cuda {

void compact_kv_(Tensor cache, Tensor keep, Tensor destination_start);

// For the dispatch key that the library `m` is made for.
template <typename Library>
void implement_operators(Library& m) {
  m.impl("compact_kv_", TORCH_BOX(&compact_kv_));
}

}  // namespace ensemble_kernels::cuda

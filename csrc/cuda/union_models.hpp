// The arguments that the operators over a union vocabulary share.
#pragma once

#include <vector>

#include "device.hpp"

namespace ensemble_kernels::cuda {

// As the launchers take them, and what must live until they are called.
struct UnionArguments {
  EkUnionModels all{};
  std::vector<Tensor> kept;
};

// Raises std::invalid_argument for more models than a launch can be told of, for weights and
// temperatures of another dtype and, where contents are checked, for what they hold.
UnionArguments union_arguments(const std::vector<Tensor>& logits,
                               const std::vector<Tensor>& map_offsets,
                               const std::vector<Tensor>& map_ids, const Tensor& weights,
                               const Tensor& temperature);

}  // namespace ensemble_kernels::cuda

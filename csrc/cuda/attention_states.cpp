// `merge_attention_states` on CUDA tensors.
#include "cuda/device.hpp"
#include "cuda/operators.hpp"

namespace ensemble_kernels::cuda {

std::tuple<Tensor, Tensor> merge_attention_states(Tensor states, Tensor lse) {
  count_call("merge_attention_states");
  if (lse.scalar_type() != ScalarType::Float || states.dim() != lse.dim() + 1 || lse.dim() < 1) {
    throw std::invalid_argument("lse must be float32 and have the shape of states but the last");
  }
  std::vector<int64_t> of_states, of_rows;
  for (int64_t dim = 0; dim < states.dim(); ++dim) {
    if (dim < lse.dim() && states.size(dim) != lse.size(dim)) {
      throw std::invalid_argument("lse must be float32 and have the shape of states but the last");
    }
    if (dim > 0) {
      of_states.push_back(states.size(dim));
    }
  }
  of_rows.assign(of_states.begin(), of_states.end() - 1);
  const OnDeviceOf device(states);
  const Tensor given = torch::stable::contiguous(states), weights = torch::stable::contiguous(lse);
  Tensor out = empty_beside(states, of_states, states.scalar_type());
  Tensor merged_lse = empty_beside(states, of_rows, ScalarType::Float);
  EkAttentionStates call{};
  call.states = given.const_data_ptr();
  call.lse = data_of<float>(weights);
  call.splits = lse.size(0);
  call.rows = merged_lse.numel();
  call.size = states.size(-1);
  call.out = out.mutable_data_ptr();
  call.merged_lse = writable<float>(merged_lse);
  call.type = type_of(states);
  check_launch("merge_attention_states", ek_merge_attention_states(&call, device.stream()));
  return {out, merged_lse};
}

}  // namespace ensemble_kernels::cuda

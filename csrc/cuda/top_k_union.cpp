// `top_k_union` on CUDA tensors.
#include "cuda/operators.hpp"
#include "cuda/union_models.hpp"

namespace ensemble_kernels::cuda {

std::tuple<Tensor, Tensor> top_k_union(std::vector<Tensor> logits, std::vector<Tensor> map_offsets,
                                       std::vector<Tensor> map_ids,
                                       std::vector<Tensor> score_columns, Tensor weights,
                                       Tensor temperature, int64_t k) {
  count_call("top_k_union");
  const OnDeviceOf device(logits[0]);
  UnionArguments models = union_arguments(logits, map_offsets, map_ids, weights, temperature);
  EkTopK call{};
  call.all = models.all;
  for (size_t m = 0; m < score_columns.size(); ++m) {
    models.kept.push_back(torch::stable::contiguous(score_columns[m]));
    call.score_columns[m] = data_of<int32_t>(models.kept.back());
  }
  call.k = k;
  call.width = call.all.count * k;
  Tensor columns = empty_beside(logits[0], {call.all.rows, call.width}, ScalarType::Long);
  Tensor probabilities = empty_beside(logits[0], {call.all.rows, call.width}, ScalarType::Float);
  Tensor workspace =
      empty_beside(logits[0], {ek_top_k_union_workspace(&call)}, ScalarType::Byte);
  call.columns = writable<int64_t>(columns);
  call.probabilities = writable<float>(probabilities);
  call.workspace = workspace.mutable_data_ptr();
  check_launch("top_k_union", ek_top_k_union(&call, device.stream()));
  return {columns, probabilities};
}

}  // namespace ensemble_kernels::cuda

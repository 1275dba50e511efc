// `mix_distributions` on CUDA tensors.
#include "cuda/operators.hpp"
#include "cuda/union_models.hpp"

namespace ensemble_kernels::cuda {

std::tuple<Tensor, Tensor, Tensor> mix_distributions(std::vector<Tensor> logits,
                                                     std::vector<Tensor> map_offsets,
                                                     std::vector<Tensor> map_ids, Tensor weights,
                                                     Tensor temperature, bool geometric) {
  count_call("mix_distributions");
  const OnDeviceOf device(logits[0]);
  const UnionArguments models =
      union_arguments(logits, map_offsets, map_ids, weights, temperature);
  EkMixture call{};
  call.all = models.all;
  call.geometric = geometric;
  const int64_t rows = call.all.rows;
  Tensor probabilities = empty_beside(logits[0], {rows, call.all.size}, ScalarType::Float);
  Tensor lost_mass = empty_beside(logits[0], {call.all.count, rows}, ScalarType::Float);
  Tensor fell_back = empty_beside(logits[0], {rows}, ScalarType::Bool);
  Tensor workspace =
      empty_beside(logits[0], {ek_mix_distributions_workspace(&call.all)}, ScalarType::Byte);
  call.probabilities = writable<float>(probabilities);
  call.lost_mass = writable<float>(lost_mass);
  call.fell_back = writable<uint8_t>(fell_back);
  call.workspace = workspace.mutable_data_ptr();
  check_launch("mix_distributions", ek_mix_distributions(&call, device.stream()));
  return {probabilities, lost_mass, fell_back};
}

}  // namespace ensemble_kernels::cuda

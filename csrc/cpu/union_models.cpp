#include "union_models.hpp"

namespace ensemble_kernels {

std::vector<UnionModel> union_models(const std::vector<Tensor>& logits,
                                     const std::vector<Tensor>& map_offsets,
                                     const std::vector<Tensor>& map_ids, const Tensor& weights,
                                     const Tensor& temperature) {
  const std::vector<double> shares = checked_weights(weights);
  const std::vector<double> temperatures = checked_temperature(temperature);
  std::vector<UnionModel> models;
  for (size_t i = 0; i < logits.size(); ++i) {
    models.push_back({logits[i], torch::stable::contiguous(map_offsets[i]),
                      torch::stable::contiguous(map_ids[i]), shares[i], temperatures[i]});
  }
  return models;
}

}  // namespace ensemble_kernels

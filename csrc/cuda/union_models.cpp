#include "cuda/union_models.hpp"

#include "union_contents.hpp"

namespace ensemble_kernels::cuda {

namespace {

const float* per_model(const char* name, const Tensor& given, std::vector<Tensor>& kept) {
  if (given.scalar_type() != ScalarType::Float) {
    throw std::invalid_argument(std::string(name) + " must be of dtype float32");
  }
  kept.push_back(torch::stable::contiguous(given));
  return data_of<float>(kept.back());
}

void check_contents(const std::vector<Tensor>& map_offsets, const std::vector<Tensor>& map_ids,
                    const Tensor& weights, const Tensor& temperature) {
  checked_weights(on_cpu(weights));
  checked_temperature(on_cpu(temperature));
  for (size_t m = 0; m < map_offsets.size(); ++m) {
    check_map(torch::stable::contiguous(on_cpu(map_offsets[m])), map_ids[m].size(0));
  }
}

}  // namespace

UnionArguments union_arguments(const std::vector<Tensor>& logits,
                               const std::vector<Tensor>& map_offsets,
                               const std::vector<Tensor>& map_ids, const Tensor& weights,
                               const Tensor& temperature) {
  if (logits.size() > EK_MODELS) {
    throw std::invalid_argument("logits must be of at most " + std::to_string(EK_MODELS) +
                                " models for backend='cuda', got " +
                                std::to_string(logits.size()));
  }
  if (contents_are_checked()) {
    check_contents(map_offsets, map_ids, weights, temperature);
  }
  UnionArguments result;
  EkUnionModels& all = result.all;
  all.count = static_cast<int32_t>(logits.size());
  all.rows = logits[0].size(0);
  all.size = map_offsets[0].size(0) - 1;
  all.weights = per_model("weights", weights, result.kept);
  all.temperature = per_model("temperature", temperature, result.kept);
  for (size_t m = 0; m < logits.size(); ++m) {
    EkUnionModel& model = all.models[m];
    const Tensor offsets = torch::stable::contiguous(map_offsets[m]);
    const Tensor ids = torch::stable::contiguous(map_ids[m]);
    model.logits = logits[m].const_data_ptr();
    model.offsets = data_of<int32_t>(offsets);
    model.ids = data_of<int32_t>(ids);
    model.row_stride = logits[m].stride(0);
    model.column_stride = logits[m].stride(1);
    model.width = logits[m].size(1);
    model.id_count = ids.size(0);
    model.type = type_of(logits[m]);
    all.in_double = all.in_double || model.type == EK_FLOAT64;
    result.kept.insert(result.kept.end(), {offsets, ids});
  }
  return result;
}

}  // namespace ensemble_kernels::cuda

// The arguments that the operators over a union vocabulary share.
#pragma once

#include <vector>

#include "arguments.hpp"
#include "ensemble_kernels/vocabulary_mixture.hpp"
#include "union_contents.hpp"

namespace ensemble_kernels {

// One model: its logits, its map (contiguous), its weight (they sum to 1) and its temperature.
struct UnionModel {
  Tensor logits, offsets, ids;
  double weight, temperature;

  // log2(e) / temperature
  double factor() const { return 1.4426950408889634 / temperature; }
  ModelRow row(int64_t index, int64_t element_size) const {
    const char* data = static_cast<const char*>(logits.const_data_ptr());
    return {data + index * logits.stride(0) * element_size, logits.stride(1), logits.size(1)};
  }
  // False where the offsets at its ends are not those of a map.
  bool chunk(int64_t start, int64_t count, MapChunk& result) const {
    result = {data_of<int32_t>(offsets) + start, data_of<int32_t>(ids), count};
    const int32_t begin = result.offsets[0], end = result.offsets[count];
    return 0 <= begin && begin <= end && end <= ids.size(0);
  }
};

// Raises std::invalid_argument for weights and temperatures out of range.
std::vector<UnionModel> union_models(const std::vector<Tensor>& logits,
                                     const std::vector<Tensor>& map_offsets,
                                     const std::vector<Tensor>& map_ids, const Tensor& weights,
                                     const Tensor& temperature);

// `body(row)` for each row: on threads of their own where there are enough rows, else one after the
// other, so that the threads share each row's units of work.
template <typename Body>
void for_each_row(int64_t rows, double cost, const Body& body) {
  if (rows >= torch::stable::get_num_threads()) {
    for_each_unit(rows, cost, body);
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    body(row);
  }
}

// Whether the mixture is computed in double precision.
inline bool any_double(const std::vector<UnionModel>& models) {
  return std::any_of(models.begin(), models.end(), [](const UnionModel& model) {
    return model.logits.scalar_type() == ScalarType::Double;
  });
}

}  // namespace ensemble_kernels

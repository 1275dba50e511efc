// What the kernels over a union vocabulary share: reading one logit of any dtype, and a model's
// part in the ensemble. All models are handled by one launch, which is told of them in its
// parameters.
#pragma once

#include "ensemble_kernels/cuda/logits.cuh"
#include "ensemble_kernels/cuda/reductions.cuh"

namespace ensemble_kernels::cuda {

constexpr unsigned chunk_threads = 256;
constexpr int columns_of_thread = 4;
constexpr int64_t union_chunk = int64_t{chunk_threads} * columns_of_thread;
constexpr double log2_e = 1.4426950408889634;

// The ids of one column, within the map whatever its offsets say.
struct IdRange {
  int64_t begin, end;
};

__device__ inline IdRange ids_of_column(const EkUnionModel& model, int64_t column) {
  const int64_t begin = model.offsets[column], end = model.offsets[column + 1];
  return {begin < 0 ? 0 : begin, end < model.id_count ? end : model.id_count};
}

// One row of one model's logits.
class UnionRow {
 public:
  __device__ UnionRow(const EkUnionModel& model, int64_t row)
      : model_(model), first_(row * model.row_stride) {}

  // Of an id that the logits do not have, -inf.
  template <typename Scalar>
  __device__ Scalar logit(int64_t id) const {
    if (id < 0 || id >= model_.width) {
      return minus_infinity<Scalar>;
    }
    const int64_t at = first_ + id * model_.column_stride;
    switch (model_.type) {
      case EK_FLOAT32:
        return static_cast<const float*>(model_.logits)[at];
      case EK_FLOAT16:
        return widen(static_cast<const __half*>(model_.logits)[at]);
      case EK_BFLOAT16:
        return widen(static_cast<const __nv_bfloat16*>(model_.logits)[at]);
      default:
        return static_cast<Scalar>(static_cast<const double*>(model_.logits)[at]);
    }
  }

 private:
  const EkUnionModel& model_;
  const int64_t first_;
};

// The weights of all models, normalised; of one of them.
__device__ inline double share_of(const EkUnionModels& all, int model) {
  double total = 0;
  for (int i = 0; i < all.count; ++i) {
    total += all.weights[i];
  }
  return all.weights[model] / total;
}

}  // namespace ensemble_kernels::cuda

// Maximum and sum of exponentials of each model's rows: the first stage of `mix_distributions`.
//
// Every row is cut into stretches of a fixed length, a block each, of all models in one launch; who
// needs a row's maximum and sum merges its few stretches, always in the same order.
#pragma once

#include "ensemble_kernels/cuda/union_models.cuh"

namespace ensemble_kernels::cuda {

constexpr int logits_per_thread = 32;
constexpr int64_t softmax_stretch = int64_t{chunk_threads} * logits_per_thread;

// Powers are 2^((x - maximum) · factor), where `factor` is log2(e) / temperature.
struct SoftmaxPart {
  double maximum, total;
};

__host__ __device__ inline int64_t stretches_of(const EkUnionModel& model) {
  return ceil_div(model.width, softmax_stretch);
}

// A model, and where its stretches begin among those of a row of all models.
struct ModelStretches {
  int model;
  int64_t first;
};

__device__ inline ModelStretches model_of_stretch(const EkUnionModels& all, int64_t stretch) {
  ModelStretches found{0, 0};
  while (found.model + 1 < all.count &&
         stretch >= found.first + stretches_of(all.models[found.model])) {
    found.first += stretches_of(all.models[found.model++]);
  }
  return found;
}

__device__ inline double factor_of(const EkUnionModels& all, int model) {
  return log2_e / all.temperature[model];
}

template <typename T>
__device__ SoftmaxPart softmax_part(const EkUnionModel& model, int64_t row, int64_t start,
                                    double factor) {
  using Scalar = ScalarOf<T>;
  constexpr Scalar nothing = minus_infinity<Scalar>;
  const T* data = static_cast<const T*>(model.logits) + row * model.row_stride +
                  start * model.column_stride;
  Scalar logits[logits_per_thread];
  load_logits<chunk_threads>(data, model.column_stride, model.width - start, logits);
  Scalar peak = nothing;
#pragma unroll
  for (const Scalar logit : logits) {
    peak = logit > peak ? logit : peak;
  }
  peak = block_reduce<chunk_threads>(peak, nothing, Maximum{});
  const Scalar shift = peak > nothing ? peak : Scalar(0);  // (-inf) - (-inf) is NaN
  const Scalar scale = static_cast<Scalar>(factor);
  Scalar total = 0;
#pragma unroll
  for (const Scalar logit : logits) {
    total += power_of_2((logit - shift) * scale);
  }
  return {peak, block_reduce<chunk_threads>(double{total}, 0.0, Add{})};
}

// `parts [rows, stretches]`. Without double precision where no model needs it, which halves the
// registers.
template <bool in_double>
__global__ void __launch_bounds__(chunk_threads, 2)
    softmax_parts(const __grid_constant__ EkUnionModels all, int64_t stretches,
                  SoftmaxPart* parts) {
  const int64_t row = blockIdx.x / stretches, stretch = blockIdx.x % stretches;
  const ModelStretches found = model_of_stretch(all, stretch);
  const EkUnionModel& model = all.models[found.model];
  const int64_t start = (stretch - found.first) * softmax_stretch;
  const double factor = factor_of(all, found.model);
  SoftmaxPart part{};
  switch (model.type) {  // the same for the whole block
    case EK_FLOAT32:
      part = softmax_part<float>(model, row, start, factor);
      break;
    case EK_FLOAT16:
      part = softmax_part<__half>(model, row, start, factor);
      break;
    case EK_BFLOAT16:
      part = softmax_part<__nv_bfloat16>(model, row, start, factor);
      break;
    default:
      if constexpr (in_double) {
        part = softmax_part<double>(model, row, start, factor);
      }
  }
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = part;
  }
}

// What a warp makes of parts that lie next to each other; `factor` 1 where they are of logarithms.
__device__ inline SoftmaxPart merge_parts(const SoftmaxPart* parts, int64_t count, double factor) {
  const unsigned lane = threadIdx.x % warp_lanes;
  double maximum = minus_infinity<double>, total = 0;
  for (int64_t i = lane; i < count; i += warp_lanes) {
    maximum = parts[i].maximum > maximum ? parts[i].maximum : maximum;
  }
  maximum = warp_reduce(maximum, Maximum{});
  for (int64_t i = lane; i < count; i += warp_lanes) {
    if (parts[i].total != 0) {
      total += exp2((parts[i].maximum - maximum) * factor) * parts[i].total;
    }
  }
  return {maximum, warp_reduce(total, Add{})};
}

}  // namespace ensemble_kernels::cuda

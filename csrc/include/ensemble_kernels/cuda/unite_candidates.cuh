// The last stage of `top_k_union`: a block unites a row's models and mixes their candidates.
#pragma once

#include "ensemble_kernels/cuda/top_k_union.cuh"

namespace ensemble_kernels::cuda {

constexpr unsigned uniting_threads = 256;

// How many of an ascending list are below `value`.
__device__ inline int32_t count_below(const int32_t* list, int32_t count, int32_t value) {
  int32_t low = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    if (list[low + half] < value) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

// Writes the row's columns, ascending and each once, and returns their number. Every thread must
// come.
template <typename Scalar>
__device__ int64_t unite(const EkTopK& call, const TopKWorkspace<Scalar>& workspace, int64_t row) {
  const int models = call.all.count;
  const int32_t* counts = workspace.chosen_count + row * models;
  const int32_t* lists = workspace.chosen + row * models * workspace.of_model;
  int32_t* sorted = workspace.sorted + row * call.width;
  int64_t total = 0;
  for (int m = 0; m < models; ++m) {
    if (!(call.all.weights[m] > 0)) {
      continue;
    }
    total += counts[m];
    for (int32_t i = threadIdx.x; i < counts[m]; i += uniting_threads) {
      const int32_t column = lists[m * workspace.of_model + i];
      int64_t place = 0;
      for (int other = 0; other < models; ++other) {
        if (call.all.weights[other] > 0) {
          // Equal ones of models before come before.
          place += count_below(lists + other * workspace.of_model, counts[other],
                               other < m ? column + 1 : column);
        }
      }
      sorted[place] = column;
    }
  }
  __syncthreads();
  int64_t count = 0;
  for (int64_t first = 0; first < total; first += uniting_threads) {
    const int64_t i = first + threadIdx.x;
    const bool is_new = i < total && (i == 0 || sorted[i] != sorted[i - 1]);
    const Ranks ranks = block_ranks<uniting_threads>(is_new);
    if (is_new) {
      call.columns[row * call.width + count + ranks.before] = sorted[i];
    }
    count += ranks.all;
  }
  __syncthreads();
  return count;
}

// One model's scores of the candidates, to `scores`: n that take the score of one column get it
// less ln n. Every thread must come.
template <typename Scalar>
__device__ void score_candidates(const EkTopK& call, const TopKWorkspace<Scalar>& workspace,
                                 int64_t row, int m, int64_t count) {
  const int64_t pair = row * call.all.count + m;
  int32_t* sources = workspace.sources + pair * call.width;
  for (int64_t i = threadIdx.x; i < count; i += uniting_threads) {
    const int32_t source = call.score_columns[m][call.columns[row * call.width + i]];
    sources[i] = source >= 0 && source < call.all.size ? source : -1;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count; i += uniting_threads) {
    double score = minus_infinity<double>;
    if (sources[i] >= 0) {
      int sharers = 0;
      for (int64_t other = 0; other < count; ++other) {
        sharers += sources[other] == sources[i];
      }
      score = workspace.scores[pair * call.all.size + sources[i]] -
              log(static_cast<double>(sharers));
    }
    workspace.candidate_scores[pair * call.width + i] = score;
  }
}

// Whether a model of some weight has a NaN. Every thread must come.
template <typename Scalar>
__device__ bool any_broken(const EkTopK& call, const TopKWorkspace<Scalar>& workspace,
                           int64_t row) {
  bool broken = false;
  for (int m = 0; m < call.all.count; ++m) {
    const int32_t* flags = workspace.broken + (row * call.all.count + m) * workspace.chunks;
    for (int64_t i = threadIdx.x; call.all.weights[m] > 0 && i < workspace.chunks;
         i += uniting_threads) {
      broken = broken || flags[i];
    }
  }
  return __syncthreads_count(broken) > 0;
}

template <typename Scalar>
__global__ void __launch_bounds__(uniting_threads, 2)
    mix_candidates(const __grid_constant__ EkTopK call) {
  const TopKWorkspace<Scalar> workspace(call);
  const int64_t row = blockIdx.x;
  int64_t* columns = call.columns + row * call.width;
  float* probabilities = call.probabilities + row * call.width;
  const int64_t count = unite(call, workspace, row);
  bool broken = any_broken(call, workspace, row) || count == 0;

  __shared__ double peaks[EK_MODELS], factors[EK_MODELS];
  for (int m = 0; m < call.all.count; ++m) {
    if (!(call.all.weights[m] > 0)) {
      continue;
    }
    score_candidates(call, workspace, row, m, count);
    const double* scores = workspace.candidate_scores + (row * call.all.count + m) * call.width;
    double peak = minus_infinity<double>, total = 0;
    for (int64_t i = threadIdx.x; i < count; i += uniting_threads) {
      peak = scores[i] > peak ? scores[i] : peak;
    }
    peak = block_reduce<uniting_threads>(peak, minus_infinity<double>, Maximum{});
    for (int64_t i = threadIdx.x; i < count; i += uniting_threads) {
      total += exp(scores[i] - peak);
    }
    // Of nothing but -inf, of NaN and of +inf comes NaN.
    total = block_reduce<uniting_threads>(total, 0.0, Add{});
    broken = broken || !(total > 0);
    if (threadIdx.x == 0) {
      peaks[m] = peak;
      factors[m] = share_of(call.all, m) / total;
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < call.width; i += uniting_threads) {
    double mixed = 0;
    for (int m = 0; m < call.all.count; ++m) {
      if (call.all.weights[m] > 0 && i < count && !broken) {
        const double* scores =
            workspace.candidate_scores + (row * call.all.count + m) * call.width;
        mixed += factors[m] * exp(scores[i] - peaks[m]);
      }
    }
    columns[i] = i < count && !broken ? columns[i] : -1;
    probabilities[i] = broken ? static_cast<float>(not_a_number) : static_cast<float>(mixed);
  }
}

}  // namespace ensemble_kernels::cuda

// `top_k_union`: the union of several models' k likeliest columns, scored by each of them.
//
// Floor: R·Σ V_m·b bytes and the map, once; at decoding sizes three launches, each for all models
// and rows. (1) A block scores a chunk of one model's columns, keeps the scores for (3) and the k
// best of them; (2) a block chooses one model's k best among those; (3) a block unites a row's
// models, whose lists ascend, and mixes. Scores are compared as they are, in float32 or float64, so
// that ties are exact, and all lists keep the order of the columns: nothing depends on the order of
// blocks.
#pragma once

#include "ensemble_kernels/cuda/select_highest.cuh"
#include "ensemble_kernels/cuda/union_models.cuh"

namespace ensemble_kernels::cuda {

constexpr unsigned choosing_threads = 512;

// What the stages leave for the next one, for `pairs` of a row and a model.
template <typename Scalar>
struct TopKWorkspace {
  int64_t pairs, chunks, of_chunk, of_model;  // the last two: how many are chosen at the most
  Scalar* scores;                             // [pairs, size]
  Scalar* kept_scores;                        // [pairs, chunks, of_chunk], then -inf
  double* candidate_scores;                   // [pairs, width]
  int32_t* kept_columns;                      // [pairs, chunks, of_chunk]
  int32_t* chosen;                            // [pairs, of_model]: ascending
  int32_t* sources;                           // [pairs, width]
  int32_t* sorted;                            // [rows, width]
  int32_t* chosen_count;                      // [pairs]
  int32_t* broken;                            // [pairs, chunks]
  int64_t bytes;

  __host__ __device__ explicit TopKWorkspace(const EkTopK& call)
      : pairs(call.all.rows * call.all.count),
        chunks(call.all.size > 0 ? ceil_div(call.all.size, union_chunk) : 1),
        of_chunk(call.k < union_chunk ? call.k : union_chunk),
        of_model(call.k < call.all.size ? call.k : call.all.size),
        bytes(0) {
    const auto take = [&](auto*& place, int64_t count) {
      if (call.workspace) {  // null where only its size is asked
        place = reinterpret_cast<std::remove_reference_t<decltype(place)>>(
            static_cast<char*>(call.workspace) + bytes);
      }
      bytes += ceil_div(count * int64_t{sizeof(*place)}, 16) * 16;
    };
    take(scores, pairs * call.all.size);
    take(kept_scores, pairs * chunks * of_chunk);
    take(candidate_scores, pairs * call.width);
    take(kept_columns, pairs * chunks * of_chunk);
    take(chosen, pairs * of_model);
    take(sources, pairs * call.width);
    take(sorted, call.all.rows * call.width);
    take(chosen_count, pairs);
    take(broken, pairs * chunks);
  }
};

// Logits over temperature in the precision of their dtype: which of two is higher must not depend
// on what other models have.
template <typename Scalar>
class Scores {
 public:
  __device__ Scores(const EkUnionModel& model, int64_t row, float temperature)
      : model_(model), logits_(model, row), temperature_(temperature) {}

  __device__ Scalar of_id(int64_t id) const {
    const Scalar logit = logits_.template logit<Scalar>(id);
    if (sizeof(Scalar) == sizeof(double) && model_.type != EK_FLOAT64) {
      return static_cast<float>(logit) / temperature_;
    }
    return logit / static_cast<Scalar>(temperature_);
  }

  // ln Σ e^score over the column's ids.
  __device__ Scalar of_column(int64_t column) const {
    const IdRange range = ids_of_column(model_, column);
    if (range.end - range.begin == 1) {
      return of_id(model_.ids[range.begin]);
    }
    Scalar peak = minus_infinity<Scalar>;
    for (int64_t i = range.begin; i < range.end; ++i) {
      const Scalar score = of_id(model_.ids[i]);
      peak = score > peak ? score : peak;
    }
    if (!(peak > minus_infinity<Scalar>) || peak == -minus_infinity<Scalar>) {
      return peak;
    }
    double total = 0;
    for (int64_t i = range.begin; i < range.end; ++i) {
      total += exp(static_cast<double>(of_id(model_.ids[i])) - static_cast<double>(peak));
    }
    const double all = static_cast<double>(peak) + log(total);
    return model_.type == EK_FLOAT64 ? static_cast<Scalar>(all)
                                     : static_cast<Scalar>(static_cast<float>(all));
  }

 private:
  const EkUnionModel& model_;
  const UnionRow logits_;
  const float temperature_;
};

// Whether one of a slice of the model's logits is NaN, also one that no column has. Every thread
// must come.
template <typename Scalar>
__device__ bool any_nan(const EkUnionModel& model, int64_t row, int64_t slice, int64_t slices) {
  const UnionRow logits(model, row);
  const int64_t end = model.width * (slice + 1) / slices;
  bool found = false;
  for (int64_t id = model.width * slice / slices + threadIdx.x; id < end; id += chunk_threads) {
    const Scalar logit = logits.template logit<Scalar>(id);
    found = found || logit != logit;
  }
  return __syncthreads_count(found) > 0;
}

template <typename Scalar>
__global__ void __launch_bounds__(chunk_threads, 2)
    score_chunks(const __grid_constant__ EkTopK call) {
  const TopKWorkspace<Scalar> workspace(call);
  const int64_t pair = blockIdx.x / workspace.chunks, chunk = blockIdx.x % workspace.chunks;
  const int64_t row = pair / call.all.count, start = chunk * union_chunk;
  const int m = static_cast<int>(pair % call.all.count);
  if (!(call.all.weights[m] > 0)) {
    return;  // the whole block
  }
  const EkUnionModel& model = call.all.models[m];
  const bool broken = any_nan<Scalar>(model, row, chunk, workspace.chunks);
  if (threadIdx.x == 0) {
    workspace.broken[blockIdx.x] = broken;
  }
  const Scores<Scalar> scores(model, row, call.all.temperature[m]);
  Scalar held[columns_of_thread];
  KeyOf<Scalar> keys[columns_of_thread];
#pragma unroll
  for (int i = 0; i < columns_of_thread; ++i) {
    const int64_t column = start + i * int64_t{chunk_threads} + threadIdx.x;
    held[i] = minus_infinity<Scalar>;
    if (column < call.all.size) {
      held[i] = scores.of_column(column);
      workspace.scores[pair * call.all.size + column] = held[i];
    }
    keys[i] = key_of(held[i]);
  }
  const auto count_at_least = [&](KeyOf<Scalar> key) {
    int64_t count = 0;
#pragma unroll
    for (const KeyOf<Scalar> own : keys) {
      count += __syncthreads_count(own >= key);
    }
    return count;
  };
  const KeyOf<Scalar> kth = kth_key<KeyOf<Scalar>>(workspace.of_chunk, count_at_least);
  Chooser<chunk_threads, KeyOf<Scalar>> chooser(
      kth, kth == 0 ? 0 : count_at_least(static_cast<KeyOf<Scalar>>(kth + 1)),
      workspace.of_chunk);
  const int64_t first = blockIdx.x * workspace.of_chunk;
#pragma unroll
  for (int i = 0; i < columns_of_thread; ++i) {
    const int64_t place = chooser.place(keys[i]);
    if (place >= 0) {
      workspace.kept_scores[first + place] = held[i];
      workspace.kept_columns[first + place] =
          static_cast<int32_t>(start + i * int64_t{chunk_threads} + threadIdx.x);
    }
  }
  for (int64_t i = chooser.taken() + threadIdx.x; i < workspace.of_chunk; i += chunk_threads) {
    workspace.kept_scores[first + i] = minus_infinity<Scalar>;
  }
}

template <typename Scalar>
__global__ void __launch_bounds__(choosing_threads)
    choose_columns(const __grid_constant__ EkTopK call) {
  using Key = KeyOf<Scalar>;
  const TopKWorkspace<Scalar> workspace(call);
  const int64_t pair = blockIdx.x, count = workspace.chunks * workspace.of_chunk;
  if (!(call.all.weights[pair % call.all.count] > 0)) {
    return;  // the whole block
  }
  const Scalar* scores = workspace.kept_scores + pair * count;
  const auto count_at_least = [&](Key key) {
    int own = 0;
    for (int64_t i = threadIdx.x; i < count; i += choosing_threads) {
      own += key_of(scores[i]) >= key;
    }
    return int64_t{block_reduce<choosing_threads>(own, 0, Add{})};
  };
  const Key kth = kth_key<Key>(workspace.of_model, count_at_least);
  Chooser<choosing_threads, Key> chooser(
      kth, kth == 0 ? 0 : count_at_least(static_cast<Key>(kth + 1)), workspace.of_model);
  for (int64_t first = 0; first < count; first += choosing_threads) {
    const int64_t i = first + threadIdx.x;
    const int64_t place = chooser.place(i < count ? key_of(scores[i]) : Key{0});
    if (place >= 0) {
      workspace.chosen[pair * workspace.of_model + place] =
          workspace.kept_columns[pair * count + i];
    }
  }
  if (threadIdx.x == 0) {
    workspace.chosen_count[pair] = static_cast<int32_t>(chooser.taken());
  }
}

}  // namespace ensemble_kernels::cuda

// `top_k_union` on CPU tensors.
#include "ensemble_kernels/top_k_union.hpp"

#include <memory>
#include <tuple>

#include "operators.hpp"
#include "union_models.hpp"

#define EK_KERNELS "ensemble_kernels/top_k_union_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

namespace ensemble_kernels {

namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();

// A model that has a say, and its kernels.
struct RankedModel {
  UnionModel model;
  Tensor score_columns;
  int64_t element_size;
  decltype(&portable::write_scores<float>) write_scores;
  decltype(&portable::high_scores<float>) high_scores;
};

class TopK {
 public:
  TopK(const std::vector<UnionModel>& models, const std::vector<Tensor>& score_columns, int64_t k)
      : size_(models[0].offsets.size(0) - 1),
        stretches_(std::max<int64_t>(1, (size_ + top_k_stretch - 1) / top_k_stretch)),
        k_(std::min(k, std::max<int64_t>(1, size_))) {
    for (size_t m = 0; m < models.size(); ++m) {
      if (models[m].weight == 0) {
        continue;
      }
      with_float_type(models[m].logits, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        using Scalar = decltype(widen(T()));
        models_.push_back({models[m], torch::stable::contiguous(score_columns[m]), sizeof(T),
                           EK_DISPATCH(write_scores<T>), EK_DISPATCH(high_scores<Scalar>)});
        first_score_.push_back(first_score_.back() + models[m].logits.size(1));
      });
    }
  }

  // One row's columns, ascending, then -1, and their probabilities.
  void row(int64_t row, int64_t width, int64_t* columns, float* probabilities) {
    const int64_t units = static_cast<int64_t>(models_.size()) * stretches_;
    // Of the models in turn; those of float32 take half of their room.
    const std::unique_ptr<double[]> scores(new double[first_score_.back()]);
    std::vector<char> broken(units);
    for_each_unit(units, 0.2 * static_cast<double>(std::min(size_, top_k_stretch)), [&](int64_t i) {
      const RankedModel& ranked = models_[i / stretches_];
      // Of all logits, also those that no column has: one that is NaN breaks the row.
      const int64_t size = ranked.model.logits.size(1), stretch = i % stretches_;
      const int64_t begin = size * stretch / stretches_, end = size * (stretch + 1) / stretches_;
      broken[i] = ranked.write_scores(ranked.model.row(row, ranked.element_size), begin,
                                      end - begin, ranked.model.temperature,
                                      scores.get() + first_score_[i / stretches_]);
    });
    std::vector<std::vector<Candidate>> parts(units);
    for_each_unit(units, static_cast<double>(std::min(size_, top_k_stretch)), [&](int64_t i) {
      const int64_t m = i / stretches_;
      parts[i] = best_of_stretch(models_[m], scores.get() + first_score_[m], i % stretches_);
    });
    if (!bad_map_) {
      const bool any = std::count(broken.begin(), broken.end(), 1) > 0;
      mix_candidates(scores.get(), any, candidates(parts.data()), width, columns, probabilities);
    }
  }

  double cost_of_row() const {
    return static_cast<double>(size_ * static_cast<int64_t>(models_.size()));
  }

  bool bad_map() const { return bad_map_; }

 private:
  std::vector<Candidate> best_of_stretch(const RankedModel& ranked, const void* row_scores,
                                         int64_t stretch) {
    const int64_t begin = stretch * top_k_stretch, end = std::min(size_, begin + top_k_stretch);
    BestCandidates best(k_);
    std::vector<int32_t> found(top_k_chunk);
    std::vector<double> scores(top_k_chunk);
    for (int64_t start = begin; start < end; start += top_k_chunk) {
      const int64_t count =
          high_scores(ranked, row_scores, start, std::min(top_k_chunk, end - start),
                      best.threshold(), found.data(), scores.data());
      for (int64_t i = 0; i < count; ++i) {
        best.push({scores[i], start + found[i]});
      }
      if (count > 0) {
        best.shrink();
      }
    }
    return best.kept();
  }

  int64_t high_scores(const RankedModel& ranked, const void* row_scores, int64_t start,
                      int64_t count, double threshold, int32_t* found, double* scores) {
    MapChunk map;
    int64_t number = -1;
    if (ranked.model.chunk(start, count, map)) {
      const int64_t ids = map.offsets[count] - map.offsets[0];
      const std::unique_ptr<double[]> scratch(new double[ids + count + 16]);
      number = ranked.high_scores(row_scores, ranked.model.logits.size(1), map, threshold,
                                  scratch.get(), found, scores);
    }
    if (number < 0) {
      bad_map_ = true;
    }
    return number;
  }

  // The union, ascending, of each model's k best of its stretches.
  std::vector<int64_t> candidates(const std::vector<Candidate>* parts) const {
    std::vector<int64_t> columns;
    for (size_t m = 0; m < models_.size(); ++m) {
      BestCandidates best(k_);
      for (int64_t stretch = 0; stretch < stretches_; ++stretch) {
        for (const Candidate& candidate : *parts++) {
          best.push(candidate);
        }
      }
      best.shrink();
      for (const Candidate& candidate : best.kept()) {
        columns.push_back(candidate.column);
      }
    }
    std::sort(columns.begin(), columns.end());
    columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    return columns;
  }

  void mix_candidates(const double* scores, bool broken, const std::vector<int64_t>& candidates,
                      int64_t width, int64_t* columns, float* probabilities) {
    std::vector<double> mixed(candidates.size());
    for (size_t m = 0; m < models_.size() && !candidates.empty(); ++m) {
      add_softmax(scores_of(models_[m], scores + first_score_[m], candidates),
                  models_[m].model.weight, mixed.data());
    }
    broken = broken || candidates.empty() ||
             std::any_of(mixed.begin(), mixed.end(), [](double p) { return p != p; });
    const int64_t count = broken ? 0 : static_cast<int64_t>(candidates.size());
    std::copy(candidates.begin(), candidates.begin() + count, columns);
    std::copy(mixed.begin(), mixed.begin() + count, probabilities);
    std::fill(columns + count, columns + width, -1);
    std::fill(probabilities + count, probabilities + width,
              broken ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  }

  // One model's scores of the candidates: n that take the score of one column get it less ln n.
  std::vector<double> scores_of(const RankedModel& ranked, const void* row_scores,
                                const std::vector<int64_t>& candidates) {
    std::vector<int32_t> sources;
    for (const int64_t column : candidates) {
      sources.push_back(data_of<int32_t>(ranked.score_columns)[column]);
    }
    std::vector<int32_t> sorted = sources;
    std::sort(sorted.begin(), sorted.end());
    std::vector<double> scores;
    for (const int32_t source : sources) {
      if (source < 0 || source >= size_) {
        scores.push_back(nothing);
        continue;
      }
      const auto sharers = std::equal_range(sorted.begin(), sorted.end(), source);
      int32_t found;
      double score = nothing;
      high_scores(ranked, row_scores, source, 1, nothing, &found, &score);
      scores.push_back(score -
                       std::log(static_cast<double>(sharers.second - sharers.first)));
    }
    return scores;
  }

  const int64_t size_, stretches_, k_;
  std::vector<RankedModel> models_;
  std::vector<int64_t> first_score_{0};
  std::atomic<bool> bad_map_{false};
};

}  // namespace

std::tuple<Tensor, Tensor> top_k_union(std::vector<Tensor> logits, std::vector<Tensor> map_offsets,
                                       std::vector<Tensor> map_ids,
                                       std::vector<Tensor> score_columns, Tensor weights,
                                       Tensor temperature, int64_t k) {
  count_call("top_k_union");
  const std::vector<UnionModel> models =
      union_models(logits, map_offsets, map_ids, weights, temperature);
  const int64_t rows = logits[0].size(0), width = static_cast<int64_t>(models.size()) * k;
  Tensor columns = empty_cpu({rows, width}, ScalarType::Long);
  Tensor probabilities = empty_cpu({rows, width}, ScalarType::Float);
  TopK top(models, score_columns, k);
  const auto select_row = [&](int64_t row) {
    top.row(row, width, writable<int64_t>(columns) + row * width,
            writable<float>(probabilities) + row * width);
  };
  for_each_row(rows, top.cost_of_row(), select_row);
  if (top.bad_map()) {
    raise_bad_map();
  }
  return {columns, probabilities};
}

}  // namespace ensemble_kernels

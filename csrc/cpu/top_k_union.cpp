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
  decltype(&portable::high_scores<float>) high_scores;
  decltype(&portable::any_nan<float>) any_nan;
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
        models_.push_back({models[m], torch::stable::contiguous(score_columns[m]), sizeof(T),
                           EK_DISPATCH(high_scores<T>), EK_DISPATCH(any_nan<T>)});
      });
    }
  }

  // The columns, ascending, then -1, and their probabilities.
  void rows(int64_t rows, int64_t width, int64_t* columns, float* probabilities) {
    const int64_t models = static_cast<int64_t>(models_.size());
    std::vector<std::vector<Candidate>> parts(rows * models * stretches_);
    std::vector<char> broken(parts.size());
    for_each_unit(static_cast<int64_t>(parts.size()),
                  static_cast<double>(std::min(size_, top_k_stretch)), [&](int64_t i) {
                    const int64_t row = i / stretches_ / models;
                    const RankedModel& ranked = models_[i / stretches_ % models];
                    parts[i] = best_of_stretch(ranked, row, i % stretches_);
                    broken[i] = nan_in_share(ranked, row, i % stretches_);
                  });
    if (bad_map_) {
      raise_bad_map();
    }
    for_each_unit(rows, static_cast<double>(width * models * 50), [&](int64_t row) {
      const int64_t units = models * stretches_, first = row * units;
      const bool any = std::count(broken.begin() + first, broken.begin() + first + units, 1) > 0;
      mix_candidates(row, any, candidates(parts.data() + first), width, columns + row * width,
                     probabilities + row * width);
    });
  }

 private:
  // Chunks begin at the same columns for every k.
  std::vector<Candidate> best_of_stretch(const RankedModel& ranked, int64_t row, int64_t stretch) {
    const int64_t begin = stretch * top_k_stretch, end = std::min(size_, begin + top_k_stretch);
    BestCandidates best(k_);
    std::vector<int32_t> found(top_k_chunk);
    std::vector<double> scores(top_k_chunk);
    for (int64_t start = begin; start < end; start += top_k_chunk) {
      MapChunk map;
      if (!ranked.model.chunk(start, std::min(top_k_chunk, end - start), map)) {
        bad_map_ = true;
        break;
      }
      const int64_t ids = map.offsets[map.count] - map.offsets[0];
      const std::unique_ptr<double[]> scratch(new double[ids + map.count + 16]);
      const int64_t count =
          ranked.high_scores(ranked.model.row(row, ranked.element_size), map,
                             ranked.model.temperature, best.threshold(), scratch.get(),
                             found.data(), scores.data());
      if (count < 0) {
        bad_map_ = true;
        break;
      }
      for (int64_t i = 0; i < count; ++i) {
        best.push({scores[i], start + found[i]});
      }
      if (count > 0) {
        best.shrink();
      }
    }
    return best.kept();
  }

  // Any of a model's logits may be NaN, also one that no column has: each stretch looks at a share.
  bool nan_in_share(const RankedModel& ranked, int64_t row, int64_t stretch) const {
    const int64_t width = ranked.model.logits.size(1);
    const int64_t begin = width * stretch / stretches_, end = width * (stretch + 1) / stretches_;
    return ranked.any_nan(ranked.model.row(row, ranked.element_size), begin, end - begin);
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

  void mix_candidates(int64_t row, bool broken, const std::vector<int64_t>& candidates,
                      int64_t width, int64_t* columns, float* probabilities) const {
    std::vector<double> mixed(candidates.size());
    for (const RankedModel& ranked : models_) {
      if (!candidates.empty()) {
        add_softmax(scores_of(ranked, row, candidates), ranked.model.weight, mixed.data());
      }
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
  std::vector<double> scores_of(const RankedModel& ranked, int64_t row,
                                const std::vector<int64_t>& candidates) const {
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
      scores.push_back(score_of(ranked, row, source) -
                       std::log(static_cast<double>(sharers.second - sharers.first)));
    }
    return scores;
  }

  double score_of(const RankedModel& ranked, int64_t row, int64_t column) const {
    MapChunk map;
    ranked.model.chunk(column, 1, map);
    std::vector<double> scratch(map.offsets[1] - map.offsets[0] + 17);
    int32_t found;
    double score = nothing;
    ranked.high_scores(ranked.model.row(row, ranked.element_size), map, ranked.model.temperature,
                       nothing, scratch.data(), &found, &score);
    return score;
  }

  const int64_t size_, stretches_, k_;
  std::vector<RankedModel> models_;
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
  TopK(models, score_columns, k)
      .rows(rows, width, writable<int64_t>(columns), writable<float>(probabilities));
  return {columns, probabilities};
}

}  // namespace ensemble_kernels

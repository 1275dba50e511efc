// `top_k_union`: the union of several models' k likeliest columns, scored by each of them.
//
// Floor: R·Σ V_m·b bytes and the map, once; what follows touches only the candidates. A row's
// logits are read once, in order, for the highest score of each block. The k-th best of these, or
// one a bit lower, is a bound that k ids reach and probably not many more; only blocks that reach
// it are searched for them. One pass over the map's ids, for several rows, finds the columns that
// such ids make alone. Columns of several ids, of which there are few, are found in the offsets and
// scored all. Where that gives less than k columns that reach the bound, since some of the ids have
// none, all columns of the row are scored. Scores are compared as they are, in float32 or float64,
// so that ties are exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "ensemble_kernels/scalars.hpp"
#include "ensemble_kernels/vocabulary_mixture.hpp"

namespace ensemble_kernels {

constexpr int64_t top_k_stretch = 32768;  // logits, columns or ids of a unit of work
constexpr int64_t top_k_chunk = 512;      // ids or columns that are searched at once
constexpr int64_t top_k_rows = 16;        // rows for which one pass over the ids is made
constexpr int64_t top_k_spare = 8;        // ids beyond k: some may have no column of their own
constexpr int64_t top_k_largest_block = 1024;

// Logits of a block: enough blocks that few of the k likeliest ids share one.
inline int64_t top_k_block(int64_t width, int64_t k) {
  const int64_t wanted = width / (16 * (k + top_k_spare));
  return std::min<int64_t>(std::max<int64_t>(wanted / 32 * 32, 32), top_k_largest_block);
}

// What at least k and a few ids score, by the maxima of the blocks; -inf where there are too few.
inline double top_k_bound(std::vector<double> maxima, int64_t k) {
  const int64_t wanted = k + top_k_spare;
  if (static_cast<int64_t>(maxima.size()) < wanted) {
    return -std::numeric_limits<double>::infinity();
  }
  std::nth_element(maxima.begin(), maxima.begin() + (wanted - 1), maxima.end(),
                   std::greater<double>());
  return maxima[wanted - 1];
}

// A set of a model's ids: a bit for each, and for each value of an id's lowest nine bits and of the
// next nine, which tell in registers of most ids that they are not in a small set.
struct MarkedIds {
  explicit MarkedIds(int64_t width) : width(width), bits(width / 32 + 1) {}

  void add(int32_t id) {
    bits[id / 32] |= uint32_t{1} << id % 32;
    low[id / 32 % 16] |= uint32_t{1} << id % 32;
    high[id / 512 / 32 % 16] |= uint32_t{1} << id / 512 % 32;
    ++added;
  }
  // Whether the digits tell enough.
  bool few() const { return added <= 64; }
  bool has(int32_t id) const {
    return id >= 0 && id < width && (bits[id / 32] >> id % 32 & 1);
  }

  const int64_t width;
  int64_t added = 0;
  std::vector<uint32_t> bits;
  uint32_t low[16] = {}, high[16] = {};
};

// A column of a model, by the place of its first id in the map: these ascend as columns do.
struct Candidate {
  double score;
  int64_t position;
};

// The likelier one first, then the lower column.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.position < b.position);
}

// The k best of the candidates pushed so far, and now and then more.
class BestCandidates {
 public:
  explicit BestCandidates(int64_t k) : k_(k) {}

  // What the k-th best scores; only those that reach it need to be pushed.
  double threshold() const { return threshold_; }

  void push(const Candidate& candidate) {
    kept_.push_back(candidate);
    if (static_cast<int64_t>(kept_.size()) >= 2 * k_ + 32) {
      shrink();
    }
  }

  void shrink() {
    if (static_cast<int64_t>(kept_.size()) < k_) {
      return;
    }
    std::nth_element(kept_.begin(), kept_.begin() + (k_ - 1), kept_.end(), ranks_before);
    kept_.resize(k_);
    threshold_ = kept_.back().score;
  }

  const std::vector<Candidate>& kept() const { return kept_; }

 private:
  int64_t k_;
  double threshold_ = -std::numeric_limits<double>::infinity();
  std::vector<Candidate> kept_;
};

// ln Σ e^x
template <typename Scalar>
Scalar log_sum_exp(const Scalar* x, int64_t count) {
  const Scalar peak = *std::max_element(x, x + count);
  if (std::isinf(peak)) {
    return peak;
  }
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    total += std::exp(static_cast<double>(x[i]) - static_cast<double>(peak));
  }
  return static_cast<Scalar>(static_cast<double>(peak) + std::log(total));
}

// The score of one id, logit over temperature; -inf where it is not among the row's.
template <typename T>
auto score_of_id(const ModelRow& row, double temperature, int32_t id) {
  using Scalar = decltype(widen(T()));
  if (id < 0 || id >= row.width) {
    return -std::numeric_limits<Scalar>::infinity();
  }
  return widen(static_cast<const T*>(row.data)[id * row.stride]) / static_cast<Scalar>(temperature);
}

// The score of the column that `count` ids make.
template <typename T>
double score_of_ids(const ModelRow& row, double temperature, const int32_t* ids, int64_t count) {
  if (count == 1) {
    return static_cast<double>(score_of_id<T>(row, temperature, *ids));
  }
  std::vector<decltype(widen(T()))> scores;
  for (int64_t i = 0; i < count; ++i) {
    scores.push_back(score_of_id<T>(row, temperature, ids[i]));
  }
  return static_cast<double>(log_sum_exp(scores.data(), count));
}

// Adds `weight` times the softmax of `scores` to `sums`. NaN throughout where the scores hold NaN
// or +inf, or nothing but -inf.
inline void add_softmax(const std::vector<double>& scores, double weight, double* sums) {
  const double peak = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (const double score : scores) {
    total += std::exp(score - peak);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    sums[i] += weight * (std::exp(scores[i] - peak) / total);
  }
}

}  // namespace ensemble_kernels

// `top_k_union`: the union of several models' k likeliest columns, scored by each of them.
//
// Floor: R·Σ V_m·b bytes and the map, once; what follows touches only the candidates. A model's
// columns are scored chunk by chunk, as in vocabulary_mixture.hpp, and those that beat the k-th best
// so far are kept. Scores are compared as they are, in float32 or float64, so that ties are exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ensemble_kernels/vocabulary_mixture.hpp"

namespace ensemble_kernels {

constexpr int64_t top_k_chunk = 512;      // columns that are compared with one threshold
constexpr int64_t top_k_stretch = 32768;  // columns of a unit of work

struct Candidate {
  double score;
  int64_t column;
};

// The likelier one first, then the lower column.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.column < b.column);
}

// The k best of the candidates pushed so far. They come in ascending columns, so that one must beat
// the threshold and not only equal it.
class BestCandidates {
 public:
  explicit BestCandidates(int64_t k) : k_(k) {}

  double threshold() const { return threshold_; }
  void push(const Candidate& candidate) { kept_.push_back(candidate); }

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
  const int64_t k_;
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

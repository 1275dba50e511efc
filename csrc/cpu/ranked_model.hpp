// One model that has a say in `top_k_union`: how its likeliest columns are found.
#pragma once

#include <vector>

#include "ensemble_kernels/top_k_union.hpp"
#include "union_models.hpp"

namespace ensemble_kernels {

// One of `count` parts of about the same size.
struct Part {
  int64_t index, count;

  int64_t begin(int64_t size) const { return size * index / count; }
  int64_t end(int64_t size) const { return size * (index + 1) / count; }
};

class RankedModel {
 public:
  RankedModel(const UnionModel& model, const Tensor& score_columns, int64_t k);

  double weight() const { return model_.weight; }
  int64_t k() const { return k_; }
  int64_t blocks() const { return (width_ + block_ - 1) / block_; }

  // Appends a part's columns of several ids. False where its offsets are not those of a map.
  bool find_several(const Part& part, std::vector<int32_t>& columns) const;
  // All of them, ascending: what the following need.
  void set_several(std::vector<int32_t> columns) { several_ = std::move(columns); }

  // The highest score of each of the row's blocks; true where one of the part's logits is NaN.
  bool find_maxima(int64_t row, const Part& part, double* maxima) const;
  // The row's ids that score at least `bound` and are not excluded.
  std::vector<int32_t> ids_at_least(int64_t row, double bound, const double* maxima) const;

  int64_t width() const { return width_; }
  // Where in a part of the map the columns stand that a marked id makes alone, ascending.
  std::vector<int32_t> positions_of(const MarkedIds& marks, const Part& part) const;

  // The row's k likeliest columns, where `positions` has all columns of one id that reach `bound`.
  std::vector<int64_t> best_columns(int64_t row, double bound,
                                    const std::vector<int32_t>& positions) const;
  // The row's scores of the columns that `columns` take theirs from, -inf where they have none: n
  // that take that of one column get it less ln n.
  std::vector<double> scores_of(int64_t row, const std::vector<int64_t>& columns) const;

 private:
  BestCandidates best_of(int64_t row, const std::vector<int32_t>& positions) const;

  UnionModel model_;
  Tensor score_columns_;
  const int32_t *offsets_, *ids_, *sources_;
  int64_t k_, size_, width_, block_, element_size_;
  std::vector<int32_t> several_;
  bool (*block_maxima_)(const ModelRow&, int64_t, int64_t, int64_t, double, double*);
  int64_t (*ids_at_least_)(const ModelRow&, int64_t, int64_t, double, double, int32_t*);
  double (*score_of_ids_)(const ModelRow&, double, const int32_t*, int64_t);
};

}  // namespace ensemble_kernels

#include "ranked_model.hpp"

#define EK_KERNELS "ensemble_kernels/top_k_union_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

namespace ensemble_kernels {

namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();

}  // namespace

RankedModel::RankedModel(const UnionModel& model, const Tensor& score_columns, int64_t k)
    : model_(model),
      score_columns_(torch::stable::contiguous(score_columns)),
      offsets_(data_of<int32_t>(model_.offsets)),
      ids_(data_of<int32_t>(model_.ids)),
      sources_(data_of<int32_t>(score_columns_)),
      size_(model.offsets.size(0) - 1),
      width_(model.logits.size(1)) {
  k_ = std::min(k, std::max<int64_t>(1, size_));
  block_ = top_k_block(width_, k_);
  with_float_type(model.logits, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    element_size_ = sizeof(T);
    block_maxima_ = EK_DISPATCH(block_maxima<T>);
    ids_at_least_ = EK_DISPATCH(ids_at_least<T>);
    score_of_ids_ = &score_of_ids<T>;
  });
}

bool RankedModel::find_several(const Part& part, std::vector<int32_t>& columns) const {
  const int64_t end = part.end(size_), id_count = model_.ids.size(0);
  const auto columns_of_several = EK_DISPATCH(columns_of_several);
  int32_t found[top_k_chunk];
  for (int64_t start = part.begin(size_); start < end; start += top_k_chunk) {
    const int64_t number = columns_of_several(offsets_ + start, std::min(top_k_chunk, end - start),
                                              id_count, found);
    if (number < 0) {
      return false;
    }
    for (int64_t i = 0; i < number; ++i) {
      columns.push_back(static_cast<int32_t>(start + found[i]));
    }
  }
  return true;
}

bool RankedModel::find_maxima(int64_t row, const Part& part, double* maxima) const {
  const int64_t first = part.begin(blocks()), start = first * block_;
  const int64_t count = std::min(width_, part.end(blocks()) * block_) - start;
  return block_maxima_(model_.row(row, element_size_), start, count, block_, model_.temperature,
                       maxima + first);
}

std::vector<int32_t> RankedModel::ids_at_least(int64_t row, double bound,
                                               const double* maxima) const {
  const ModelRow logits = model_.row(row, element_size_);
  std::vector<int32_t> ids;
  int32_t found[top_k_largest_block];
  for (int64_t block = 0; block < blocks(); ++block) {
    if (maxima[block] >= bound && maxima[block] > nothing) {
      const int64_t start = block * block_;
      const int64_t number = ids_at_least_(logits, start, std::min(block_, width_ - start),
                                           model_.temperature, bound, found);
      ids.insert(ids.end(), found, found + number);
    }
  }
  return ids;
}

std::vector<int32_t> RankedModel::positions_of(const MarkedIds& marks, const Part& part) const {
  const int64_t first = offsets_[0], count = offsets_[size_] - first;
  const int64_t end = first + part.end(count);
  const auto marked_positions = EK_DISPATCH(marked_positions);
  std::vector<int32_t> positions;
  int32_t found[top_k_chunk];
  size_t next = 0;
  for (int64_t start = first + part.begin(count); start < end; start += top_k_chunk) {
    const int64_t number = marked_positions(marks, ids_ + start,
                                            std::min(top_k_chunk, end - start), found);
    for (int64_t i = 0; i < number; ++i) {
      const int64_t position = start + found[i];
      while (next < several_.size() && offsets_[several_[next] + 1] <= position) {
        ++next;
      }
      if (next == several_.size() || offsets_[several_[next]] > position) {
        positions.push_back(static_cast<int32_t>(position));
      }
    }
  }
  return positions;
}

BestCandidates RankedModel::best_of(int64_t row, const std::vector<int32_t>& positions) const {
  const ModelRow logits = model_.row(row, element_size_);
  const auto score_of = [&](int64_t position, int64_t count) {
    return score_of_ids_(logits, model_.temperature, ids_ + position, count);
  };
  BestCandidates best(k_);
  for (const int32_t position : positions) {
    const double score = score_of(position, 1);
    // They ascend: of equal ones the earlier ranks before. -inf is never above.
    if (score > best.threshold()) {
      best.push({score, position});
    }
  }
  best.shrink();
  for (const int32_t column : several_) {
    const int64_t begin = offsets_[column], count = offsets_[column + 1] - begin;
    double peak = nothing;
    for (int64_t i = 0; i < count; ++i) {
      peak = std::max(peak, score_of(begin + i, 1));
    }
    // ln n < n: a logarithm only where it may matter.
    if (peak > nothing && peak + static_cast<double>(count) >= best.threshold()) {
      best.push({score_of(begin, count), begin});
    }
  }
  best.shrink();
  return best;
}

std::vector<int64_t> RankedModel::best_columns(int64_t row, double bound,
                                               const std::vector<int32_t>& positions) const {
  BestCandidates best = best_of(row, positions);
  if (best.threshold() < bound) {
    MarkedIds all(width_);
    for (int64_t id = 0; id < width_; ++id) {
      all.add(static_cast<int32_t>(id));
    }
    best = best_of(row, positions_of(all, {0, 1}));
  }
  std::vector<int64_t> columns;
  for (const Candidate& candidate : best.kept()) {
    const int32_t* behind = std::upper_bound(offsets_, offsets_ + size_ + 1, candidate.position);
    columns.push_back(behind - offsets_ - 1);
  }
  return columns;
}

std::vector<double> RankedModel::scores_of(int64_t row, const std::vector<int64_t>& columns) const {
  const ModelRow logits = model_.row(row, element_size_);
  std::vector<int32_t> sources;
  for (const int64_t column : columns) {
    sources.push_back(sources_[column]);
  }
  std::vector<int32_t> sorted = sources;
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> scores;
  for (const int32_t source : sources) {
    if (source < 0 || source >= size_ || offsets_[source] == offsets_[source + 1]) {
      scores.push_back(nothing);
      continue;
    }
    const auto sharers = std::equal_range(sorted.begin(), sorted.end(), source);
    const int64_t begin = offsets_[source], count = offsets_[source + 1] - begin;
    scores.push_back(score_of_ids_(logits, model_.temperature, ids_ + begin, count) -
                     std::log(static_cast<double>(sharers.second - sharers.first)));
  }
  return scores;
}

}  // namespace ensemble_kernels

// `top_k_union` on CPU tensors.
#include "ensemble_kernels/top_k_union.hpp"

#include <tuple>

#include "operators.hpp"
#include "ranked_model.hpp"

namespace ensemble_kernels {

namespace {

// Rows that are selected together, and what is known of them.
struct RowGroup {
  int64_t first, count;
  std::vector<char> broken;    // [units]
  std::vector<double> maxima;  // [rows, blocks of all models]
  std::vector<double> bounds;  // [rows, models]
  std::vector<std::vector<int32_t>> positions;  // [models]
};

class TopK {
 public:
  TopK(const std::vector<UnionModel>& models, const std::vector<Tensor>& score_columns, int64_t k)
      : size_(models[0].offsets.size(0) - 1),
        stretches_(std::max<int64_t>(1, (size_ + top_k_stretch - 1) / top_k_stretch)) {
    for (size_t m = 0; m < models.size(); ++m) {
      if (models[m].weight != 0) {
        models_.emplace_back(models[m], score_columns[m], k);
        first_block_.push_back(first_block_.back() + models_.back().blocks());
      }
    }
  }

  // False where one is none. Before all else.
  bool read_maps() {
    std::vector<std::vector<int32_t>> several(count() * stretches_);
    std::atomic<bool> all{true};
    for_each_part(1, 0.1, [&](int64_t, int64_t m, const Part& part) {
      if (!models_[m].find_several(part, several[m * stretches_ + part.index])) {
        all = false;
      }
    });
    for (int64_t m = 0; m < count() && all; ++m) {
      models_[m].set_several(joined(several.data() + m * stretches_));
    }
    return all;
  }

  // The columns, ascending, then -1, and the probabilities of `rows` rows from `first` on.
  void select(int64_t first, int64_t rows, int64_t width, int64_t* columns, float* probabilities) {
    RowGroup group{first, rows, std::vector<char>(rows * count() * stretches_),
                   std::vector<double>(rows * first_block_.back()),
                   std::vector<double>(rows * count()), {}};
    for_each_part(rows, 0.1, [&](int64_t row, int64_t m, const Part& part) {
      group.broken[(row * count() + m) * stretches_ + part.index] =
          models_[m].find_maxima(first + row, part, maxima_of(group, row, m));
    });
    find_positions(group);
    for_each_unit(rows, 5000.0, [&](int64_t row) {
      mix(group, row, width, columns + (first + row) * width,
          probabilities + (first + row) * width);
    });
  }

 private:
  int64_t count() const { return static_cast<int64_t>(models_.size()); }

  double* maxima_of(RowGroup& group, int64_t row, int64_t m) const {
    return group.maxima.data() + row * first_block_.back() + first_block_[m];
  }

  bool is_broken(const RowGroup& group, int64_t row) const {
    const auto begin = group.broken.begin() + row * count() * stretches_;
    return std::count(begin, begin + count() * stretches_, 1) > 0;
  }

  // `body(row, model, part)`; `cost` is that of one logit, column or id.
  template <typename Body>
  void for_each_part(int64_t rows, double cost, const Body& body) const {
    const int64_t units = count() * stretches_;
    cost *= static_cast<double>(std::min(size_, top_k_stretch));
    for_each_unit(rows * units, cost, [&](int64_t i) {
      body(i / units, i % units / stretches_, Part{i % stretches_, stretches_});
    });
  }

  std::vector<int32_t> joined(const std::vector<int32_t>* parts) const {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < stretches_; ++i) {
      all.insert(all.end(), parts[i].begin(), parts[i].end());
    }
    return all;
  }

  // The bounds of all rows, and for each model where any row's ids that reach them are in the map.
  void find_positions(RowGroup& group) const {
    std::vector<std::vector<int32_t>> ids(group.count * count());
    for_each_unit(group.count * count(), 3000.0, [&](int64_t i) {
      const int64_t row = i / count(), m = i % count();
      if (!is_broken(group, row)) {
        double* maxima = maxima_of(group, row, m);
        group.bounds[i] = top_k_bound({maxima, maxima + models_[m].blocks()}, models_[m].k());
        ids[i] = models_[m].ids_at_least(group.first + row, group.bounds[i], maxima);
      }
    });
    std::vector<MarkedIds> marks;
    for (int64_t m = 0; m < count(); ++m) {
      marks.emplace_back(models_[m].width());
      for (int64_t row = 0; row < group.count; ++row) {
        for (const int32_t id : ids[row * count() + m]) {
          marks[m].add(id);
        }
      }
    }
    std::vector<std::vector<int32_t>> parts(count() * stretches_);
    for_each_part(1, 0.3, [&](int64_t, int64_t m, const Part& part) {
      parts[m * stretches_ + part.index] = models_[m].positions_of(marks[m], part);
    });
    for (int64_t m = 0; m < count(); ++m) {
      group.positions.push_back(joined(parts.data() + m * stretches_));
    }
  }

  // The union, ascending, of each model's k likeliest columns.
  std::vector<int64_t> candidates(const RowGroup& group, int64_t row) const {
    std::vector<int64_t> columns;
    for (int64_t m = 0; m < count(); ++m) {
      const std::vector<int64_t> best = models_[m].best_columns(
          group.first + row, group.bounds[row * count() + m], group.positions[m]);
      columns.insert(columns.end(), best.begin(), best.end());
    }
    std::sort(columns.begin(), columns.end());
    columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    return columns;
  }

  void mix(const RowGroup& group, int64_t row, int64_t width, int64_t* columns,
           float* probabilities) const {
    std::vector<int64_t> chosen;
    if (!is_broken(group, row)) {
      chosen = candidates(group, row);
    }
    std::vector<double> mixed(chosen.size());
    for (int64_t m = 0; m < count() && !chosen.empty(); ++m) {
      add_softmax(models_[m].scores_of(group.first + row, chosen), models_[m].weight(),
                  mixed.data());
    }
    const bool broken = chosen.empty() || std::any_of(mixed.begin(), mixed.end(),
                                                      [](double p) { return p != p; });
    const int64_t number = broken ? 0 : static_cast<int64_t>(chosen.size());
    std::copy(chosen.begin(), chosen.begin() + number, columns);
    std::copy(mixed.begin(), mixed.begin() + number, probabilities);
    std::fill(columns + number, columns + width, -1);
    std::fill(probabilities + number, probabilities + width,
              broken ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  }

  const int64_t size_, stretches_;
  std::vector<RankedModel> models_;
  std::vector<int64_t> first_block_{0};
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
  if (!top.read_maps()) {
    raise_bad_map();
  }
  for (int64_t first = 0; first < rows; first += top_k_rows) {
    top.select(first, std::min(top_k_rows, rows - first), width, writable<int64_t>(columns),
               writable<float>(probabilities));
  }
  return {columns, probabilities};
}

}  // namespace ensemble_kernels

// `mix_distributions` on CPU tensors.
#include "ensemble_kernels/vocabulary_mixture.hpp"

#include <memory>
#include <tuple>

#include "operators.hpp"
#include "union_models.hpp"

#define EK_KERNELS "ensemble_kernels/vocabulary_mixture_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

namespace ensemble_kernels {

namespace {

// One model and its kernels; sums of type `Sum` are double where any model's logits are.
template <typename Sum>
struct MixedModel {
  UnionModel model;
  int64_t element_size;
  decltype(&portable::softmax_total<float>) softmax_total;
  decltype(&portable::mix_chunk<float, Sum>) mix_chunk;
};

template <typename Sum>
std::vector<MixedModel<Sum>> mixed_models(const std::vector<UnionModel>& models) {
  std::vector<MixedModel<Sum>> result;
  for (const UnionModel& model : models) {
    with_float_type(model.logits, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      if constexpr (sizeof(T) <= sizeof(Sum)) {
        result.push_back({model, sizeof(T), EK_DISPATCH(softmax_total<T>),
                          EK_DISPATCH(mix_chunk<T, Sum>)});
      }
    });
  }
  return result;
}

template <typename Sum>
class Mixer {
 public:
  Mixer(const std::vector<UnionModel>& models, int64_t size, bool geometric)
      : models_(mixed_models<Sum>(models)), size_(size), geometric_(geometric) {}

  // `sums` has room for the columns of the union, and may be `probabilities`.
  void mix_row(int64_t row, Sum* sums, float* probabilities, float* lost_mass, int64_t rows,
               bool& fell_back) {
    const std::vector<ModelShare> shares = shares_of(row);
    std::vector<double> masses(models_.size());
    std::vector<SoftmaxTotal> totals = mix_chunks(row, shares, geometric_, sums, masses);
    bool broken = false;
    for (size_t m = 0; m < models_.size(); ++m) {
      broken = broken || (shares[m].weight > 0 && shares[m].softmax.broken());
      // Not std::max, which would lose a NaN.
      const double lost = 1 - masses[m];
      lost_mass[m * rows + row] = static_cast<float>(lost < 0 ? 0 : lost);
    }
    SoftmaxTotal all = merge_totals(totals.data(), static_cast<int64_t>(totals.size()), 1);
    fell_back = geometric_ && !broken && all.broken();
    const bool powers = geometric_ && !fell_back;
    if (fell_back) {
      mix_chunks(row, shares, false, sums, masses);
    }
    if (!powers) {
      all.total = 0;
      for (size_t m = 0; m < models_.size(); ++m) {
        all.total += shares[m].weight > 0 ? shares[m].weight * masses[m] : 0;
      }
    }
    const double factor =
        broken || !(all.total > 0) ? std::numeric_limits<double>::quiet_NaN() : 1 / all.total;
    const auto scale = EK_DISPATCH(scale_to<Sum>);
    for_each_unit(chunks(), mixture_chunk * 0.1, [&](int64_t i) {
      const int64_t start = i * mixture_chunk;
      const double power = powers ? std::exp2(totals[i].maximum - all.maximum) : 1;
      scale(sums + start, factor * power, chunk_size(start), probabilities + start);
    });
  }

  double cost_of_row() const {
    return static_cast<double>(size_ * static_cast<int64_t>(models_.size()));
  }

  bool bad_map() const { return bad_map_; }

 private:
  int64_t chunks() const { return (size_ + mixture_chunk - 1) / mixture_chunk; }
  int64_t chunk_size(int64_t start) const { return std::min(mixture_chunk, size_ - start); }

  std::vector<ModelShare> shares_of(int64_t row) const {
    std::vector<int64_t> first_stretch{0};
    for (const MixedModel<Sum>& mixed : models_) {
      const int64_t width = mixed.model.logits.size(1);
      first_stretch.push_back(first_stretch.back() +
                              (width + mixture_stretch - 1) / mixture_stretch);
    }
    std::vector<SoftmaxTotal> parts(first_stretch.back());
    for_each_unit(first_stretch.back(), mixture_stretch * 0.2, [&](int64_t i) {
      size_t m = 0;
      while (first_stretch[m + 1] <= i) {
        ++m;
      }
      const MixedModel<Sum>& mixed = models_[m];
      const int64_t start = (i - first_stretch[m]) * mixture_stretch;
      mixed.softmax_total(mixed.model.row(row, mixed.element_size), start,
                          std::min(mixture_stretch, mixed.model.logits.size(1) - start),
                          mixed.model.factor(), parts[i]);
    });
    std::vector<ModelShare> shares;
    for (size_t m = 0; m < models_.size(); ++m) {
      const UnionModel& model = models_[m].model;
      shares.push_back({model.weight, model.factor(),
                        merge_totals(parts.data() + first_stretch[m],
                                     first_stretch[m + 1] - first_stretch[m], model.factor())});
    }
    return shares;
  }

  // Of the geometric mean, each chunk's maximum and sum; what is written is relative to the maximum.
  std::vector<SoftmaxTotal> mix_chunks(int64_t row, const std::vector<ModelShare>& shares,
                                       bool geometric, Sum* sums, std::vector<double>& masses) {
    const int64_t count = chunks();
    const size_t model_count = models_.size();
    std::vector<SoftmaxTotal> totals(geometric ? count : 0);
    std::vector<double> parts(count * model_count);
    const auto powers_of_logs = EK_DISPATCH(powers_of_logs<Sum>);
    for_each_unit(count, mixture_chunk * static_cast<double>(model_count), [&](int64_t i) {
      const int64_t start = i * mixture_chunk, size = chunk_size(start);
      std::fill(sums + start, sums + start + size, Sum(0));
      for (size_t m = 0; m < model_count; ++m) {
        mix_chunk(row, m, shares[m], geometric, start, sums + start, parts[i * model_count + m]);
      }
      if (geometric) {
        powers_of_logs(sums + start, size, totals[i]);
      }
    });
    for (size_t m = 0; m < model_count; ++m) {
      masses[m] = shares[m].softmax.broken() ? std::numeric_limits<double>::quiet_NaN() : 0;
      for (int64_t i = 0; i < count; ++i) {
        masses[m] += parts[i * model_count + m];
      }
    }
    return totals;
  }

  void mix_chunk(int64_t row, size_t m, const ModelShare& share, bool geometric, int64_t start,
                 Sum* sums, double& mass) {
    const MixedModel<Sum>& mixed = models_[m];
    MapChunk map;
    if (!mixed.model.chunk(start, chunk_size(start), map)) {
      bad_map_ = true;
    } else if (!share.softmax.broken()) {
      const int64_t ids = map.offsets[map.count] - map.offsets[0];
      const std::unique_ptr<double[]> scratch(new double[ids + map.count + 16]);
      if (!mixed.mix_chunk(mixed.model.row(row, mixed.element_size), map, share, geometric,
                           scratch.get(), sums, mass)) {
        bad_map_ = true;
      }
    }
  }

  const std::vector<MixedModel<Sum>> models_;
  const int64_t size_;
  const bool geometric_;
  std::atomic<bool> bad_map_{false};
};

template <typename Sum>
void mix_rows(const std::vector<UnionModel>& models, bool geometric, const Tensor& probabilities,
              const Tensor& lost_mass, const Tensor& fell_back) {
  const int64_t rows = probabilities.size(0), size = probabilities.size(1);
  Mixer<Sum> mixer(models, size, geometric);
  const auto mix_row = [&](int64_t row) {
    float* result = writable<float>(probabilities) + row * size;
    bool& flag = writable<bool>(fell_back)[row];
    if constexpr (sizeof(Sum) == sizeof(float)) {
      mixer.mix_row(row, result, result, writable<float>(lost_mass), rows, flag);
    } else {
      const std::unique_ptr<Sum[]> sums(new Sum[size]);
      mixer.mix_row(row, sums.get(), result, writable<float>(lost_mass), rows, flag);
    }
  };
  if (rows >= torch::stable::get_num_threads()) {
    for_each_unit(rows, mixer.cost_of_row(), mix_row);
  } else {  // the threads share a row
    for (int64_t row = 0; row < rows; ++row) {
      mix_row(row);
    }
  }
  if (mixer.bad_map()) {
    raise_bad_map();
  }
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> mix_distributions(std::vector<Tensor> logits,
                                                     std::vector<Tensor> map_offsets,
                                                     std::vector<Tensor> map_ids, Tensor weights,
                                                     Tensor temperature, bool geometric) {
  count_call("mix_distributions");
  const std::vector<UnionModel> models =
      union_models(logits, map_offsets, map_ids, weights, temperature);
  const int64_t rows = logits[0].size(0), size = map_offsets[0].size(0) - 1;
  Tensor probabilities = empty_cpu({rows, size}, ScalarType::Float);
  Tensor lost_mass =
      empty_cpu({static_cast<int64_t>(models.size()), rows}, ScalarType::Float);
  Tensor fell_back = empty_cpu({rows}, ScalarType::Bool);
  if (any_double(models)) {
    mix_rows<double>(models, geometric, probabilities, lost_mass, fell_back);
  } else {
    mix_rows<float>(models, geometric, probabilities, lost_mass, fell_back);
  }
  return {probabilities, lost_mass, fell_back};
}

}  // namespace ensemble_kernels

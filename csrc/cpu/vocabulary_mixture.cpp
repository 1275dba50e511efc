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
  decltype(&portable::highest_logit<float>) highest_logit;
  decltype(&portable::write_powers<float, Sum>) write_powers;
};

template <typename Sum>
std::vector<MixedModel<Sum>> mixed_models(const std::vector<UnionModel>& models) {
  std::vector<MixedModel<Sum>> result;
  for (const UnionModel& model : models) {
    with_float_type(model.logits, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      if constexpr (sizeof(T) <= sizeof(Sum)) {
        result.push_back({model, sizeof(T), EK_DISPATCH(highest_logit<T>),
                          EK_DISPATCH(write_powers<T, Sum>)});
      }
    });
  }
  return result;
}

template <typename Sum>
class Mixer {
 public:
  Mixer(const std::vector<UnionModel>& models, int64_t size, bool geometric)
      : models_(mixed_models<Sum>(models)), size_(size), geometric_(geometric) {
    for (const UnionModel& model : models) {
      const int64_t width = model.logits.size(1);
      first_stretch_.push_back(first_stretch_.back() +
                               (width + mixture_stretch - 1) / mixture_stretch);
      first_power_.push_back(first_power_.back() + width);
    }
  }

  // `sums` has room for the columns of the union, and may be `probabilities`.
  void mix_row(int64_t row, Sum* sums, float* probabilities, float* lost_mass, int64_t rows,
               bool& fell_back) {
    // Kept, since megabytes of fresh memory cost more than what is written to them.
    thread_local std::vector<Sum> kept;
    kept.resize(std::max(kept.size(), static_cast<size_t>(first_power_.back())));
    Sum* const powers = kept.data();
    const std::vector<double> maxima = maxima_of(row);
    std::vector<ModelShare> shares = write_powers(row, maxima, geometric_, powers);
    std::vector<double> masses(models_.size());
    std::vector<ChunkTotal> totals = mix_chunks(powers, shares, geometric_, sums, masses);
    bool broken = false;
    for (size_t m = 0; m < models_.size(); ++m) {
      broken = broken || (shares[m].weight > 0 && shares[m].broken());
      // Not std::max, which would lose a NaN.
      const double lost = 1 - masses[m];
      lost_mass[m * rows + row] = static_cast<float>(lost < 0 ? 0 : lost);
    }
    ChunkTotal all = merge_totals(totals);
    fell_back = geometric_ && !broken && !(all.total > 0);
    if (fell_back) {
      shares = write_powers(row, maxima, false, powers);
      mix_chunks(powers, shares, false, sums, masses);
    }
    const bool of_logs = geometric_ && !fell_back;
    if (!of_logs) {
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
      const double power = of_logs ? std::exp2(totals[i].maximum - all.maximum) : 1;
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

  // `body(m, start, count)` for the stretches of each model's logits; its results, one a stretch.
  template <typename Body>
  std::vector<double> for_each_stretch(const Body& body) const {
    std::vector<double> results(first_stretch_.back());
    for_each_unit(first_stretch_.back(), mixture_stretch * 0.2, [&](int64_t i) {
      size_t m = 0;
      while (first_stretch_[m + 1] <= i) {
        ++m;
      }
      const int64_t start = (i - first_stretch_[m]) * mixture_stretch;
      const int64_t width = models_[m].model.logits.size(1);
      results[i] = body(m, start, std::min(mixture_stretch, width - start));
    });
    return results;
  }

  std::vector<double> maxima_of(int64_t row) const {
    const std::vector<double> parts = for_each_stretch([&](size_t m, int64_t start, int64_t count) {
      const MixedModel<Sum>& mixed = models_[m];
      return mixed.highest_logit(mixed.model.row(row, mixed.element_size), start, count);
    });
    std::vector<double> maxima;
    for (size_t m = 0; m < models_.size(); ++m) {
      maxima.push_back(*std::max_element(parts.begin() + first_stretch_[m],
                                         parts.begin() + first_stretch_[m + 1]));
    }
    return maxima;
  }

  std::vector<ModelShare> write_powers(int64_t row, const std::vector<double>& maxima, bool logs,
                                       Sum* powers) const {
    const std::vector<double> parts = for_each_stretch([&](size_t m, int64_t start, int64_t count) {
      const MixedModel<Sum>& mixed = models_[m];
      return mixed.write_powers(mixed.model.row(row, mixed.element_size), start, count, maxima[m],
                                mixed.model.factor(), logs, powers + first_power_[m] + start);
    });
    std::vector<ModelShare> shares;
    for (size_t m = 0; m < models_.size(); ++m) {
      double total = 0;
      for (int64_t i = first_stretch_[m]; i < first_stretch_[m + 1]; ++i) {
        total += parts[i];
      }
      shares.push_back({models_[m].model.weight, total, models_[m].model.logits.size(1)});
    }
    return shares;
  }

  // Of the geometric mean, each chunk's maximum and sum; what is written is relative to that.
  std::vector<ChunkTotal> mix_chunks(const Sum* powers, const std::vector<ModelShare>& shares,
                                     bool geometric, Sum* sums, std::vector<double>& masses) {
    const int64_t count = chunks();
    const size_t model_count = models_.size();
    std::vector<ChunkTotal> totals(geometric ? count : 0);
    std::vector<double> parts(count * model_count);
    const auto powers_of_logs = EK_DISPATCH(powers_of_logs<Sum>);
    for_each_unit(count, mixture_chunk * static_cast<double>(model_count), [&](int64_t i) {
      const int64_t start = i * mixture_chunk;
      mix_chunk(powers, shares, geometric, start, sums + start, parts.data() + i * model_count);
      if (geometric) {
        powers_of_logs(sums + start, chunk_size(start), totals[i]);
      }
    });
    for (size_t m = 0; m < model_count; ++m) {
      masses[m] = shares[m].broken() ? std::numeric_limits<double>::quiet_NaN() : 0;
      for (int64_t i = 0; i < count; ++i) {
        masses[m] += parts[i * model_count + m];
      }
    }
    return totals;
  }

  void mix_chunk(const Sum* powers, const std::vector<ModelShare>& shares, bool geometric,
                 int64_t start, Sum* sums, double* masses) {
    const auto kernel = EK_DISPATCH(mix_chunk<Sum>);
    const int64_t size = chunk_size(start);
    bool first = true;
    std::unique_ptr<Sum[]> scratch;
    int64_t room = 0;
    for (size_t m = 0; m < models_.size(); ++m) {
      MapChunk map;
      if (!models_[m].model.chunk(start, size, map)) {
        bad_map_ = true;
        return;
      }
      const int64_t needed = map.offsets[size] - map.offsets[0] + size + 16;
      if (needed > room) {
        scratch.reset(new Sum[needed]);
        room = needed;
      }
      if (shares[m].broken()) {
        continue;
      }
      if (!kernel(powers + first_power_[m], map, shares[m], geometric, first, scratch.get(), sums,
                  masses[m])) {
        bad_map_ = true;
      }
      first = first && shares[m].weight == 0;
    }
    if (first) {
      std::fill(sums, sums + size, Sum(0));
    }
  }

  const std::vector<MixedModel<Sum>> models_;
  const int64_t size_;
  const bool geometric_;
  // Where each model's stretches, and its powers, begin among those of all.
  std::vector<int64_t> first_stretch_{0}, first_power_{0};
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
  for_each_row(rows, mixer.cost_of_row(), mix_row);
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

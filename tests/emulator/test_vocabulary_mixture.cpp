// The arithmetic mean over the union vocabulary, gathered by the kernel, against one scattered.
#include "each_order.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

namespace {

// A map of `width` ids onto the columns of a union, some onto none.
struct Map {
  std::vector<int32_t> column_of, offsets, ids;

  Map(int64_t width, int64_t size, std::mt19937& random) : column_of(width), offsets{0} {
    for (int32_t& column : column_of) {
      column = static_cast<int32_t>(random() % (size + 1)) - 1;
    }
    for (int32_t column = 0; column < size; ++column) {
      for (int32_t id = 0; id < width; ++id) {
        if (column_of[id] == column) {
          ids.push_back(id);
        }
      }
      offsets.push_back(static_cast<int32_t>(ids.size()));
    }
  }
};

struct Ensemble {
  int64_t rows, size;
  std::vector<Map> maps;
  std::vector<std::unique_ptr<float[]>> logits;
  std::vector<float> weights{0.25f, 0, 1.5f}, temperature{1, 1, 0.7f};
  EkUnionModels all{};

  Ensemble(int64_t rows, int64_t size, std::mt19937& random) : rows(rows), size(size) {
    for (const int64_t width : {size + 5, int64_t{3}, 2 * size}) {
      maps.emplace_back(width, size, random);
      logits.push_back(filled<float>(rows * width, random, 2));
    }
    for (size_t m = 0; m < maps.size(); ++m) {
      const int64_t width = static_cast<int64_t>(maps[m].column_of.size());
      all.models[m] = {logits[m].get(), maps[m].offsets.data(), maps[m].ids.data(), width, 1, width,
                       static_cast<int64_t>(maps[m].ids.size()), EK_FLOAT32};
    }
    all.weights = weights.data();
    all.temperature = temperature.data();
    all.rows = rows;
    all.size = size;
    all.count = 3;
  }

  // The arithmetic mean, by scattering, not normalised.
  std::vector<double> mixed(int64_t row) const {
    std::vector<double> result(size);
    for (size_t m = 0; m < maps.size(); ++m) {
      const size_t width = maps[m].column_of.size();
      double total = 0;
      for (size_t id = 0; id < width; ++id) {
        total += std::exp(double{logits[m][row * width + id]} / temperature[m]);
      }
      for (size_t id = 0; id < width; ++id) {
        if (maps[m].column_of[id] >= 0) {
          result[maps[m].column_of[id]] +=
              weights[m] / total * std::exp(double{logits[m][row * width + id]} / temperature[m]);
        }
      }
    }
    return result;
  }
};

void check_mixture(int64_t size, std::mt19937& random) {
  const Ensemble ensemble(2, size, random);
  std::vector<float> probabilities(2 * size), lost(3 * 2);
  std::vector<uint8_t> fell_back(2);
  EkMixture call{};
  call.all = ensemble.all;
  std::vector<double> workspace(ek_mix_distributions_workspace(&call.all) / 8);
  call.probabilities = probabilities.data();
  call.lost_mass = lost.data();
  call.fell_back = fell_back.data();
  call.workspace = workspace.data();
  CHECK_EQUAL(ek_mix_distributions(&call, nullptr), 0);
  for (int64_t row = 0; row < 2; ++row) {
    const std::vector<double> mixed = ensemble.mixed(row);
    double total = 0;
    for (const double value : mixed) {
      total += value;
    }
    for (int64_t column = 0; column < size; ++column) {
      CHECK_CLOSE(probabilities[row * size + column], mixed[column] / total, 2e-6);
    }
    CHECK(!fell_back[row]);
  }
}

TEST(models_of_any_width_are_mixed_over_their_union) {
  std::mt19937 random(3);
  in_each_order([&] {
    for (const int64_t size : {1, 40, 1023, 2500}) {
      check_mixture(size, random);
    }
  });
}

}  // namespace

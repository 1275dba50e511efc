// One row of one model through random maps against loops, in each instruction set. Every array ends
// where its allocation ends, so that the address sanitizer sees a read behind it.
#include "ensemble_kernels/vocabulary_mixture.hpp"

#include <memory>
#include <random>
#include <vector>

#define EK_WITH_BF16
#define EK_KERNELS "ensemble_kernels/vocabulary_mixture_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

#include "each_isa.hpp"

using namespace ensemble_kernels;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// A map of `columns` columns to some of `ids` ids and, with `foreign`, to some that are none.
struct Map {
  std::unique_ptr<int32_t[]> offsets, ids;
  int64_t columns, id_count;

  Map(int64_t columns, int64_t width, bool many, bool foreign, std::mt19937& random)
      : columns(columns) {
    std::vector<int32_t> all{0}, some;
    for (int64_t column = 0; column < columns; ++column) {
      const int count = many ? static_cast<int>(random() % 4) : static_cast<int>(random() % 2);
      for (int i = 0; i < count; ++i) {
        some.push_back(static_cast<int32_t>(random() % (width + (foreign ? 3 : 0))));
      }
      all.push_back(static_cast<int32_t>(some.size()));
    }
    id_count = static_cast<int64_t>(some.size());
    offsets.reset(new int32_t[all.size()]);
    std::copy(all.begin(), all.end(), offsets.get());
    ids.reset(new int32_t[some.size()]);
    std::copy(some.begin(), some.end(), ids.get());
  }
};

template <typename T>
struct Row {
  std::unique_ptr<T[]> data;
  std::vector<double> values;
  int64_t stride;

  Row(int64_t width, int64_t stride, std::mt19937& random) : stride(stride) {
    std::normal_distribution<float> normal;
    data.reset(new T[(width - 1) * stride + 1]());
    for (int64_t i = 0; i < width; ++i) {
      narrow(random() % 7 ? normal(random) * 3 : -std::numeric_limits<float>::infinity(),
             data[i * stride]);
      values.push_back(widen(data[i * stride]));
    }
  }
};

template <typename T, typename Sum>
struct Kernels {
  double (*highest)(const ModelRow&, int64_t, int64_t);
  double (*powers)(const ModelRow&, int64_t, int64_t, double, double, bool, Sum*);
  bool (*mix)(const Sum*, const MapChunk&, const ModelShare&, bool, bool, Sum*, Sum*, double&);
};

// Probabilities of the columns, or their logarithms to base 2, as the map makes them of a softmax.
std::vector<double> expected_columns(const std::vector<double>& logits, const Map& map,
                                     double maximum, double factor, double total, bool logs) {
  std::vector<double> columns;
  for (int64_t column = 0; column < map.columns; ++column) {
    double sum = 0;
    for (int64_t i = map.offsets[column]; i < map.offsets[column + 1]; ++i) {
      const int64_t id = map.ids[i];
      sum += id < static_cast<int64_t>(logits.size())
                 ? std::exp2((logits[id] - maximum) * factor) / total
                 : 0;
    }
    columns.push_back(logs ? std::log2(sum) : sum);
  }
  return columns;
}

template <typename T, typename Sum>
void compare(const Kernels<T, Sum>& kernels, double tolerance) {
  std::mt19937 random(5);
  for (const int64_t width : {1, 7, 16, 33, 1025}) {
    for (const int64_t count : {1, 15, 16, 17, 64, 200}) {
      for (int variant = 0; variant < 8; ++variant) {
        const bool many = variant & 1, foreign = variant & 2, logs = variant & 4;
        const Row<T> row(width, 1 + variant % 2, random);
        const Map map(count, width, many, foreign, random);
        const ModelRow model{row.data.get(), row.stride, width};
        const double maximum = kernels.highest(model, 0, width), factor = 1.1;
        CHECK_EQUAL(maximum, *std::max_element(row.values.begin(), row.values.end()));
        if (maximum == -infinity) {
          continue;
        }
        const std::unique_ptr<Sum[]> powers(new Sum[width]);
        const double total = kernels.powers(model, 0, width, maximum, factor, logs, powers.get());
        double wanted_total = 0;
        for (const double value : row.values) {
          wanted_total += std::exp2((value - maximum) * factor);
        }
        CHECK_CLOSE(total, wanted_total, tolerance * wanted_total);
        const auto columns = expected_columns(row.values, map, maximum, factor, total, logs);
        const std::unique_ptr<Sum[]> scratch(new Sum[map.id_count + count + 16]);
        const std::unique_ptr<Sum[]> sums(new Sum[count]);
        std::fill(sums.get(), sums.get() + count, Sum(logs ? -1 : 1));
        const ModelShare share{0.5, total, width};
        const MapChunk chunk{map.offsets.get(), map.ids.get(), count};
        double mass = 0;
        const bool first = variant % 3 == 0;
        CHECK(kernels.mix(powers.get(), chunk, share, logs, first, scratch.get(), sums.get(), mass));
        for (int64_t i = 0; i < count; ++i) {
          const double before = first ? 0 : logs ? -1 : 1;
          CHECK_CLOSE(sums[i], before + 0.5 * columns[i], tolerance * (logs ? 64 : 2));
        }
      }
    }
  }
}

#define EK_COMPARE(T, Sum, isa, tolerance)                                                       \
  if (check::enter(Isa::isa, #T)) {                                                              \
    compare<T, Sum>({&isa::highest_logit<T>, &isa::write_powers<T, Sum>, &isa::mix_chunk<Sum>},  \
                    tolerance);                                                                  \
  }
#if EK_X86
#define EK_COMPARE_ALL(T, Sum, tolerance)     \
  EK_COMPARE(T, Sum, portable, tolerance)     \
  EK_COMPARE(T, Sum, avx2, tolerance)         \
  EK_COMPARE(T, Sum, avx512, tolerance)       \
  EK_COMPARE(T, Sum, avx512_bf16, tolerance)
#else
#define EK_COMPARE_ALL(T, Sum, tolerance) EK_COMPARE(T, Sum, portable, tolerance)
#endif

TEST(float32) { EK_COMPARE_ALL(float, float, 1e-6) }
TEST(float64) { EK_COMPARE_ALL(double, double, 1e-13) }
TEST(float16) { EK_COMPARE_ALL(Float16, float, 1e-6) }
TEST(bfloat16_beside_float64) { EK_COMPARE_ALL(BFloat16, double, 1e-6) }

}  // namespace

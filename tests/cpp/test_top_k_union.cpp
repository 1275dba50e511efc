// The kernels of `top_k_union` against loops, in each instruction set. Every array ends where its
// allocation ends, so that the address sanitizer sees a read behind it.
#include "ensemble_kernels/top_k_union.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#define EK_WITH_BF16
#define EK_KERNELS "ensemble_kernels/top_k_union_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

#include "each_isa.hpp"

using namespace ensemble_kernels;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double temperature = 0.7;

// Logits with ties and -inf among them, and the scores that they make.
template <typename T>
struct Row {
  std::unique_ptr<T[]> data;
  std::vector<double> scores;
  ModelRow row;

  Row(int64_t width, int64_t stride, std::mt19937& random) {
    data.reset(new T[(width - 1) * stride + 1]());
    for (int64_t i = 0; i < width; ++i) {
      set(i * stride, random() % 7 ? static_cast<float>(random() % 64) / 4 : -infinity);
    }
    row = {data.get(), stride, width};
    for (int64_t i = 0; i < width; ++i) {
      scores.push_back(score_of_id<T>(row, temperature, static_cast<int32_t>(i)));
    }
  }
  void set(int64_t place, double value) { narrow(static_cast<float>(value), data[place]); }
};

template <typename T>
void maxima_are_those_of_the_blocks(decltype(&portable::block_maxima<T>) block_maxima) {
  std::mt19937 random(3);
  for (const int64_t width : {1, 15, 32, 33, 1000}) {
    for (const int64_t stride : {1, 3}) {
      Row<T> some(width, stride, random);
      const int64_t start = width > 32 ? 32 : 0, count = width - start;
      const std::unique_ptr<double[]> maxima(new double[(count + 31) / 32]);
      CHECK(!block_maxima(some.row, start, count, 32, temperature, maxima.get()));
      for (int64_t i = start; i < width; i += 32) {
        const auto begin = some.scores.begin() + i;
        CHECK_EQUAL(maxima[(i - start) / 32],
                    *std::max_element(begin, begin + std::min<int64_t>(32, width - i)));
      }
      some.set((start + static_cast<int64_t>(random() % count)) * stride, std::nan(""));
      CHECK(block_maxima(some.row, start, count, 32, temperature, maxima.get()));
    }
  }
}

template <typename T>
void ids_are_those_that_reach_the_bound(decltype(&portable::ids_at_least<T>) ids_at_least) {
  std::mt19937 random(4);
  for (const int64_t width : {1, 15, 33, 1000}) {
    for (const int64_t stride : {1, 3}) {
      const Row<T> some(width, stride, random);
      for (const double lowest : {-infinity, some.scores[random() % width], infinity}) {
        const int64_t start = width / 3;
        std::vector<int32_t> expected, ids(width - start);
        for (int64_t i = start; i < width; ++i) {
          if (some.scores[i] >= lowest && some.scores[i] > -infinity) {
            expected.push_back(static_cast<int32_t>(i));
          }
        }
        ids.resize(ids_at_least(some.row, start, width - start, temperature, lowest, ids.data()));
        CHECK(ids == expected);
      }
    }
  }
}

void several_ids_are_found(decltype(&portable::columns_of_several) columns_of_several) {
  std::mt19937 random(5);
  for (const int64_t count : {1, 63, 64, 65, 200}) {
    for (const int rarity : {2, 100}) {
      const std::unique_ptr<int32_t[]> offsets(new int32_t[count + 1]);
      std::vector<int32_t> expected, found(count);
      offsets[0] = static_cast<int32_t>(random() % 3);
      for (int64_t i = 0; i < count; ++i) {
        const int32_t ids = static_cast<int32_t>(random() % rarity ? random() % 2 : random() % 4);
        offsets[i + 1] = offsets[i] + ids;
        if (ids > 1) {
          expected.push_back(static_cast<int32_t>(i));
        }
      }
      const int32_t id_count = offsets[count];
      found.resize(columns_of_several(offsets.get(), count, id_count, found.data()));
      CHECK(found == expected);
      found.resize(count);
      CHECK_EQUAL(columns_of_several(offsets.get(), count, id_count - 1, found.data()), -1);
      const int64_t place = static_cast<int64_t>(random() % count);
      for (const int32_t wrong : {-1, id_count + 1, INT32_MAX, INT32_MIN}) {
        const int32_t right = std::exchange(offsets[place], wrong);
        CHECK_EQUAL(columns_of_several(offsets.get(), count, id_count, found.data()), -1);
        offsets[place] = right;
      }
    }
  }
}

void marked_ids_are_found(decltype(&portable::marked_positions) marked_positions) {
  std::mt19937 random(6);
  for (const int64_t width : {1, 100, 3000, 300000}) {
    for (const int64_t count : {1, 15, 16, 17, 1000}) {
      for (const int64_t marked : {0, 5, 64, 65, 1000}) {
        MarkedIds marks(width);
        for (int64_t i = 0; i < marked; ++i) {
          marks.add(static_cast<int32_t>(random() % width));
        }
        const std::unique_ptr<int32_t[]> ids(new int32_t[count]);
        std::vector<int32_t> expected, positions(count);
        for (int64_t i = 0; i < count; ++i) {
          ids[i] = static_cast<int32_t>(random() % (width + 40)) - 20;
          const auto place = static_cast<size_t>(ids[i]);
          if (ids[i] >= 0 && ids[i] < width && (marks.bits[place / 32] >> place % 32 & 1)) {
            expected.push_back(static_cast<int32_t>(i));
          }
        }
        positions.resize(marked_positions(marks, ids.get(), count, positions.data()));
        CHECK(positions == expected);
      }
    }
  }
}

TEST(maxima) {
  EACH_ISA(maxima_are_those_of_the_blocks<float>, block_maxima<float>);
  EACH_ISA(maxima_are_those_of_the_blocks<double>, block_maxima<double>);
  EACH_ISA(maxima_are_those_of_the_blocks<Float16>, block_maxima<Float16>);
  EACH_ISA(maxima_are_those_of_the_blocks<BFloat16>, block_maxima<BFloat16>);
}

TEST(ids) {
  EACH_ISA(ids_are_those_that_reach_the_bound<float>, ids_at_least<float>);
  EACH_ISA(ids_are_those_that_reach_the_bound<double>, ids_at_least<double>);
  EACH_ISA(ids_are_those_that_reach_the_bound<Float16>, ids_at_least<Float16>);
  EACH_ISA(ids_are_those_that_reach_the_bound<BFloat16>, ids_at_least<BFloat16>);
}

TEST(several) { EACH_ISA(several_ids_are_found, columns_of_several); }

TEST(marked) { EACH_ISA(marked_ids_are_found, marked_positions); }

TEST(best_are_those_of_a_sort) {
  std::mt19937 random(7);
  for (const int64_t k : {1, 3, 40, 200}) {
    std::vector<Candidate> all;
    BestCandidates best(k);
    for (int64_t i = 0; i < 150; ++i) {
      all.push_back({static_cast<double>(random() % 20), i});
    }
    std::shuffle(all.begin(), all.end(), random);
    for (const Candidate& candidate : all) {
      if (candidate.score >= best.threshold()) {
        best.push(candidate);
      }
    }
    best.shrink();
    std::vector<Candidate> kept = best.kept();
    std::sort(all.begin(), all.end(), ranks_before);
    std::sort(kept.begin(), kept.end(), ranks_before);
    CHECK_EQUAL(kept.size(), std::min<size_t>(k, all.size()));
    for (size_t i = 0; i < kept.size(); ++i) {
      CHECK_EQUAL(kept[i].position, all[i].position);
    }
  }
}

}  // namespace

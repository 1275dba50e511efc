// States of splits merged by their log-sum-exp, against sums in double.
#include "each_order.hpp"

#include <cmath>
#include <limits>

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(states_of_splits_are_merged) {
  std::mt19937 random(4);
  in_each_order([&] {
    for (const int64_t size : {1, 5, 64, 136}) {
      constexpr int64_t splits = 37, rows = 6;
      const auto states = filled<float>(splits * rows * size, random);
      const auto lse = filled<float>(splits * rows, random);
      for (int64_t split = 0; split < splits; ++split) {
        lse[split * rows] = -infinity;  // the first row sees nothing
      }
      const auto out = filled<float>(rows * size, random), merged = filled<float>(rows, random);
      EkAttentionStates call{};
      call.states = states.get();
      call.lse = lse.get();
      call.splits = splits;
      call.rows = rows;
      call.size = size;
      call.out = out.get();
      call.merged_lse = merged.get();
      call.type = EK_FLOAT32;
      CHECK_EQUAL(ek_merge_attention_states(&call, nullptr), 0);
      for (int64_t row = 0; row < rows; ++row) {
        double total = 0;
        for (int64_t split = 0; split < splits; ++split) {
          total += std::exp(double{lse[split * rows + row]});
        }
        CHECK_CLOSE(merged[row], std::log(total), 1e-5);
        for (int64_t i = 0; i < size; ++i) {
          double sum = 0;
          for (int64_t split = 0; split < splits; ++split) {
            sum += std::exp(double{lse[split * rows + row]}) *
                   double{states[(split * rows + row) * size + i]};
          }
          CHECK_CLOSE(out[row * size + i], row == 0 ? 0 : sum / total, 1e-4);
        }
      }
    }
  });
}

}  // namespace

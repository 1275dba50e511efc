// What no grid can hold, for each launcher.
#include "each_order.hpp"

#include <cstdint>

namespace {

TEST(what_no_grid_can_hold_is_refused_before_it_is_launched) {
  constexpr int64_t much = int64_t{1} << 40;
  EkCompaction compaction{};
  compaction.matrices = compaction.groups = compaction.kept = 1;
  compaction.group_units = much;
  EkTokenStatistics statistics{};
  statistics.rows = much;
  statistics.vocab_size = 1;
  EkSegmentMean mean{};
  mean.segments = much;
  EkMixture mixture{};
  mixture.all.rows = much;
  EkSharpening sharpening{};
  sharpening.rows = much;
  sharpening.size = 1;
  EkTopK top_k{};
  top_k.all.rows = much;
  top_k.all.size = top_k.all.count = 1;
  EkAttentionStates states{};
  states.rows = much;
  for (const int error :
       {ek_compact_kv(&compaction, nullptr), ek_token_statistics(&statistics, nullptr),
        ek_segment_mean(&mean, nullptr), ek_mix_distributions(&mixture, nullptr),
        ek_sharpen_prefixes(&sharpening, nullptr), ek_top_k_union(&top_k, nullptr),
        ek_merge_attention_states(&states, nullptr)}) {
    CHECK_EQUAL(error, static_cast<int>(cudaErrorInvalidConfiguration));
  }
}

}  // namespace

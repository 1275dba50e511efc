// The CUDA kernels through their C launchers, against plain loops: in every order of threads, on
// memory that ends where it must, so that the sanitizers see what goes beyond. The cases of
// tests/kernels go further; these need neither torch nor Python.
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "check.hpp"
#include "cuda/launchers.h"
#include "ensemble_kernels/scalars.hpp"

using ensemble_kernels::BFloat16;
using ensemble_kernels::widen;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

template <typename Body>
void in_each_order(const Body& body) {
  for (const unsigned order : {0u, 1u, 7u}) {
    emulator::order = order;
    check::context = "order " + std::to_string(order);
    body();
  }
  emulator::order = 0;
}

// Of this very size, so that a tool sees what goes beyond it.
template <typename T>
std::unique_ptr<T[]> filled(size_t count, std::mt19937& random, float spread = 4) {
  std::unique_ptr<T[]> values(new T[count]);
  std::normal_distribution<float> normal(0, spread);
  for (size_t i = 0; i < count; ++i) {
    ensemble_kernels::narrow(normal(random), values[i]);
  }
  return values;
}

template <typename T>
int type_of() {
  return sizeof(T) == 8 ? EK_FLOAT64 : sizeof(T) == 4 ? EK_FLOAT32 : EK_BFLOAT16;
}

// Slots of `size` bytes and a gap between them; units as wide as `unit`.
void check_compaction(int64_t size, int64_t gap, int unit, std::mt19937& random) {
  constexpr int64_t matrices = 3, slots = 40;
  const int64_t stride = size + gap;
  std::vector<int64_t> keep;
  const int64_t start = 2;
  for (int64_t slot = start; slot < slots; ++slot) {
    if (random() % 2) {
      keep.push_back(slot);
    }
  }
  keep.push_back(-1);
  const int64_t bytes = matrices * slots * stride - gap;
  std::unique_ptr<uint4[]> aligned(new uint4[(bytes + 15) / 16]);
  char* data = reinterpret_cast<char*>(aligned.get());
  for (int64_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<char>(random());
  }
  const std::vector<char> before(data, data + bytes);
  std::vector<char> expected = before;
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    for (size_t i = 0; i + 1 < keep.size(); ++i) {
      const int64_t to = (matrix * slots + start + static_cast<int64_t>(i)) * stride;
      const int64_t from = (matrix * slots + keep[i]) * stride;
      std::copy_n(before.begin() + from, size, expected.begin() + to);
    }
  }
  EkCompaction call{};
  call.cache = data;
  call.keep = keep.data();
  call.start = &start;
  call.kept = static_cast<int64_t>(keep.size());
  call.keep_stride = 1;
  call.slots = slots;
  call.slot_stride = stride;
  call.groups = 1;
  call.group_units = size / unit;
  call.matrices = matrices;
  call.sizes[0] = matrices;
  call.strides[0] = slots * stride;
  call.leading = 1;
  call.batch = -1;
  call.unit_bytes = unit;
  CHECK_EQUAL(ek_compact_kv(&call, nullptr), 0);
  CHECK(std::equal(expected.begin(), expected.end(), data));
}

TEST(slots_move_bit_by_bit_in_units_of_any_width) {
  std::mt19937 random(1);
  in_each_order([&] {
    for (const int unit : {1, 2, 4, 8, 16}) {
      for (const int64_t units : {1, 3, 40}) {
        check_compaction(units * unit, 0, unit, random);
        check_compaction(units * unit, 5 * unit, unit, random);
      }
    }
  });
}

template <typename T>
void check_statistics(const T* logits, int64_t rows, int64_t columns, int64_t stride,
                      std::mt19937& random) {
  std::vector<int64_t> ids(rows), argmax(rows);
  for (int64_t& id : ids) {
    id = static_cast<int64_t>(random() % columns);
  }
  std::vector<std::vector<float>> fields(4, std::vector<float>(rows));
  std::vector<double> parts(ek_token_statistics_parts(rows, columns) / 8);
  EkTokenStatistics call{};
  call.logits = logits;
  call.token_ids = ids.data();
  call.rows = rows;
  call.vocab_size = columns;
  call.row_stride = stride;
  call.column_stride = call.id_stride = 1;
  call.factor = 1.4426950408889634 / 0.7;
  call.logprob = fields[0].data();
  call.max_logprob = fields[1].data();
  call.logsumexp = fields[2].data();
  call.entropy = fields[3].data();
  call.argmax = argmax.data();
  call.parts = parts.data();
  call.type = type_of<T>();
  CHECK_EQUAL(ek_token_statistics(&call, nullptr), 0);
  for (int64_t row = 0; row < rows; ++row) {
    const T* own = logits + row * stride;
    const auto scaled = [&](int64_t i) { return double{widen(own[i])} / 0.7; };
    int64_t best = 0;
    for (int64_t i = 1; i < columns; ++i) {
      best = scaled(i) > scaled(best) ? i : best;
    }
    double total = 0, entropy = 0;
    for (int64_t i = 0; i < columns; ++i) {
      total += std::exp(scaled(i) - scaled(best));
    }
    const double lse = scaled(best) + std::log(total);
    for (int64_t i = 0; i < columns; ++i) {
      entropy -= std::exp(scaled(i) - lse) * (scaled(i) - lse);
    }
    CHECK_EQUAL(argmax[row], best);
    CHECK_CLOSE(fields[0][row], scaled(ids[row]) - lse, 2e-5);
    CHECK_CLOSE(fields[1][row], scaled(best) - lse, 2e-5);
    CHECK_CLOSE(fields[2][row], lse, 2e-5);
    CHECK_CLOSE(fields[3][row], entropy, 2e-5);
  }
}

// From `shift` elements on, so that rows are aligned or not.
template <typename T>
void check_shifted(int64_t rows, int64_t columns, int64_t shift, std::mt19937& random) {
  const auto memory = filled<T>(shift + rows * columns, random);
  check_statistics(memory.get() + shift, rows, columns, columns, random);
}

TEST(statistics_of_rows_that_are_aligned_or_not) {
  std::mt19937 random(2);
  in_each_order([&] {
    for (const int64_t columns : {1, 7, 1024, 8191, 8193, 20000}) {
      for (const int64_t shift : {0, 1, 3}) {
        check_shifted<float>(3, columns, shift, random);
        check_shifted<BFloat16>(3, columns, shift, random);
      }
      check_shifted<double>(2, columns, 1, random);
    }
  });
}

TEST(rows_that_lie_further_apart_than_32_bits_tell) {
  // Of 16 GiB, pages that nobody touches take no memory.
  constexpr int64_t rows = 3, stride = int64_t{1} << 32, columns = 9000;
  constexpr size_t bytes = ((rows - 1) * stride + columns) * sizeof(BFloat16);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  if (memory == MAP_FAILED) {
    return;
  }
  std::mt19937 random(5);
  BFloat16* logits = static_cast<BFloat16*>(memory);
  for (int64_t row = 0; row < rows; ++row) {
    const auto values = filled<BFloat16>(columns, random);
    std::copy_n(values.get(), columns, logits + row * stride);
  }
  check_statistics(logits, rows, columns, stride, random);
  munmap(memory, bytes);
}

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

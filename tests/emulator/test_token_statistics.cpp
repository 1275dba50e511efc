// The statistics of a row against a double loop.
#include "each_order.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <vector>

using ensemble_kernels::BFloat16;
using ensemble_kernels::widen;

namespace {

template <typename T>
int type_of() {
  return sizeof(T) == 8 ? EK_FLOAT64 : sizeof(T) == 4 ? EK_FLOAT32 : EK_BFLOAT16;
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

}  // namespace

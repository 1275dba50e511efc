// The statistics of a row against a double loop, in each instruction set.
#include "ensemble_kernels/token_statistics.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#define EK_WITH_BF16
#define EK_KERNELS "ensemble_kernels/token_statistics_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

#include "each_isa.hpp"

using namespace ensemble_kernels;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const double nan = std::numeric_limits<double>::quiet_NaN();

struct Expected {
  double logprob, max_logprob, logsumexp, entropy;
  int64_t argmax;
};

// Logits divided by the temperature; NaN throughout where they are no distribution.
Expected expected_of(const std::vector<double>& logits, int64_t id, double temperature) {
  double highest = -infinity;
  bool broken = false;
  int64_t argmax = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    broken = broken || logits[i] != logits[i] || logits[i] == infinity;
    if (logits[i] > highest) {
      highest = logits[i];
      argmax = static_cast<int64_t>(i);
    }
  }
  if (broken || argmax < 0) {
    return {nan, nan, nan, nan, -1};
  }
  long double total = 0, moment = 0;
  for (const double logit : logits) {
    const double lower = (logit - highest) / temperature;
    const double weight = std::exp(lower);
    total += weight;
    moment += weight > 0 ? weight * lower : 0;
  }
  const double log_total = static_cast<double>(std::log(total));
  return {(logits[id] - highest) / temperature - log_total, -log_total,
          highest / temperature + log_total, log_total - static_cast<double>(moment / total),
          argmax};
}

template <typename T>
using Kernel = void (*)(const LogitRow<T>&, int64_t, int64_t, double, StretchStatistics&);

template <typename T>
RowStatistics computed(Kernel<T> kernel, const LogitRow<T>& row, int64_t length, int64_t id,
                       double temperature) {
  const double factor = 1.4426950408889634 / temperature;
  std::vector<StretchStatistics> parts((length + statistics_stretch - 1) / statistics_stretch);
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t start = static_cast<int64_t>(i) * statistics_stretch;
    kernel(row, start, std::min(statistics_stretch, length - start), factor, parts[i]);
  }
  return merge_stretches(parts.data(), static_cast<int64_t>(parts.size()),
                         double(widen(row.data[id * row.stride])), factor);
}

// A row of elements at a distance of `stride`, which ends where its allocation ends.
template <typename T>
struct Row {
  std::unique_ptr<T[]> data;
  int64_t stride;
  std::vector<double> values;  // as T holds them

  Row(const std::vector<double>& from, int64_t stride) : stride(stride) {
    const int64_t extent = (static_cast<int64_t>(from.size()) - 1) * stride + 1;
    data.reset(new T[extent]);
    T poison;
    assign(nan, poison);  // what lies between must not be read as a logit
    std::fill(data.get(), data.get() + extent, poison);
    for (size_t i = 0; i < from.size(); ++i) {
      assign(from[i], data[static_cast<int64_t>(i) * stride]);
      values.push_back(widen(data[static_cast<int64_t>(i) * stride]));
    }
  }

  static void assign(double value, double& to) { to = value; }
  template <typename U>
  static void assign(double value, U& to) {
    narrow(static_cast<float>(value), to);
  }
};

template <typename T>
void compare(Kernel<T> kernel, const std::vector<double>& logits, int64_t stride,
             double temperature, std::mt19937& random) {
  const Row<T> row(logits, stride);
  const int64_t length = static_cast<int64_t>(logits.size());
  const int64_t id = static_cast<int64_t>(random() % length);
  const Expected wanted = expected_of(row.values, id, temperature);
  const RowStatistics got = computed<T>(kernel, {row.data.get(), stride}, length, id, temperature);
  CHECK_EQUAL(got.argmax, wanted.argmax);
  // Sums of at most 32 floats a lane and exponents of a few units in the last place, then a float.
  const double unit = std::is_same_v<T, double> ? 1e-9 : 4e-6;
  const double sums = unit * (1 + std::log(static_cast<double>(length)));
  const auto tolerance = [&](double value) { return sums + 1.2e-7 * std::fabs(value); };
  CHECK_CLOSE(got.logprob, wanted.logprob, tolerance(wanted.logprob));
  CHECK_CLOSE(got.max_logprob, wanted.max_logprob, tolerance(wanted.max_logprob));
  CHECK_CLOSE(got.logsumexp, wanted.logsumexp, tolerance(wanted.logsumexp));
  CHECK_CLOSE(got.entropy, wanted.entropy, tolerance(wanted.entropy));
}

std::vector<double> normal(std::mt19937& random, int64_t length, double scale) {
  std::normal_distribution<double> numbers(0, scale);
  std::vector<double> values(length);
  for (double& value : values) {
    value = numbers(random);
  }
  return values;
}

const int64_t lengths[] = {1,    2,    3,    7,    8,    9,    15,   16,   17,   31,   32,
                           33,   63,   64,   65,   127,  129,  1023, 1024, 1025, 1087, 2047,
                           2049, 8191, 8192, 8193, 9217, 16384, 16385, 20000};

template <typename T>
void all_lengths(Kernel<T> kernel) {
  std::mt19937 random(1);
  for (const int64_t length : lengths) {
    for (const double scale : {0.0, 1.0, 10.0, 300.0}) {
      compare<T>(kernel, normal(random, length, scale), 1, 1.0, random);
      compare<T>(kernel, normal(random, length, scale), 3, 0.7, random);
    }
    // The maximum at either end, so that it comes first or rescales everything before it.
    std::vector<double> values = normal(random, length, 2);
    values.front() = 50;
    compare<T>(kernel, values, 1, 1.0, random);
    values.front() = 0;
    values.back() = 60;
    compare<T>(kernel, values, 1, 2.5, random);
  }
}

template <typename T>
void without_order(Kernel<T> kernel) {
  std::mt19937 random(2);
  for (const int64_t length : {int64_t{5}, int64_t{100}, int64_t{1025}, int64_t{8200}}) {
    for (const double odd : {nan, infinity, -infinity}) {
      for (int round = 0; round < 16; ++round) {
        std::vector<double> values = normal(random, length, 5);
        values[random() % length] = odd;
        if (round % 4 == 1) {
          values[random() % length] = 3e4;  // beside NaN, perhaps in its lane
        } else if (round % 4 == 2) {
          values[random() % length] = -infinity;
        } else if (round % 4 == 3) {
          std::fill(values.begin(), values.begin() + length / 2, odd);
        }
        compare<T>(kernel, values, 1 + round % 2, 1.0, random);
      }
      compare<T>(kernel, std::vector<double>(length, odd), 1, 1.0, random);
      // Nothing but -inf before and behind one number.
      std::vector<double> values(length, -infinity);
      values[random() % length] = -2;
      compare<T>(kernel, values, 1, 1.0, random);
      values[random() % length] = odd;
      compare<T>(kernel, values, 1, 1.0, random);
    }
  }
}

// NaN beside numbers far apart, lane by lane: it may hide the maximum, whose exponential is then as
// large as can be, and must be reported all the same.
template <typename T>
void nan_beside_the_maximum(Kernel<T> kernel) {
  const double large = std::is_same_v<T, Float16> ? 6e4 : 1e30;
  std::mt19937 random(3);
  for (int64_t at = 0; at < 130; ++at) {
    std::vector<double> values(131, -large);
    values[at] = large;
    values[at + 1] = nan;
    compare<T>(kernel, values, 1, 1.0, random);
    std::swap(values[at], values[at + 1]);
    compare<T>(kernel, values, 1, 1e-6, random);
    values.assign(131, nan);
    values[at] = large;
    compare<T>(kernel, values, 1, 1.0, random);
    values.assign(131, 0);
    for (int64_t next = at + 8; next < 131; next += 8) {
      values[next] = nan;
    }
    values[at] = large;
    compare<T>(kernel, values, 1, 1e-6, random);
  }
}

// A stretch without a maximum of its own, behind or before one of numbers.
template <typename T>
void stretches_of_nothing(Kernel<T> kernel) {
  std::mt19937 random(5);
  for (const double filling : {nan, -infinity}) {
    for (const double odd : {nan, infinity, -infinity}) {
      std::vector<double> values = normal(random, 2 * statistics_stretch, 3);
      const auto half = values.begin() + statistics_stretch;
      const bool first = random() % 2;
      std::fill(first ? values.begin() : half, first ? half : values.end(), filling);
      values[(first ? 0 : statistics_stretch) + random() % statistics_stretch] = odd;
      compare<T>(kernel, values, 1, 1.0, random);
    }
  }
}

template <typename T>
void first_of_equals(Kernel<T> kernel) {
  std::mt19937 random(4);
  for (int round = 0; round < 40; ++round) {
    std::vector<double> values = normal(random, 9000, 1);
    for (int i = 0; i < 3; ++i) {
      values[random() % values.size()] = 9;
    }
    compare<T>(kernel, values, 1 + round % 2, 1.0, random);
  }
  compare<T>(kernel, std::vector<double>(9000, 0.25), 1, 1.0, random);
  std::vector<double> zeros(70, -0.0);
  zeros[5] = 0.0;
  compare<T>(kernel, zeros, 1, 1.0, random);
}

template <typename T>
void nothing_at_all(Kernel<T> kernel) {
  T only;
  Row<T>::assign(1, only);
  StretchStatistics part;
  kernel({&only, 1}, 1, 0, 1.0, part);
  CHECK(part.maximum == -infinity && part.total == 0 && part.moment == 0 && part.argmax == -1);
  const RowStatistics merged = merge_stretches(&part, 0, 0.0, 1.0);
  CHECK(merged.logsumexp != merged.logsumexp && merged.argmax == -1);
}

template <typename T>
void everything(Kernel<T> kernel) {
  all_lengths<T>(kernel);
  without_order<T>(kernel);
  nan_beside_the_maximum<T>(kernel);
  stretches_of_nothing<T>(kernel);
  first_of_equals<T>(kernel);
  nothing_at_all<T>(kernel);
}

TEST(statistics_of_floats) { EACH_ISA(everything<float>, stretch_statistics<float>); }
TEST(statistics_of_doubles) { EACH_ISA(everything<double>, stretch_statistics<double>); }
TEST(statistics_of_float16) { EACH_ISA(everything<Float16>, stretch_statistics<Float16>); }
TEST(statistics_of_bfloat16) { EACH_ISA(everything<BFloat16>, stretch_statistics<BFloat16>); }

}  // namespace

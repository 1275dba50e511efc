// `token_statistics`: log-probability, argmax, log-sum-exp and entropy of rows of logits.
//
// Floor: R·V·b bytes, read once. A row is cut into stretches of a fixed length, so that its result
// depends neither on the number of threads nor on its neighbours; the stretches are merged in
// double precision. A block of a stretch is read twice, the second time from the L1 cache: for its
// maximum, then for the sums of the exponentials.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace ensemble_kernels {

constexpr int64_t statistics_stretch = 8192;  // columns of a unit of work
constexpr int64_t statistics_block = 1024;    // columns between two looks at the maximum: 4 KiB

template <typename T>
struct LogitRow {
  const T* data;
  int64_t stride;  // between columns, in elements
};

// Of the columns of a stretch, with e = 2^((logit - maximum) · factor): the sum of e, and of e times
// its exponent. `factor` is log2(e) / temperature.
struct StretchStatistics {
  double maximum = -std::numeric_limits<double>::infinity();
  double total = 0;
  double moment = 0;
  int64_t argmax = -1;
};

struct RowStatistics {
  float logprob, max_logprob, logsumexp, entropy;
  int64_t argmax;
};

inline RowStatistics merge_stretches(const StretchStatistics* parts, int64_t count, double logit,
                                     double factor) {
  StretchStatistics all;
  for (int64_t i = 0; i < count; ++i) {
    if (parts[i].maximum > all.maximum) {
      all.maximum = parts[i].maximum;
      all.argmax = parts[i].argmax;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (parts[i].total == 0) {
      continue;  // nothing but -inf
    }
    const double lower = (parts[i].maximum - all.maximum) * factor;
    const double scale = std::exp2(lower);
    all.moment += scale * (parts[i].moment + lower * parts[i].total);
    all.total += scale * parts[i].total;
  }
  constexpr double ln2 = 0.69314718055994530942;
  const double temperature_inverse = factor * ln2;
  // Of a total of 0 (nothing but -inf) comes NaN, as of NaN and of +inf.
  const bool broken = !(all.total > 0);
  const double log_total = broken ? std::numeric_limits<double>::quiet_NaN() : std::log(all.total);
  return {
      static_cast<float>((logit - all.maximum) * temperature_inverse - log_total),
      static_cast<float>(-log_total),
      static_cast<float>(all.maximum * temperature_inverse + log_total),
      static_cast<float>(log_total - all.moment * ln2 / all.total),
      broken ? -1 : all.argmax,
  };
}

}  // namespace ensemble_kernels

// `token_statistics`: log-probability, argmax, log-sum-exp and entropy of rows of logits.
//
// Floor: R·V·b bytes, read once: a block holds a stretch of a row in its registers, finds its
// maximum and then sums exponentials that need no correction. A row is cut into stretches of a
// fixed length, so that its result does not depend on how many rows there are; a second launch
// merges them in double precision, a warp a row.
#pragma once

#include "ensemble_kernels/cuda/logits.cuh"
#include "ensemble_kernels/cuda/reductions.cuh"
#include "ensemble_kernels/token_statistics.hpp"

namespace ensemble_kernels::cuda {

constexpr unsigned statistics_threads = 256;
constexpr int logits_of_thread = statistics_stretch / statistics_threads;
constexpr unsigned merging_threads = 128;

struct StretchSums {
  double total, moment;
  int first;  // column of the maximum
};

__device__ inline StretchSums from_lane_across(const StretchSums& sums, int lanes) {
  return {from_lane_across(sums.total, lanes), from_lane_across(sums.moment, lanes),
          from_lane_across(sums.first, lanes)};
}

struct MergeSums {
  __device__ StretchSums operator()(const StretchSums& a, const StretchSums& b) const {
    return {a.total + b.total, a.moment + b.moment, b.first < a.first ? b.first : a.first};
  }
};

template <typename T>
__global__ void __launch_bounds__(statistics_threads)
    stretch_statistics(const EkTokenStatistics call) {
  using Scalar = ScalarOf<T>;
  constexpr Scalar nothing = minus_infinity<Scalar>;
  const int64_t row = blockIdx.x / call.stretches, stretch = blockIdx.x % call.stretches;
  const int64_t start = stretch * statistics_stretch;
  const T* data = static_cast<const T*>(call.logits) + row * call.row_stride +
                  start * call.column_stride;
  Scalar logits[logits_of_thread];
  load_logits<statistics_threads>(data, call.column_stride, call.vocab_size - start, logits);

  Scalar peak = nothing;
#pragma unroll
  for (const Scalar logit : logits) {
    peak = logit > peak ? logit : peak;
  }
  peak = block_reduce<statistics_threads>(peak, nothing, Maximum{});

  // A finite stand-in where there is nothing but -inf, since (-inf) - (-inf) is NaN.
  const Scalar shift = peak > nothing ? peak : Scalar(0);
  const Scalar scale = static_cast<Scalar>(call.factor);
  Scalar total = 0, moment = 0;
  StretchSums sums{0, 0, static_cast<int>(statistics_stretch)};
#pragma unroll
  for (int i = 0; i < logits_of_thread; ++i) {
    Scalar exponent = (logits[i] - shift) * scale;
    // 2^-126 stands in for less, -inf included, whose product with 0 would be NaN: even a million
    // of them change no digit of a sum that is at least 1. NaN stays.
    exponent = exponent < Scalar(-126) ? Scalar(-126) : exponent;
    const Scalar weight = power_of_2(exponent);
    total += weight;
    moment += exponent * weight;
    if (logits[i] == peak) {
      const int column = Tile<T, statistics_threads>::column(i);
      sums.first = column < sums.first ? column : sums.first;
    }
  }
  sums.total = total;
  sums.moment = moment;
  const StretchSums empty{0, 0, static_cast<int>(statistics_stretch)};
  sums = block_reduce<statistics_threads>(sums, empty, MergeSums{});
  if (threadIdx.x == 0) {
    StretchStatistics& result = static_cast<StretchStatistics*>(call.parts)[blockIdx.x];
    result.maximum = peak;
    result.moment = sums.moment;
    // What stood in for -inf does not count where there was nothing else; NaN does.
    result.total = peak > nothing || sums.total != sums.total ? sums.total : 0;
    result.argmax = start + sums.first;
  }
}

struct Peak {
  double value;
  int64_t column;
};

__device__ inline Peak from_lane_across(const Peak& peak, int lanes) {
  return {from_lane_across(peak.value, lanes), from_lane_across(peak.column, lanes)};
}

// The lower column on ties.
struct HigherPeak {
  __device__ Peak operator()(const Peak& a, const Peak& b) const {
    return b.value > a.value || (b.value == a.value && b.column < a.column) ? b : a;
  }
};

// ptxas takes 32 registers, and spills, where it is not told that there may be more.
template <typename T>
__global__ void __launch_bounds__(merging_threads, 4)
    merge_stretches(const EkTokenStatistics call) {
  const unsigned lane = threadIdx.x % warp_lanes;
  const int64_t row =
      int64_t{blockIdx.x} * (merging_threads / warp_lanes) + threadIdx.x / warp_lanes;
  if (row >= call.rows) {
    return;
  }
  const StretchStatistics* parts =
      static_cast<const StretchStatistics*>(call.parts) + row * call.stretches;
  Peak peak{minus_infinity<double>, call.vocab_size};
  for (int64_t i = lane; i < call.stretches; i += warp_lanes) {
    peak = HigherPeak{}(peak, {parts[i].maximum, parts[i].argmax});
  }
  peak = warp_reduce(peak, HigherPeak{});
  double total = 0, moment = 0;
  for (int64_t i = lane; i < call.stretches; i += warp_lanes) {
    if (parts[i].total != 0) {  // 0 of nothing but -inf
      const double lower = (parts[i].maximum - peak.value) * call.factor;
      const double share = exp2(lower);
      moment += share * (parts[i].moment + lower * parts[i].total);
      total += share * parts[i].total;
    }
  }
  total = warp_reduce(total, Add{});
  moment = warp_reduce(moment, Add{});
  if (lane != 0) {
    return;
  }
  constexpr double ln2 = 0.69314718055994530942;
  const double temperature_inverse = call.factor * ln2;
  // Of a total of 0 (nothing but -inf) comes NaN, as of NaN and of +inf.
  const bool broken = !(total > 0);
  const double log_total = broken ? not_a_number : log(total);
  const int64_t id = call.token_ids[row * call.id_stride];
  // An id out of range is unchecked here; it must not read what is not there.
  const double logit =
      id >= 0 && id < call.vocab_size
          ? widen(static_cast<const T*>(
                call.logits)[row * call.row_stride + id * call.column_stride])
          : not_a_number;
  call.logprob[row] = static_cast<float>((logit - peak.value) * temperature_inverse - log_total);
  call.max_logprob[row] = static_cast<float>(-log_total);
  call.logsumexp[row] = static_cast<float>(peak.value * temperature_inverse + log_total);
  call.entropy[row] = static_cast<float>(log_total - moment * ln2 / total);
  call.argmax[row] = broken ? -1 : peak.column;
}

}  // namespace ensemble_kernels::cuda

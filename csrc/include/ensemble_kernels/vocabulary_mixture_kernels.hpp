// Compiled for each instruction set by foreach_isa.hpp; see vocabulary_mixture.hpp.
#include "ensemble_kernels/gathers.hpp"

// The maximum of `count` logits from `start` on, but for NaN.
template <typename T>
double highest_logit(const ModelRow& row, int64_t start, int64_t count) {
  using V = VectorOf<T>;
  // Two, since one would wait for itself.
  V peaks = broadcast(-std::numeric_limits<typename V::Scalar>::infinity()), others = peaks;
  for_each_logits<T>(row, start, count, [&](int64_t, V logits, int64_t) EK_INLINE {
    const V before = peaks;
    peaks = maximum(logits, others);  // in this order, a NaN goes
    others = before;
  });
  return highest(maximum(maximum(peaks, others), others));
}

// Writes e = 2^((x - maximum) * factor) of `count` logits from `start` on, or the exponents if
// `logs`, and returns the sum of e.
template <typename T, typename Sum>
double write_powers(const ModelRow& row, int64_t start, int64_t count, double maximum_logit,
                    double factor, bool logs, Sum* to) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  const V shift = broadcast(static_cast<Scalar>(maximum_logit));
  const V scale = broadcast(static_cast<Scalar>(factor));
  double total = 0;
  for (int64_t done = 0; done < count; done += mixture_block) {
    V part = broadcast(Scalar(0));
    for_each_logits<T>(row, start + done,
                       count - done < mixture_block ? count - done : mixture_block,
                       [&](int64_t i, V logits, int64_t n) EK_INLINE {
                         const V exponent = (logits - shift) * scale;
                         const V power = exp2(exponent);
                         part = part + power;
                         store_first(to + done + i, logs ? exponent : power, n);
                       });
    total += static_cast<double>(sum(part));
  }
  return total;
}

// The first model's values are written over what lay there.
static inline void add_weighted(float* sums, Floats values, float weight, int64_t n, bool first) {
  const Floats factor = broadcast(weight);
  if (n == Floats::size) {
    store(sums, first ? values * factor : fma(values, factor, load(sums)));
    return;
  }
  float lanes[Floats::size];
  store(lanes, values * factor);
  for (int64_t i = 0; i < n; ++i) {
    sums[i] = first ? lanes[i] : sums[i] + lanes[i];
  }
}
static inline void add_weighted(double* sums, Doubles values, double weight, int64_t n,
                                bool first) {
  for (int64_t i = 0; i < n; ++i) {
    sums[i] = first ? weight * values.v[i] : sums[i] + weight * values.v[i];
  }
}

// Adds one model to the chunk's `sums`, which hold nothing if it is the first: its probabilities or,
// for the geometric mean, their logarithms to base 2, times its weight. `powers` is what
// `write_powers` wrote, and `mass` becomes the sum of the chunk's probabilities. `scratch` has room
// for the chunk's ids, its columns and 16 more. False for a map that is none.
template <typename Sum>
bool mix_chunk(const Sum* powers, const MapChunk& map, const ModelShare& share, bool geometric,
               bool first, Sum* scratch, Sum* sums, double& mass) {
  using V = VectorOf<Sum>;
  constexpr Sum nothing = -std::numeric_limits<Sum>::infinity();
  const int32_t* ids = map.ids + map.offsets[0];
  const int64_t id_count = map.offsets[map.count] - map.offsets[0];
  const V log_total = broadcast(static_cast<Sum>(std::log2(share.total)));
  V total = broadcast(Sum(0));
  if (geometric) {
    for_each_gathered(powers, share.width, nothing, ids, id_count,
                      [&](int64_t i, V logs) EK_INLINE {
                        total = total + exp2(logs);
                        store(scratch + i, logs - log_total);
                      });
  } else {
    for_each_gathered(powers, share.width, Sum(0), ids, id_count,
                      [&](int64_t i, V values) EK_INLINE {
                        total = total + values;
                        store(scratch + i, values);
                      });
  }
  mass = static_cast<double>(sum(total)) / share.total;
  if (share.weight == 0) {
    return true;
  }
  const Sum weight = static_cast<Sum>(geometric ? share.weight : share.weight / share.total);
  const auto add = [&](int64_t column, V values, int64_t n) EK_INLINE {
    add_weighted(sums + column, values, weight, n, first);
  };
  if (geometric) {
    return for_each_spread<V>(
        map, scratch, nothing,
        [](const Sum* logs, int64_t n) EK_INLINE { return log_sum_of_powers(logs, n); }, add);
  }
  return for_each_spread<V>(
      map, scratch, Sum(0),
      [](const Sum* values, int64_t n) EK_INLINE {
        Sum all = 0;
        for (int64_t i = 0; i < n; ++i) {
          all += values[i];
        }
        return all;
      },
      add);
}

// Turns `count` logarithms to base 2 into powers relative to their maximum.
template <typename T>
void powers_of_logs(T* logs, int64_t count, ChunkTotal& result) {
  using V = VectorOf<T>;
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  const int64_t whole = count - count % V::size;
  const V rest = load_some(logs + whole, count - whole, nothing);
  V peaks = rest;
  for (int64_t i = 0; i < whole; i += V::size) {
    peaks = maximum(peaks, load(logs + i));
  }
  const T peak = highest(peaks);
  const V shift = broadcast(peak > nothing ? peak : T(0));
  V total = broadcast(T(0));
  for (int64_t i = 0; i < whole; i += V::size) {
    const V power = exp2(load(logs + i) - shift);
    total = total + power;
    store(logs + i, power);
  }
  const V power = exp2(rest - shift);
  T lanes[V::size];
  store(lanes, power);
  for (int64_t i = whole; i < count; ++i) {
    logs[i] = lanes[i - whole];
  }
  result.maximum = peak;
  result.total = sum(total + power);
}

// `to` may be `from`.
template <typename T>
void scale_to(const T* from, double factor, int64_t count, float* to) {
  if (sizeof(T) == sizeof(double) || factor > double(std::numeric_limits<float>::max())) {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<float>(static_cast<double>(from[i]) * factor);
    }
    return;
  }
  const float rounded = static_cast<float>(factor);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<float>(from[i]) * rounded;
  }
}

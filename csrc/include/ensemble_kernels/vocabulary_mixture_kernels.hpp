// Compiled for each instruction set by foreach_isa.hpp; see vocabulary_mixture.hpp.
#include "ensemble_kernels/gathers.hpp"

// `count` logits of a row from `start` on.
template <typename T>
void softmax_total(const ModelRow& row, int64_t start, int64_t count, double factor,
                   SoftmaxTotal& result) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  constexpr int unroll = 4;
  constexpr int64_t step = V::size * unroll;
  constexpr Scalar nothing = -std::numeric_limits<Scalar>::infinity();
  T gathered[mixture_block];
  Scalar maximum_so_far = nothing;
  double total = 0;

  for (int64_t done = 0; done < count; done += mixture_block) {
    const int64_t size = count - done < mixture_block ? count - done : mixture_block;
    const int64_t whole = size - size % step;
    const T* block = static_cast<const T*>(row.data) + (start + done) * row.stride;
    if (row.stride != 1) {
      for (int64_t i = 0; i < size; ++i) {
        gathered[i] = block[i * row.stride];
      }
      block = gathered;
    }
    const auto rest = [&](int64_t i) EK_INLINE {
      return load_some(block + i, size - i < V::size ? size - i : V::size, nothing);
    };

    V peaks[unroll];
    for (int u = 0; u < unroll; ++u) {
      peaks[u] = broadcast(nothing);
    }
    for (int64_t i = 0; i < whole; i += step) {
      for (int u = 0; u < unroll; ++u) {
        peaks[u] = maximum(peaks[u], load(block + i + u * V::size));
      }
    }
    for (int64_t i = whole; i < size; i += V::size) {
      peaks[0] = maximum(peaks[0], rest(i));
    }
    const Scalar peak = highest(maximum(maximum(peaks[0], peaks[1]), maximum(peaks[2], peaks[3])));
    if (peak > maximum_so_far) {
      // What stood in for -inf goes, NaN stays.
      total *= maximum_so_far > nothing
                   ? std::exp2((double(maximum_so_far) - double(peak)) * factor)
                   : 0;
      maximum_so_far = peak;
    }

    // A finite stand-in while there was nothing but -inf, since (-inf) - (-inf) is NaN.
    const V shift = broadcast(maximum_so_far > nothing ? maximum_so_far : Scalar(0));
    const V scale = broadcast(static_cast<Scalar>(factor));
    // 2^-126 stands in for less: even a million of them change no digit, and denormals are slow.
    const V least = broadcast(Scalar(-126));
    V totals[unroll];
    for (int u = 0; u < unroll; ++u) {
      totals[u] = broadcast(Scalar(0));
    }
    const auto add = [&](int u, V logits) EK_INLINE {
      totals[u] = totals[u] + exp2_in_range(maximum(least, (logits - shift) * scale));
    };
    for (int64_t i = 0; i < whole; i += step) {
      for (int u = 0; u < unroll; ++u) {
        add(u, load(block + i + u * V::size));
      }
    }
    for (int64_t i = whole; i < size; i += V::size) {
      add(0, rest(i));
    }
    total += sum((totals[0] + totals[1]) + (totals[2] + totals[3]));
  }
  result.maximum = maximum_so_far;
  result.total = maximum_so_far > nothing || total != total ? total : 0;
}

static inline void add_weighted(float* sums, Floats values, double weight, int64_t n) {
  const Floats factor = broadcast(static_cast<float>(weight));
  if (n == Floats::size) {
    store(sums, fma(values, factor, load(sums)));
    return;
  }
  float lanes[Floats::size];
  store(lanes, values * factor);
  for (int64_t i = 0; i < n; ++i) {
    sums[i] += lanes[i];
  }
}
template <typename V>
static inline void add_weighted(double* sums, V values, double weight, int64_t n) {
  typename V::Scalar lanes[V::size];
  store(lanes, values);
  for (int64_t i = 0; i < n; ++i) {
    sums[i] += weight * static_cast<double>(lanes[i]);
  }
}

// Adds one model to the chunk's `sums`: its probabilities or, for the geometric mean, their
// logarithms to base 2, times its weight. `mass` becomes the sum of its probabilities. `scratch` has
// room for the chunk's ids, its columns and 16 more doubles. False for a map that is none.
template <typename T, typename Sum>
bool mix_chunk(const ModelRow& row, const MapChunk& map, const ModelShare& share, bool geometric,
               void* scratch, Sum* sums, double& mass) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  Scalar* values = static_cast<Scalar*>(scratch);
  const int32_t first = map.offsets[0];
  const V shift = broadcast(static_cast<Scalar>(share.softmax.maximum));
  const V scale = broadcast(static_cast<Scalar>(share.factor));
  const V log_total = broadcast(static_cast<Scalar>(std::log2(share.softmax.total)));
  V total = broadcast(Scalar(0));
  for_each_gathered<T>(row, map.ids + first, map.offsets[map.count] - first,
                       [&](int64_t i, V logits) EK_INLINE {
                         const V exponent = (logits - shift) * scale;
                         const V power = exp2(exponent);
                         total = total + power;
                         store(values + i, geometric ? exponent - log_total : power);
                       });
  mass = static_cast<double>(sum(total)) / share.softmax.total;
  if (share.weight == 0) {
    return true;
  }
  if (geometric) {
    return for_each_spread<V>(
        map, values, -std::numeric_limits<Scalar>::infinity(),
        [](const Scalar* logs, int64_t n) EK_INLINE { return log_sum_of_powers(logs, n); },
        [&](int64_t column, V logs, int64_t n) EK_INLINE {
          add_weighted(sums + column, logs, share.weight, n);
        });
  }
  const double weight = share.weight / share.softmax.total;
  return for_each_spread<V>(
      map, values, Scalar(0),
      [](const Scalar* powers, int64_t n) EK_INLINE {
        Scalar all = 0;
        for (int64_t i = 0; i < n; ++i) {
          all += powers[i];
        }
        return all;
      },
      [&](int64_t column, V powers, int64_t n) EK_INLINE {
        add_weighted(sums + column, powers, weight, n);
      });
}

// Turns `count` logarithms to base 2 into powers relative to their maximum.
template <typename T>
void powers_of_logs(T* logs, int64_t count, SoftmaxTotal& result) {
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

// Compiled for each instruction set by foreach_isa.hpp; see top_k_union.hpp.
#include "ensemble_kernels/gathers.hpp"

// The columns of a chunk, from 0 on, that score above `threshold`, and their scores: logits over
// temperature, log-sum-exp'ed where a column has several ids. `scratch` has room for the chunk's ids,
// its columns and 16 more doubles. Their number, or -1 for a map that is none.
template <typename T>
int64_t high_scores(const ModelRow& row, const MapChunk& map, double temperature, double threshold,
                    void* scratch, int32_t* columns, double* scores) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  constexpr Scalar nothing = -std::numeric_limits<Scalar>::infinity();
  Scalar* values = static_cast<Scalar*>(scratch);
  const int32_t first = map.offsets[0];
  const V divisor = broadcast(static_cast<Scalar>(temperature));
  for_each_gathered<T>(row, map.ids + first, map.offsets[map.count] - first,
                       [&](int64_t i, V logits) EK_INLINE { store(values + i, logits / divisor); });
  const V limit = broadcast(static_cast<Scalar>(threshold));
  int64_t found = 0;
  const bool is_map = for_each_spread<V>(
      map, values, nothing,
      [](const Scalar* x, int64_t n) EK_INLINE { return log_sum_exp(x, n); },
      [&](int64_t column, V all, int64_t) EK_INLINE {
        const uint32_t above = lanes_above(all, limit);
        if (above == 0) {
          return;
        }
        Scalar lanes[V::size];
        store(lanes, all);
        for (int lane = 0; lane < V::size; ++lane) {
          if (above >> lane & 1) {
            columns[found] = static_cast<int32_t>(column + lane);
            scores[found++] = lanes[lane];
          }
        }
      });
  return is_map ? found : -1;
}

// Whether there is a NaN among `count` logits from `start` on.
template <typename T>
bool any_nan(const ModelRow& row, int64_t start, int64_t count) {
  using V = VectorOf<T>;
  const T* data = static_cast<const T*>(row.data) + start * row.stride;
  constexpr uint32_t all = V::size == 16 ? 0xffffu : 0xffu;
  uint32_t numbers = all;
  int64_t i = 0;
  if (row.stride == 1) {
    for (; i + V::size <= count; i += V::size) {
      const V logits = load(data + i);
      numbers &= lanes_at_least(logits, logits);
    }
  }
  bool found = numbers != all;
  for (; i < count; ++i) {
    const auto logit = widen(data[i * row.stride]);
    found = found || logit != logit;
  }
  return found;
}

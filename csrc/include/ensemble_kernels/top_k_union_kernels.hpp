// Compiled for each instruction set by foreach_isa.hpp; see top_k_union.hpp.
#ifndef EK_GATHERS_INCLUDED
#include "ensemble_kernels/gathers.hpp"
#endif

// Writes the scores, logits over temperature, of `count` logits from `start` on to the float or
// double that they are computed in at `to`. True where one is NaN.
template <typename T>
bool write_scores(const ModelRow& row, int64_t start, int64_t count, double temperature, void* to) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  constexpr uint32_t all = V::size == 16 ? 0xffffu : 0xffu;
  Scalar* scores = static_cast<Scalar*>(to) + start;
  const V divisor = broadcast(static_cast<Scalar>(temperature));
  uint32_t numbers = all;
  for_each_logits<T>(row, start, count, [&](int64_t i, V logits, int64_t n) EK_INLINE {
    const V scaled = logits / divisor;
    numbers &= lanes_at_least(scaled, scaled);
    store_first(scores + i, scaled, n);
  });
  return numbers != all;
}

// The columns of a chunk, from 0 on, that score above `threshold`, and their scores, log-sum-exp'ed
// where a column has several ids. `row_scores` is what `write_scores` wrote. `scratch` has room for
// the chunk's ids, its columns and 16 more doubles. Their number, or -1 for a map that is none.
template <typename Scalar>
int64_t high_scores(const void* row_scores, int64_t width, const MapChunk& map, double threshold,
                    void* scratch, int32_t* columns, double* scores) {
  using V = VectorOf<Scalar>;
  constexpr Scalar nothing = -std::numeric_limits<Scalar>::infinity();
  Scalar* values = static_cast<Scalar*>(scratch);
  for_each_gathered(static_cast<const Scalar*>(row_scores), width, nothing,
                    map.ids + map.offsets[0], map.offsets[map.count] - map.offsets[0],
                    [&](int64_t i, V some) EK_INLINE { store(values + i, some); });
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

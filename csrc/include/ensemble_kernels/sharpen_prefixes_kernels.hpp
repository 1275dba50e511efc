// `sharpen_prefixes`: compiled for each instruction set by foreach_isa.hpp.
//
// Floor: 2·R·U·b bytes and the ranges, of which a row has at most 1 / threshold at each depth.

// The sum in double precision of `count` probabilities whose neighbours lie `stride` apart.
template <typename T>
double range_sum(const T* data, int64_t stride, int64_t count) {
  using V = VectorOf<T>;
  double lanes[V::size] = {};
  int64_t i = 0;
  if (stride == 1) {
    for (; i + V::size <= count; i += V::size) {
      typename V::Scalar values[V::size];
      store(values, load(data + i));
      for (int lane = 0; lane < V::size; ++lane) {
        lanes[lane] += static_cast<double>(values[lane]);
      }
    }
  }
  double total = 0;
  for (; i < count; ++i) {
    total += static_cast<double>(widen(data[i * stride]));
  }
  for (const double lane : lanes) {
    total += lane;
  }
  return total;
}

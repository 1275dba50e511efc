// `sharpen_prefixes` on CPU tensors.
#include "arguments.hpp"
#include "operators.hpp"

#define EK_KERNELS "ensemble_kernels/sharpen_prefixes_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

namespace ensemble_kernels {

namespace {

// As torch does, by way of float32 to 16 bits.
template <typename T>
T from_double(double value) {
  T result;
  if constexpr (sizeof(T) == sizeof(double)) {
    result = value;
  } else {
    narrow(static_cast<float>(value), result);
  }
  return result;
}

template <typename T>
class Sharpener {
 public:
  Sharpener(const Tensor& probabilities, const Tensor& prefix_end, const Tensor& columns,
            double threshold)
      : probabilities_(probabilities),
        prefix_end_(prefix_end),
        columns_(columns),
        threshold_(widen(from_double<T>(threshold))),
        range_sum_(EK_DISPATCH(range_sum<T>)) {}

  void row(int64_t row, T* to) const {
    const int64_t size = probabilities_.size(1), stride = probabilities_.stride(1);
    const T* from = data_of<T>(probabilities_) + row * probabilities_.stride(0);
    if (stride == 1) {
      std::copy(from, from + size, to);
    } else {
      for (int64_t i = 0; i < size; ++i) {
        to[i] = from[i * stride];
      }
    }
    const int32_t* ends = data_of<int32_t>(prefix_end_);
    for (const int64_t start : likely(row, from)) {
      const int64_t end = std::min<int64_t>(ends[start * prefix_end_.stride(0)], size);
      to[start] = from_double<T>(
          range_sum_(from + start * stride, stride, std::max<int64_t>(end - start, 0)));
    }
  }

 private:
  // The candidates above the threshold, each once.
  std::vector<int64_t> likely(int64_t row, const T* from) const {
    const int64_t* columns = data_of<int64_t>(columns_) + row * columns_.stride(0);
    // Not asked again for each candidate: a drafter's whole vocabulary may be among them.
    const int64_t count = columns_.size(1), stride = columns_.stride(1);
    const int64_t probability_stride = probabilities_.stride(1);
    std::vector<int64_t> result;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t column = columns[i * stride];
      if (column >= 0 && widen(from[column * probability_stride]) > threshold_) {
        result.push_back(column);
      }
    }
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
  }

  const Tensor probabilities_, prefix_end_, columns_;
  const decltype(widen(T())) threshold_;
  double (*const range_sum_)(const T*, int64_t, int64_t);
};

}  // namespace

Tensor sharpen_prefixes(Tensor probabilities, Tensor prefix_end, Tensor columns, double threshold) {
  count_call("sharpen_prefixes");
  check_columns(columns, prefix_end.size(0));
  const int64_t rows = probabilities.size(0), size = probabilities.size(1);
  Tensor sharpened = empty_cpu({rows, size}, probabilities.scalar_type());
  with_float_type(probabilities, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Sharpener<T> sharpener(probabilities, prefix_end, columns, threshold);
    for_each_unit(rows, 0.2 * static_cast<double>(size + 4 * columns.size(1)), [&](int64_t row) {
      sharpener.row(row, writable<T>(sharpened) + row * size);
    });
  });
  return sharpened;
}

}  // namespace ensemble_kernels

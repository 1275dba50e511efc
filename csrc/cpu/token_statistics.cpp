// `token_statistics` and `segment_mean` on CPU tensors.
#include "ensemble_kernels/token_statistics.hpp"

#include <algorithm>
#include <tuple>

#include "arguments.hpp"

#define EK_KERNELS "ensemble_kernels/token_statistics_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

namespace ensemble_kernels {

using Statistics = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Statistics token_statistics(Tensor logits, Tensor token_ids, int64_t vocab_size,
                            double temperature) {
  count_call("token_statistics");
  const int64_t rows = logits.size(0);
  const int64_t* ids = data_of<int64_t>(token_ids);
  const int64_t id_stride = token_ids.stride(0);
  check_token_ids(token_ids, vocab_size);
  Tensor fields[4];
  for (Tensor& field : fields) {
    field = empty_cpu({rows}, ScalarType::Float);
  }
  Tensor argmax = empty_cpu({rows}, ScalarType::Long);
  const double factor = 1.4426950408889634 / temperature;
  const int64_t stretches = (vocab_size + statistics_stretch - 1) / statistics_stretch;
  std::vector<StretchStatistics> parts(rows * stretches);
  with_float_type(logits, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto kernel = EK_DISPATCH(stretch_statistics<T>);
    const T* data = data_of<T>(logits);
    const int64_t row_stride = logits.stride(0), column_stride = logits.stride(1);
    for_each_unit(rows * stretches, std::min(vocab_size, statistics_stretch) * 0.3, [&](int64_t i) {
      const int64_t start = i % stretches * statistics_stretch;
      const LogitRow<T> row{data + i / stretches * row_stride, column_stride};
      kernel(row, start, std::min(statistics_stretch, vocab_size - start), factor, parts[i]);
    });
    for (int64_t row = 0; row < rows; ++row) {
      const double logit = widen(data[row * row_stride + ids[row * id_stride] * column_stride]);
      const RowStatistics merged =
          merge_stretches(parts.data() + row * stretches, stretches, logit, factor);
      writable<float>(fields[0])[row] = merged.logprob;
      writable<float>(fields[1])[row] = merged.max_logprob;
      writable<float>(fields[2])[row] = merged.logsumexp;
      writable<float>(fields[3])[row] = merged.entropy;
      writable<int64_t>(argmax)[row] = merged.argmax;
    }
  });
  return {fields[0], argmax, fields[1], fields[2], fields[3]};
}

Tensor segment_mean(Tensor values, Tensor segment_offsets) {
  count_call("segment_mean");
  const std::vector<int64_t> offsets =
      checked_offsets("segment_offsets", segment_offsets, values.size(0));
  const int64_t count = static_cast<int64_t>(offsets.size()) - 1;
  Tensor means = empty_cpu({count}, ScalarType::Float);
  with_float_type(values, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* data = data_of<T>(values);
    const int64_t stride = values.stride(0);
    for (int64_t segment = 0; segment < count; ++segment) {
      double total = 0;
      for (int64_t i = offsets[segment]; i < offsets[segment + 1]; ++i) {
        total += widen(data[i * stride]);
      }
      const int64_t length = offsets[segment + 1] - offsets[segment];
      writable<float>(means)[segment] =
          length ? static_cast<float>(total / static_cast<double>(length))
                 : -std::numeric_limits<float>::infinity();
    }
  });
  return means;
}

}  // namespace ensemble_kernels

// `token_statistics` and `segment_mean` on CUDA tensors.
#include <tuple>

#include "cuda/device.hpp"
#include "cuda/operators.hpp"

namespace ensemble_kernels::cuda {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> token_statistics(Tensor logits, Tensor token_ids,
                                                                    int64_t vocab_size,
                                                                    double temperature) {
  count_call("token_statistics");
  if (contents_are_checked()) {
    check_token_ids(on_cpu(token_ids), vocab_size);
  }
  const int64_t rows = logits.size(0);
  Tensor fields[4];
  for (Tensor& field : fields) {
    field = empty_beside(logits, {rows}, ScalarType::Float);
  }
  Tensor argmax = empty_beside(logits, {rows}, ScalarType::Long);
  Tensor parts =
      empty_beside(logits, {ek_token_statistics_parts(rows, vocab_size)}, ScalarType::Byte);
  EkTokenStatistics call{};
  call.logits = logits.const_data_ptr();
  call.token_ids = data_of<int64_t>(token_ids);
  call.type = type_of(logits);
  call.rows = rows;
  call.vocab_size = vocab_size;
  call.row_stride = logits.stride(0);
  call.column_stride = logits.stride(1);
  call.id_stride = token_ids.stride(0);
  call.factor = 1.4426950408889634 / temperature;
  call.logprob = writable<float>(fields[0]);
  call.max_logprob = writable<float>(fields[1]);
  call.logsumexp = writable<float>(fields[2]);
  call.entropy = writable<float>(fields[3]);
  call.argmax = writable<int64_t>(argmax);
  call.parts = parts.mutable_data_ptr();
  const OnDeviceOf device(logits);
  check_launch("token_statistics", ek_token_statistics(&call, device.stream()));
  return {fields[0], argmax, fields[1], fields[2], fields[3]};
}

Tensor segment_mean(Tensor values, Tensor segment_offsets) {
  count_call("segment_mean");
  if (contents_are_checked()) {
    checked_offsets("segment_offsets", on_cpu(segment_offsets), values.size(0));
  }
  EkSegmentMean call{};
  call.segments = segment_offsets.size(0) - 1;
  Tensor means = empty_beside(values, {call.segments}, ScalarType::Float);
  call.values = values.const_data_ptr();
  call.offsets = data_of<int32_t>(segment_offsets);
  call.stride = values.stride(0);
  call.offset_stride = segment_offsets.stride(0);
  call.means = writable<float>(means);
  call.type = type_of(values);
  const OnDeviceOf device(values);
  check_launch("segment_mean", ek_segment_mean(&call, device.stream()));
  return means;
}

}  // namespace ensemble_kernels::cuda

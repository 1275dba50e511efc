// `sharpen_prefixes` on CUDA tensors.
#include "cuda/device.hpp"
#include "cuda/operators.hpp"

namespace ensemble_kernels::cuda {

namespace {

// What the threshold is in the dtype that it is compared in.
double rounded(double threshold, const Tensor& like) {
  return with_float_type(like, [&](auto tag) -> double {
    using T = typename decltype(tag)::Type;
    if constexpr (sizeof(T) == sizeof(double)) {
      return threshold;
    } else {
      T result;
      narrow(static_cast<float>(threshold), result);
      return widen(result);
    }
  });
}

}  // namespace

Tensor sharpen_prefixes(Tensor probabilities, Tensor prefix_end, Tensor columns, double threshold) {
  count_call("sharpen_prefixes");
  if (contents_are_checked()) {
    check_columns(on_cpu(columns), prefix_end.size(0));
  }
  EkSharpening call{};
  call.rows = probabilities.size(0);
  call.size = probabilities.size(1);
  const OnDeviceOf device(probabilities);
  Tensor sharpened =
      empty_beside(probabilities, {call.rows, call.size}, probabilities.scalar_type());
  Tensor sums = empty_beside(probabilities, {ek_sharpen_prefixes_sums(call.rows, call.size)},
                             ScalarType::Double);
  call.probabilities = probabilities.const_data_ptr();
  call.prefix_end = data_of<int32_t>(prefix_end);
  call.columns = data_of<int64_t>(columns);
  call.candidates = columns.size(1);
  call.row_stride = probabilities.stride(0);
  call.column_stride = probabilities.stride(1);
  call.end_stride = prefix_end.stride(0);
  call.candidate_row_stride = columns.stride(0);
  call.candidate_stride = columns.stride(1);
  call.threshold = rounded(threshold, probabilities);
  call.sharpened = sharpened.mutable_data_ptr();
  call.sums = writable<double>(sums);
  call.type = type_of(probabilities);
  check_launch("sharpen_prefixes", ek_sharpen_prefixes(&call, device.stream()));
  return sharpened;
}

}  // namespace ensemble_kernels::cuda

// `compact_kv_` on CUDA tensors.
#include "kv_arguments.hpp"

#include "cuda/device.hpp"
#include "cuda/operators.hpp"

namespace ensemble_kernels::cuda {

namespace {

// The largest power of two up to 16 that divides all that has been given.
class Alignment {
 public:
  void include(int64_t bytes) { seen_ |= static_cast<uint64_t>(bytes); }
  int64_t bytes() const {
    const uint64_t capped = seen_ | 16;
    return static_cast<int64_t>(capped & ~(capped - 1));
  }

 private:
  uint64_t seen_ = 0;
};

}  // namespace

void compact_kv_(Tensor cache, Tensor keep, Tensor destination_start) {
  count_call("compact_kv_");
  if (contents_are_checked()) {
    checked_keep(on_cpu(keep), on_cpu(destination_start), cache.size(-2));
  }
  const bool by_row = keep.dim() == 2;
  const int64_t size = element_size(cache);
  const Leading leading(cache, size, by_row);
  if (leading.sizes().size() > EK_LEADING) {
    throw std::invalid_argument("cache must have at most " + std::to_string(EK_LEADING) +
                                " leading dimensions that cannot be taken for one");
  }
  EkCompaction call{};
  call.cache = cache.mutable_data_ptr();
  call.keep = data_of<int64_t>(keep);
  call.start = data_of<int64_t>(destination_start);
  call.kept = keep.size(-1);
  call.keep_stride = keep.stride(-1);
  call.keep_row_stride = by_row ? keep.stride(0) : 0;
  call.start_stride = by_row ? destination_start.stride(0) : 0;
  call.slots = cache.size(-2);
  call.slot_stride = cache.stride(-2) * size;
  call.matrices = leading.count();
  call.leading = static_cast<int32_t>(leading.sizes().size());
  call.batch = static_cast<int32_t>(leading.batch());

  const int64_t row_length = cache.size(-1), element_stride = cache.stride(-1) * size;
  const bool rows_whole = element_stride == size || row_length == 1;
  const int64_t group_bytes = rows_whole ? row_length * size : size;
  Alignment alignment;
  alignment.include(static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.cache)));
  alignment.include(call.slot_stride);
  alignment.include(group_bytes);
  if (!rows_whole) {
    alignment.include(element_stride);
  }
  for (int32_t dim = 0; dim < call.leading; ++dim) {
    call.sizes[dim] = leading.sizes()[dim];
    call.strides[dim] = leading.strides()[dim];
    alignment.include(call.sizes[dim] > 1 ? call.strides[dim] : 0);
  }
  call.unit_bytes = static_cast<int32_t>(alignment.bytes());
  call.groups = rows_whole ? 1 : row_length;
  call.group_units = group_bytes / call.unit_bytes;
  call.group_stride = element_stride;

  const OnDeviceOf device(cache);
  check_launch("compact_kv_", ek_compact_kv(&call, device.stream()));
}

}  // namespace ensemble_kernels::cuda

#include "ensemble_kernels/cuda/kv_compaction.cuh"

using namespace ensemble_kernels::cuda;

int ek_compact_kv(const EkCompaction* call, void* stream) {
  const int64_t threads = call->matrices * call->groups * call->group_units;
  if (threads == 0 || call->kept == 0) {
    return cudaSuccess;
  }
  const int64_t blocks = ceil_div(threads, compaction_threads);
  if (blocks > most_blocks) {
    return cudaErrorInvalidConfiguration;
  }
  const auto run = [&](auto kernel) {
    return launch(kernel, dim3(static_cast<unsigned>(blocks)), compaction_threads, stream, *call);
  };
  switch (call->unit_bytes) {
    case 16:
      return run(compact_columns<uint4>);
    case 8:
      return run(compact_columns<uint2>);
    case 4:
      return run(compact_columns<uint32_t>);
    case 2:
      return run(compact_columns<uint16_t>);
    default:
      return run(compact_columns<uint8_t>);
  }
}

#include "ensemble_kernels/cuda/attention_states.cuh"

using namespace ensemble_kernels::cuda;

int ek_merge_attention_states(const EkAttentionStates* given, void* stream) {
  EkAttentionStates call = *given;
  const int64_t blocks = ceil_div(call.rows, states_threads / warp_lanes);
  if (blocks == 0) {
    return cudaSuccess;
  }
  if (blocks > most_blocks) {
    return cudaErrorInvalidConfiguration;
  }
  return with_type(call.type, [&](auto* element) -> int {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto of = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16; };
    call.aligned = of(call.states) == 0 && of(call.out) == 0 &&
                   call.size * int64_t{sizeof(T)} % 16 == 0;
    return launch(merge_states<T>, dim3(static_cast<unsigned>(blocks)), states_threads, stream,
                  call);
  });
}

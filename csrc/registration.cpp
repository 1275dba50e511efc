// The native implementations, for the schemas that ensemble_kernels/_library.py defines.
#include <torch/csrc/stable/library.h>

#include <atomic>
#include <cstring>
#include <string>

#include "cpu/operators.hpp"
#ifdef EK_WITH_CUDA
#include "cuda/operators.hpp"
#endif
#include "ensemble_kernels/isa.hpp"

namespace ensemble_kernels {

namespace {

struct Counter {
  const char* name;
  std::atomic<int64_t> calls{0};
};

Counter counters[] = {{"compact_kv_"},       {"token_statistics"}, {"segment_mean"},
                      {"segment_attention"}, {"mix_distributions"}, {"sharpen_prefixes"},
                      {"top_k_union"},       {"merge_attention_states"}};

int64_t native_calls(std::string name) {
  for (const Counter& counter : counters) {
    if (name == counter.name) {
      return counter.calls;
    }
  }
  throw std::invalid_argument("there is no native operator " + name);
}

std::string cpu_isa() { return isa_names[static_cast<int>(chosen_isa())]; }

}  // namespace

void count_call(const char* operator_name) {
  for (Counter& counter : counters) {
    if (std::strcmp(operator_name, counter.name) == 0) {
      ++counter.calls;
    }
  }
}

}  // namespace ensemble_kernels

using namespace ensemble_kernels;

STABLE_TORCH_LIBRARY_IMPL(ensemble_kernels, CPU, m) {
  m.impl("compact_kv_", TORCH_BOX(&compact_kv_));
  m.impl("token_statistics", TORCH_BOX(&token_statistics));
  m.impl("segment_attention", TORCH_BOX(&segment_attention));
  m.impl("segment_mean", TORCH_BOX(&segment_mean));
  m.impl("mix_distributions", TORCH_BOX(&mix_distributions));
  m.impl("sharpen_prefixes", TORCH_BOX(&sharpen_prefixes));
  m.impl("top_k_union", TORCH_BOX(&top_k_union));
}

#ifdef EK_WITH_CUDA
// Once for the calls that name no back end, once for those that name this one.
STABLE_TORCH_LIBRARY_IMPL(ensemble_kernels, CUDA, m) { cuda::implement_operators(m); }

STABLE_TORCH_LIBRARY_IMPL(ensemble_kernels_cuda, CUDA, m) {
  cuda::implement_operators(m);
  m.impl("merge_attention_states", TORCH_BOX(&cuda::merge_attention_states));
}
#endif

// Of the native library itself, for `backends()` and the tests.
STABLE_TORCH_LIBRARY(ensemble_kernels_native, m) {
  m.def("cpu_isa() -> str");
  m.def("calls(str name) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(ensemble_kernels_native, CompositeExplicitAutograd, m) {
  m.impl("cpu_isa", TORCH_BOX(&cpu_isa));
  m.impl("calls", TORCH_BOX(&native_calls));
}

// Which instruction set the CPU kernels use: the best that this machine has, or the one that
// ENSEMBLE_KERNELS_CPU_ISA names (portable, avx2, avx512, avx512_bf16).
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

// EK_FORCE_PORTABLE: as on a processor without any of them, for tests.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(EK_FORCE_PORTABLE)
#define EK_X86 1
#else
#define EK_X86 0
#endif

#if defined(__GNUC__)
#define EK_PREFETCH(address) __builtin_prefetch(address)
#else
#define EK_PREFETCH(address)
#endif

namespace ensemble_kernels {

// In ascending order: each includes what is before it. avx512_bf16 adds `vdpbf16ps`.
enum class Isa { portable, avx2, avx512, avx512_bf16 };

inline constexpr const char* isa_names[] = {"portable", "avx2", "avx512", "avx512_bf16"};

inline Isa best_isa() {
#if EK_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("fma")) {
    return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return Isa::avx2;
  }
#endif
  return Isa::portable;
}

// Raises std::invalid_argument where the environment names one that is unknown or not there.
inline Isa chosen_isa() {
  static const Isa chosen = [] {
    const Isa best = best_isa();
    const char* named = std::getenv("ENSEMBLE_KERNELS_CPU_ISA");
    if (named == nullptr || *named == '\0') {
      return best;
    }
    for (int i = 0; i <= static_cast<int>(best); ++i) {
      if (std::string(named) == isa_names[i]) {
        return static_cast<Isa>(i);
      }
    }
    throw std::invalid_argument(
        "ENSEMBLE_KERNELS_CPU_ISA must be one that this machine has, portable to " +
        std::string(isa_names[static_cast<int>(best)]) + ", got '" + named + "'");
  }();
  return chosen;
}

}  // namespace ensemble_kernels

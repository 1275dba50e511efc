// Runs a test on every instruction set up to the chosen one: ENSEMBLE_KERNELS_CPU_ISA bounds it.
// Included after foreach_isa.hpp.
#pragma once

#include "check.hpp"

namespace check {

// Whether to go on with `isa`, which is then named with each failure.
inline bool enter(ensemble_kernels::Isa isa, const std::string& name) {
  context = name + " " + ensemble_kernels::isa_names[static_cast<int>(isa)];
  return isa <= ensemble_kernels::chosen_isa();
}

}  // namespace check

#define EK_ONE_ISA(isa, test, ...)                                  \
  if (check::enter(ensemble_kernels::Isa::isa, #__VA_ARGS__)) {     \
    test(&ensemble_kernels::isa::__VA_ARGS__);                      \
  }

// `test(pointer to the function)` for the one of each instruction set.
#if EK_X86
#define EACH_ISA(test, ...)                     \
  do {                                          \
    EK_ONE_ISA(portable, test, __VA_ARGS__)     \
    EK_ONE_ISA(avx2, test, __VA_ARGS__)         \
    EK_ONE_ISA(avx512, test, __VA_ARGS__)       \
    EK_ONE_ISA(avx512_bf16, test, __VA_ARGS__)  \
  } while (0)
#else
#define EACH_ISA(test, ...)                 \
  do {                                      \
    EK_ONE_ISA(portable, test, __VA_ARGS__) \
  } while (0)
#endif

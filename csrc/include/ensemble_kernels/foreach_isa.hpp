// Compiles the file EK_KERNELS once for each instruction set, in a namespace of its own:
//
//   #define EK_KERNELS "ensemble_kernels/token_statistics_kernels.hpp"
//   #include "ensemble_kernels/foreach_isa.hpp"
//   auto run = EK_DISPATCH(token_statistics_unit<float>);
//
// The target is set by pragmas around the kernels and not by compiler flags, so that no inline
// function of the standard library is compiled for an instruction set that the machine may lack.
// Such a file has no include guard and includes nothing; what it needs is included before it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ensemble_kernels/isa.hpp"

#if EK_X86
#include <immintrin.h>
#endif

#include "ensemble_kernels/scalars.hpp"

// For lambdas in kernels, which would else be functions of their own.
#if defined(__GNUC__)
#define EK_INLINE __attribute__((always_inline))
#define EK_NOINLINE __attribute__((noinline))
#else
#define EK_NOINLINE
#define EK_INLINE
#endif

namespace ensemble_kernels::portable {
#define EK_ISA 0
#include "ensemble_kernels/vectors.hpp"
#include EK_KERNELS
#undef EK_ISA
}  // namespace ensemble_kernels::portable

#if EK_X86

#if defined(__clang__)
#define EK_TARGET_BEGIN(features) \
  _Pragma(EK_STRING(clang attribute push(__attribute__((target(features))), apply_to = function)))
#define EK_TARGET_END _Pragma("clang attribute pop")
#else
#define EK_TARGET_BEGIN(features) \
  _Pragma("GCC push_options") _Pragma(EK_STRING(GCC target(features)))
#define EK_TARGET_END _Pragma("GCC pop_options")
#endif
#define EK_STRING(text) #text

EK_TARGET_BEGIN("avx2,fma,f16c")
namespace ensemble_kernels::avx2 {
#define EK_ISA 1
#include "ensemble_kernels/vectors.hpp"
#include EK_KERNELS
#undef EK_ISA
}  // namespace ensemble_kernels::avx2
EK_TARGET_END

EK_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
namespace ensemble_kernels::avx512 {
#define EK_ISA 2
#include "ensemble_kernels/vectors.hpp"
#include EK_KERNELS
#undef EK_ISA
}  // namespace ensemble_kernels::avx512
EK_TARGET_END

#ifdef EK_WITH_BF16
EK_TARGET_BEGIN("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
namespace ensemble_kernels::avx512_bf16 {
#define EK_ISA 3
#include "ensemble_kernels/vectors.hpp"
#include EK_KERNELS
#undef EK_ISA
}  // namespace ensemble_kernels::avx512_bf16
EK_TARGET_END
#define EK_BF16(...) avx512_bf16::__VA_ARGS__
#else
#define EK_BF16(...) avx512::__VA_ARGS__
#endif

#define EK_DISPATCH(...)                                        \
  ([] {                                                         \
    switch (ensemble_kernels::chosen_isa()) {                   \
      case ensemble_kernels::Isa::portable:                     \
        return &ensemble_kernels::portable::__VA_ARGS__;        \
      case ensemble_kernels::Isa::avx2:                         \
        return &ensemble_kernels::avx2::__VA_ARGS__;            \
      case ensemble_kernels::Isa::avx512:                       \
        return &ensemble_kernels::avx512::__VA_ARGS__;          \
      default:                                                  \
        return &ensemble_kernels::EK_BF16(__VA_ARGS__);         \
    }                                                           \
  }())
#else
#define EK_DISPATCH(...) (&ensemble_kernels::portable::__VA_ARGS__)
#endif

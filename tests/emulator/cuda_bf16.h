// What of <cuda_bf16.h> the kernels use.
#pragma once

#include "ensemble_kernels/scalars.hpp"

struct __nv_bfloat16 {
  ensemble_kernels::BFloat16 value;
};

inline float __bfloat162float(__nv_bfloat16 given) { return ensemble_kernels::widen(given.value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  __nv_bfloat16 result;
  ensemble_kernels::narrow(value, result.value);
  return result;
}

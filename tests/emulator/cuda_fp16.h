// What of <cuda_fp16.h> the kernels use.
#pragma once

#include "ensemble_kernels/scalars.hpp"

struct __half {
  ensemble_kernels::Float16 value;
};

inline float __half2float(__half half) { return ensemble_kernels::widen(half.value); }
inline __half __float2half_rn(float value) {
  __half half;
  ensemble_kernels::narrow(value, half.value);
  return half;
}

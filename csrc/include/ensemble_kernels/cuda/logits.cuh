// Logits as they lie in memory, and a tile of a row of them in the registers of a block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <limits>
#include <type_traits>

#include "cuda/launchers.h"
#include "ensemble_kernels/cuda/launch.cuh"

namespace ensemble_kernels::cuda {

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

// By way of float32 to 16 bits, as torch rounds.
template <typename T>
__device__ T narrow(double value) {
  if constexpr (sizeof(T) >= sizeof(float)) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(static_cast<float>(value));
  } else {
    return __float2bfloat16_rn(static_cast<float>(value));
  }
}

// What a dtype is computed in.
template <typename T>
using ScalarOf = std::conditional_t<sizeof(T) == sizeof(double), double, float>;

__device__ inline float power_of_2(float exponent) { return exp2f(exponent); }
__device__ inline double power_of_2(double exponent) { return exp2(exponent); }

template <typename Scalar>
constexpr Scalar minus_infinity = -std::numeric_limits<Scalar>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Calls `body` with a null pointer to the element type of `type`.
template <typename Body>
int with_type(int32_t type, const Body& body) {
  switch (type) {
    case EK_FLOAT32:
      return body(static_cast<float*>(nullptr));
    case EK_FLOAT64:
      return body(static_cast<double*>(nullptr));
    case EK_FLOAT16:
      return body(static_cast<__half*>(nullptr));
    case EK_BFLOAT16:
      return body(static_cast<__nv_bfloat16*>(nullptr));
    default:
      return cudaErrorInvalidConfiguration;
  }
}

// Where `load_tile` puts what: `vector` neighbours to a thread, then to the next thread.
template <typename T, unsigned threads>
struct Tile {
  static constexpr int vector = 16 / sizeof(T);

  // The column, from the start of the tile, of a thread's i-th value.
  __device__ static int column(int i) {
    return (i / vector * static_cast<int>(threads) + static_cast<int>(threadIdx.x)) * vector +
           i % vector;
  }
};

// `convert` of `count` columns of a row from `data` on, `stride` elements apart; `nothing` behind
// them. In loads of 128 bits where the row allows it. A thread gets the same columns where it does
// not, so that a result depends on the values alone.
template <unsigned threads, int size, typename T, typename Value, typename Convert>
__device__ void load_tile(const T* data, int64_t stride, int64_t count, Value nothing,
                          const Convert& convert, Value (&values)[size]) {
  using Layout = Tile<T, threads>;
  constexpr int vector = Layout::vector;
  static_assert(size % vector == 0, "whole vectors");
  const bool whole = stride == 1 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
#pragma unroll
  for (int first = 0; first < size; first += vector) {
    const int column = Layout::column(first);
    if (whole && column + vector <= count) {
      const uint4 bits = *reinterpret_cast<const uint4*>(data + column);
      const T* loaded = reinterpret_cast<const T*>(&bits);
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        values[first + i] = convert(loaded[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        values[first + i] =
            column + i < count ? convert(data[(column + i) * stride]) : nothing;
      }
    }
  }
}

struct Widen {
  template <typename T>
  __device__ ScalarOf<T> operator()(T value) const {
    return widen(value);
  }
};

// Logits, -inf behind them.
template <unsigned threads, int size, typename T>
__device__ void load_logits(const T* data, int64_t stride, int64_t count,
                            ScalarOf<T> (&logits)[size]) {
  load_tile<threads>(data, stride, count, minus_infinity<ScalarOf<T>>, Widen{}, logits);
}

}  // namespace ensemble_kernels::cuda

// The 16-bit floating-point types as they lie in memory, and their conversions.
#pragma once

#include <cstdint>
#include <cstring>

namespace ensemble_kernels {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double as_double(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint64_t as_bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double widen(double value) { return value; }
inline float widen(float value) { return value; }
inline float widen(BFloat16 value) { return as_float(static_cast<uint32_t>(value.bits) << 16); }

inline float widen(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    return as_float(sign | 0x7f800000u | (magnitude << 13));
  }
  // An exponent too low by 112; multiplying mends it, also for denormals.
  return as_float(sign | as_bits(as_float(magnitude << 13) * 0x1p112f));
}

inline void narrow(float value, float& to) { to = value; }
inline void narrow(double value, double& to) { to = value; }

inline void narrow(float value, BFloat16& to) {
  uint32_t bits = as_bits(value);
  if (value != value) {
    to.bits = 0x7fc0u;
    return;
  }
  bits += 0x7fffu + ((bits >> 16) & 1u);  // to nearest, ties to even
  to.bits = static_cast<uint16_t>(bits >> 16);
}

inline void narrow(float value, Float16& to) {
  const uint32_t bits = as_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the mantissa in units of 2^-24, rounded to nearest.
    half = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xc8000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  to.bits = static_cast<uint16_t>(sign | half);
}

}  // namespace ensemble_kernels

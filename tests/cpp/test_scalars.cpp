// float16 and bfloat16 against their definition: sign, exponent and fraction as numbers.
#include "ensemble_kernels/scalars.hpp"

#include <cmath>
#include <limits>

#include "check.hpp"

using namespace ensemble_kernels;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// The value of a 16-bit format with a sign, `exponent_bits` and the rest as fraction.
double value_of(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction ? std::nan("") : sign * infinity;
  }
  const double units = exponent ? (1 << fraction_bits) + fraction : fraction;
  return sign * std::ldexp(units, (exponent ? exponent : 1) - bias - fraction_bits);
}

template <typename Format, int exponent_bits>
void widening() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Format from{static_cast<uint16_t>(bits)};
    const float wide = widen(from);
    const double expected = value_of(from.bits, exponent_bits);
    CHECK(expected != expected ? wide != wide : wide == expected);
    CHECK_EQUAL(std::signbit(wide), (bits & 0x8000) != 0);
    Format back;
    narrow(wide, back);
    if (expected != expected) {
      CHECK(widen(back) != widen(back));
    } else {
      CHECK_EQUAL(back.bits, from.bits);
    }
  }
}

// Narrowing is a step function: between neighbours it steps at their middle, which goes to the one
// with an even fraction. Hence all floats are judged by those around each middle and each value.
template <typename Format, int exponent_bits>
void narrowing() {
  const int fraction_bits = 15 - exponent_bits;
  const uint16_t largest = static_cast<uint16_t>((((1 << exponent_bits) - 1) << fraction_bits) - 1);
  for (uint32_t bits = 0; bits <= largest; ++bits) {
    const double low = value_of(static_cast<uint16_t>(bits), exponent_bits);
    // What would follow the largest, were the exponent not that of infinity.
    const double step = std::ldexp(1.0, std::ilogb(value_of(largest, exponent_bits)) - fraction_bits);
    const double high =
        bits == largest ? low + step : value_of(static_cast<uint16_t>(bits + 1), exponent_bits);
    const double middle = (low + high) / 2;
    if (std::fabs(middle) > std::numeric_limits<float>::max()) {
      continue;
    }
    const float at = static_cast<float>(middle);
    const bool exact = at == middle;  // the least bfloat16's middle is not a float
    const uint16_t tie = static_cast<uint16_t>(bits % 2 ? bits + 1 : bits);
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t mark = sign < 0 ? 0x8000 : 0;
      Format below, centre, above;
      narrow(sign * std::nextafter(at, 0.0f), below);
      narrow(sign * at, centre);
      narrow(sign * std::nextafter(at, std::numeric_limits<float>::infinity()), above);
      if (exact) {
        CHECK_EQUAL(below.bits, bits | mark);
        CHECK_EQUAL(centre.bits, tie | mark);
        CHECK_EQUAL(above.bits, (bits + 1) | mark);
      }
    }
  }
}

// Nearest by comparing distances in double, for floats all over the range.
template <typename Format, int exponent_bits>
void narrowing_sampled() {
  for (uint64_t sample = 0; sample < 0x100000000; sample += 104729) {
    const float value = as_float(static_cast<uint32_t>(sample));
    Format to;
    narrow(value, to);
    const double got = value_of(to.bits, exponent_bits);
    if (value != value) {
      CHECK(got != got);
      continue;
    }
    CHECK_EQUAL((to.bits & 0x8000) != 0, std::signbit(value));
    if (std::isinf(got)) {
      continue;  // the step to infinity is among those of `narrowing`
    }
    const uint16_t magnitude = to.bits & 0x7fff;
    const double distance = std::fabs(got - value);
    const double next = value_of(static_cast<uint16_t>(to.bits + 1), exponent_bits);
    CHECK(std::isinf(next) || std::fabs(next - value) >= distance);
    if (magnitude > 0) {
      CHECK(std::fabs(value_of(static_cast<uint16_t>(to.bits - 1), exponent_bits) - value) >=
            distance);
    }
  }
}

TEST(float16_widens_all_bit_patterns) { widening<Float16, 5>(); }
TEST(bfloat16_widens_all_bit_patterns) { widening<BFloat16, 8>(); }
TEST(float16_narrows_around_every_middle) { narrowing<Float16, 5>(); }
TEST(bfloat16_narrows_around_every_middle) { narrowing<BFloat16, 8>(); }
TEST(float16_narrows_to_the_nearest) { narrowing_sampled<Float16, 5>(); }
TEST(bfloat16_narrows_to_the_nearest) { narrowing_sampled<BFloat16, 8>(); }

TEST(narrowing_keeps_infinities_and_nan) {
  const float inf = std::numeric_limits<float>::infinity();
  Float16 half;
  BFloat16 brain;
  for (const float value : {inf, -inf}) {
    narrow(value, half);
    narrow(value, brain);
    CHECK_EQUAL(widen(half), value);
    CHECK_EQUAL(widen(brain), value);
  }
  // A NaN whose set bits are all among those that are cut off.
  narrow(as_float(0x7f800001u), half);
  narrow(as_float(0x7f800001u), brain);
  CHECK(widen(half) != widen(half));
  CHECK(widen(brain) != widen(brain));
}

}  // namespace

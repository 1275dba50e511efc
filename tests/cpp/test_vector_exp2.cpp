// exp2 of vectors.hpp over its whole domain, in each instruction set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "ensemble_kernels/scalars.hpp"

namespace ensemble_kernels {

template <typename S>
struct Powers {
  using Function = void (*)(const S* a, S* to);
  int size;
  Function exp2, exp2_in_range;
};

}  // namespace ensemble_kernels

#define EK_WITH_BF16
#define EK_KERNELS "vector_exp2_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

#include "each_isa.hpp"
#include "lanes.hpp"

using namespace ensemble_kernels;

namespace {

// In units in the last place of the wanted float, which below 2^-126 stay 2^-149.
double units_off(float got, long double wanted) {
  if (std::isinf(got) && wanted >= 0x1.ffffffp127L) {
    return 0;
  }
  const int exponent = std::max(std::ilogb(wanted == 0 ? 0x1p-149L : wanted), -126);
  return static_cast<double>(std::fabs(got - wanted) / std::ldexp(1.0L, exponent - 23));
}

void powers_of_floats(Powers<float> (*powers)()) {
  const Powers<float> all = powers();
  std::vector<float> arguments;
  for (uint64_t bits = 0; bits < 0x100000000; bits += 4099) {
    arguments.push_back(as_float(static_cast<uint32_t>(bits)));
  }
  for (int half = -2 * 152; half <= 2 * 128; ++half) {
    float down = static_cast<float>(half) / 2, up = down;
    for (int i = 0; i < 32; ++i) {
      arguments.insert(arguments.end(), {down, up});
      down = std::nextafter(down, -1000.0f), up = std::nextafter(up, 1000.0f);
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  arguments.insert(arguments.end(), {-infinity, std::numeric_limits<float>::lowest(), 0.0f, -0.0f,
                                     std::numeric_limits<float>::quiet_NaN()});
  double worst = 0;
  for (const float x : arguments) {
    if (x > 128) {
      continue;  // out of the domain
    }
    Lanes<float> a, to;
    for (int i = 0; i < all.size; ++i) {
      a.v[i] = i % 2 ? 1.0f : x;
    }
    all.exp2(a.v, to.v);
    CHECK_EQUAL(to.v[1], 2.0f);
    CHECK(same(to.v[all.size - 2], to.v[0]));
    if (x != x) {
      CHECK(to.v[0] != to.v[0]);
    } else if (x < -150) {
      CHECK(to.v[0] == 0 && !std::signbit(to.v[0]));
    } else {
      const double off = units_off(to.v[0], static_cast<long double>(std::exp2(double(x))));
      worst = std::max(worst, off);
      CHECK(off <= 2);
    }
    if (!(x < -126)) {
      Lanes<float> in_range;
      all.exp2_in_range(a.v, in_range.v);
      CHECK(same(in_range.v[0], to.v[0]));
    }
  }
  std::printf("  exp2 of floats, worst: %.2f units in the last place [%s]\n", worst,
              check::context.c_str());
}

void powers_of_doubles(Powers<double> (*powers)()) {
  const Powers<double> all = powers();
  std::mt19937_64 random(5);
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> arguments = {-infinity, -1e300, -1080, -1075, -1074, -1022, -0.0, 0, 1023.5,
                                   std::numeric_limits<double>::quiet_NaN()};
  for (int i = 0; i < 200000; ++i) {
    const double part = static_cast<double>(static_cast<int64_t>(random())) * 0x1p-63;
    arguments.push_back(part * (i % 2 ? 1023 : 2));
    arguments.push_back(-1079 + 60 * std::fabs(part));
  }
  double worst = 0;
  for (const double x : arguments) {
    Lanes<double> a, to;
    for (int i = 0; i < all.size; ++i) {
      a.v[i] = x;
    }
    all.exp2(a.v, to.v);
    if (x != x) {
      CHECK(to.v[0] != to.v[0]);
      continue;
    }
    if (x < -1075) {
      CHECK(to.v[0] == 0);
      continue;
    }
    const double wanted = std::exp2(x);  // itself within a unit in the last place
    const double unit = std::ldexp(1.0, std::max(wanted == 0 ? -1074 : std::ilogb(wanted), -1022) - 52);
    worst = std::max(worst, std::fabs(to.v[0] - wanted) / unit);
    CHECK_CLOSE(to.v[0], wanted, 2 * unit);
  }
  std::printf("  exp2 of doubles, worst: %.2f units from the C library's [%s]\n", worst,
              check::context.c_str());
}

TEST(exp2_of_floats) { EACH_ISA(powers_of_floats, powers<float>); }
TEST(exp2_of_doubles) { EACH_ISA(powers_of_doubles, powers<double>); }

}  // namespace

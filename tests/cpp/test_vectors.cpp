// The arithmetic, comparisons and reductions of vectors.hpp, lane by lane, in each instruction set.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace ensemble_kernels {

template <typename S>
struct Operations {
  using Function = void (*)(const S* a, const S* b, const S* c, S* to);
  int size;
  Function broadcast, add, subtract, multiply, divide, fma, maximum, minimum, absolute;
  Function select;  // a < b ? c : a
  Function sum, highest;
  uint32_t (*lanes_at_least)(const S* a, const S* b);
  void (*between)(const int32_t* lowest, const int32_t* highest, int32_t x, S* to);
};

struct FloatOperations {
  int size;
  Operations<float>::Function round_to_integer, scale_by_power;
};

}  // namespace ensemble_kernels

#define EK_WITH_BF16
#define EK_KERNELS "vectors_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

#include "each_isa.hpp"
#include "lanes.hpp"

using namespace ensemble_kernels;

namespace {

// `expected(a, b, c)` for each lane, equal up to the sign of 0.
template <typename S, typename Expected>
void check_lanes(int size, typename Operations<S>::Function function, const Expected& expected) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    Lanes<S> a, b, c, to;
    for (int i = 0; i < size; ++i) {
      a.v[i] = any_number<S>(random), b.v[i] = any_number<S>(random), c.v[i] = any_number<S>(random);
    }
    function(a.v, b.v, c.v, to.v);
    for (int i = 0; i < size; ++i) {
      const S wanted = expected(a.v[i], b.v[i], c.v[i]);
      CHECK(same(to.v[i], wanted));
    }
  }
}

template <typename S>
void arithmetic(Operations<S> (*operations)()) {
  const Operations<S> all = operations();
  check_lanes<S>(all.size, all.add, [](S a, S b, S) { return a + b; });
  check_lanes<S>(all.size, all.subtract, [](S a, S b, S) { return a - b; });
  check_lanes<S>(all.size, all.multiply, [](S a, S b, S) { return a * b; });
  check_lanes<S>(all.size, all.maximum, [](S a, S b, S) { return a > b ? a : b; });
  check_lanes<S>(all.size, all.minimum, [](S a, S b, S) { return a < b ? a : b; });
  check_lanes<S>(all.size, all.absolute, [](S a, S, S) { return std::fabs(a); });
  check_lanes<S>(all.size, all.select, [](S a, S b, S c) { return a < b ? c : a; });
  check_lanes<S>(all.size, all.divide, [](S a, S b, S) { return a / b; });
  Lanes<S> a, to;
  a.v[0] = S(-2.5);
  all.broadcast(a.v, a.v, a.v, to.v);
  for (int i = 0; i < all.size; ++i) {
    CHECK_EQUAL(to.v[i], S(-2.5));
    a.v[i] = -S(0);
  }
  all.absolute(a.v, a.v, a.v, to.v);
  for (int i = 0; i < all.size; ++i) {
    CHECK(!std::signbit(to.v[i]));
  }
}

// Rounded once, or twice where there is no such instruction.
template <typename S>
void fused(Operations<S> (*operations)()) {
  const Operations<S> all = operations();
  const double unit = std::numeric_limits<S>::epsilon();
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    Lanes<S> a, b, c, to;
    for (int i = 0; i < all.size; ++i) {
      a.v[i] = small_number<S>(random), b.v[i] = small_number<S>(random);
      c.v[i] = small_number<S>(random);
    }
    all.fma(a.v, b.v, c.v, to.v);
    for (int i = 0; i < all.size; ++i) {
      const long double product = static_cast<long double>(a.v[i]) * b.v[i];
      const double exact = static_cast<double>(product + c.v[i]);
      CHECK_CLOSE(to.v[i], exact, unit * (std::fabs(static_cast<double>(product)) + std::fabs(exact)));
    }
  }
}

template <typename S>
void reductions(Operations<S> (*operations)()) {
  const Operations<S> all = operations();
  const double unit = std::numeric_limits<S>::epsilon();
  const S infinity = std::numeric_limits<S>::infinity();
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    Lanes<S> a, b, to;
    long double total = 0, magnitude = 0;
    S best = -infinity;
    for (int i = 0; i < all.size; ++i) {
      a.v[i] = small_number<S>(random), b.v[i] = any_number<S>(random);
      total += a.v[i], magnitude += std::fabs(a.v[i]), best = a.v[i] > best ? a.v[i] : best;
    }
    all.sum(a.v, a.v, a.v, to.v);
    CHECK_CLOSE(to.v[0], static_cast<double>(total), 4 * unit * static_cast<double>(magnitude));
    all.highest(a.v, a.v, a.v, to.v);
    CHECK_EQUAL(to.v[0], best);
    uint32_t lanes = 0;
    for (int i = 0; i < all.size; ++i) {
      lanes |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
    }
    CHECK_EQUAL(all.lanes_at_least(a.v, b.v), lanes);
    // One lane alone, and equal lanes, which count as at least.
    const int one = static_cast<int>(random() % all.size);
    Lanes<S> single;
    for (int i = 0; i < all.size; ++i) {
      single.v[i] = i == one ? S(3) : -infinity;
    }
    all.highest(single.v, single.v, single.v, to.v);
    CHECK_EQUAL(to.v[0], S(3));
    CHECK_EQUAL(all.lanes_at_least(single.v, single.v), (uint32_t{1} << all.size) - 1);
  }
}

template <typename S>
void ranges(Operations<S> (*operations)()) {
  const Operations<S> all = operations();
  std::mt19937_64 random(4);
  const int32_t extremes[] = {std::numeric_limits<int32_t>::min(), -1, 0, 1,
                              std::numeric_limits<int32_t>::max()};
  for (int round = 0; round < 5000; ++round) {
    int32_t lowest[widest], highest[widest];
    for (int i = 0; i < all.size; ++i) {
      lowest[i] = random() % 4 ? static_cast<int32_t>(random() % 9) - 4 : extremes[random() % 5];
      highest[i] = random() % 4 ? static_cast<int32_t>(random() % 9) - 4 : extremes[random() % 5];
    }
    const int32_t x = static_cast<int32_t>(random() % 9) - 4;
    Lanes<S> to;
    all.between(lowest, highest, x, to.v);
    for (int i = 0; i < all.size; ++i) {
      CHECK_EQUAL(to.v[i], S(lowest[i] <= x && x <= highest[i]));
    }
  }
}

void rounding_and_scaling(FloatOperations (*operations)()) {
  const FloatOperations all = operations();
  const int size = all.size;
  for (int quarter = -4 * 1000; quarter <= 4 * 1000; ++quarter) {
    Lanes<float> a, to;
    for (int i = 0; i < widest; ++i) {
      a.v[i] = static_cast<float>(quarter) / 4 * (i % 2 ? 4096.0f : 1.0f);
    }
    all.round_to_integer(a.v, a.v, a.v, to.v);
    for (int i = 0; i < size; ++i) {
      CHECK_EQUAL(to.v[i], std::nearbyint(a.v[i]));
    }
  }
  std::mt19937_64 random(6);
  for (int n = -252; n <= 254; ++n) {
    Lanes<float> a, b, to;
    for (int i = 0; i < widest; ++i) {
      a.v[i] = 0.70f + 0.72f * static_cast<float>(random() % 65536) / 65536;
      b.v[i] = static_cast<float>(n);
    }
    all.scale_by_power(a.v, b.v, b.v, to.v);
    for (int i = 0; i < size; ++i) {
      CHECK_EQUAL(to.v[i], std::ldexp(a.v[i], n));
    }
  }
}

TEST(arithmetic_of_floats) { EACH_ISA(arithmetic<float>, operations<float>); }
TEST(arithmetic_of_doubles) { EACH_ISA(arithmetic<double>, operations<double>); }
TEST(fma_of_floats) { EACH_ISA(fused<float>, operations<float>); }
TEST(fma_of_doubles) { EACH_ISA(fused<double>, operations<double>); }
TEST(reductions_of_floats) { EACH_ISA(reductions<float>, operations<float>); }
TEST(reductions_of_doubles) { EACH_ISA(reductions<double>, operations<double>); }
TEST(lanes_between_integers_for_floats) { EACH_ISA(ranges<float>, operations<float>); }
TEST(lanes_between_integers_for_doubles) { EACH_ISA(ranges<double>, operations<double>); }
TEST(rounding_and_scaling_of_floats) { EACH_ISA(rounding_and_scaling, float_operations); }

}  // namespace

// Every function of vectors.hpp, lane by lane, in each instruction set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "ensemble_kernels/scalars.hpp"

namespace ensemble_kernels {

template <typename S>
struct Operations {
  using Function = void (*)(const S* a, const S* b, const S* c, S* to);
  int size;
  Function broadcast, add, subtract, multiply, divide, fma, maximum, minimum, absolute;
  Function select;  // a < b ? c : a
  Function exp2, exp2_in_range, sum, highest;
  uint32_t (*lanes_at_least)(const S* a, const S* b);
  void (*between)(const int32_t* lowest, const int32_t* highest, int32_t x, S* to);
};

struct FloatOperations {
  int size;
  Operations<float>::Function round_to_integer, scale_by_power;
};

template <typename T>
using ScalarOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
struct Loads {
  int size;
  void (*whole)(const T* from, ScalarOf<T>* to);
  void (*some)(const T* from, int64_t n, ScalarOf<T> fill, ScalarOf<T>* to);
};

}  // namespace ensemble_kernels

#define EK_WITH_BF16
#define EK_KERNELS "vectors_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

#include "each_isa.hpp"

using namespace ensemble_kernels;

namespace {

constexpr int widest = 16;

template <typename S>
bool same(S left, S right) {
  return left == right || (left != left && right != right);
}

template <typename S>
struct Lanes {
  S v[widest];
  // NaN in what a function should write, so that a lane that it forgets is seen.
  Lanes() {
    for (S& lane : v) {
      lane = std::numeric_limits<S>::quiet_NaN();
    }
  }
};

// Numbers of all magnitudes with every special value among them.
template <typename S>
S any_number(std::mt19937_64& random) {
  using Limits = std::numeric_limits<S>;
  const S special[] = {S(0), -S(0), S(1), -S(1), Limits::infinity(), -Limits::infinity(),
                       Limits::quiet_NaN(), Limits::max(), Limits::lowest(), Limits::min(),
                       Limits::denorm_min(), -Limits::denorm_min()};
  if (random() % 4 == 0) {
    return special[random() % (sizeof special / sizeof *special)];
  }
  const double fraction = static_cast<double>(static_cast<int64_t>(random())) * 0x1p-63;
  return static_cast<S>(std::ldexp(fraction, static_cast<int>(random() % 200) - 100));
}

template <typename S>
S small_number(std::mt19937_64& random) {
  return static_cast<S>(static_cast<double>(static_cast<int64_t>(random())) * 0x1p-60);
}

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

// In units in the last place of the wanted float, which below 2^-126 stay 2^-149.
double units_off(float got, long double wanted) {
  if (std::isinf(got) && wanted >= 0x1.ffffffp127L) {
    return 0;
  }
  const int exponent = std::max(std::ilogb(wanted == 0 ? 0x1p-149L : wanted), -126);
  return static_cast<double>(std::fabs(got - wanted) / std::ldexp(1.0L, exponent - 23));
}

void powers_of_floats(Operations<float> (*operations)()) {
  const Operations<float> all = operations();
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
    all.exp2(a.v, a.v, a.v, to.v);
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
      all.exp2_in_range(a.v, a.v, a.v, in_range.v);
      CHECK(same(in_range.v[0], to.v[0]));
    }
  }
  std::printf("  exp2 of floats, worst: %.2f units in the last place [%s]\n", worst,
              check::context.c_str());
}

void powers_of_doubles(Operations<double> (*operations)()) {
  const Operations<double> all = operations();
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
    all.exp2(a.v, a.v, a.v, to.v);
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

// From the very end of an allocation, so that a tool sees what reads beyond it.
template <typename T>
void loading(Loads<T> (*loads)()) {
  using S = ScalarOf<T>;
  const Loads<T> all = loads();
  const int size = all.size;
  std::mt19937_64 random(7);
  for (int n = 0; n <= size; ++n) {
    for (int round = 0; round < 20; ++round) {
      const std::unique_ptr<T[]> from(new T[n]);
      for (int i = 0; i < n; ++i) {
        const S value = small_number<S>(random);
        narrow(value, from[i]);
      }
      Lanes<S> to;
      all.some(from.get(), n, S(-7), to.v);
      for (int i = 0; i < size; ++i) {
        CHECK_EQUAL(to.v[i], i < n ? S(widen(from[i])) : S(-7));
      }
      if (n == size) {
        Lanes<S> whole;
        all.whole(from.get(), whole.v);
        for (int i = 0; i < size; ++i) {
          CHECK_EQUAL(whole.v[i], to.v[i]);
        }
      }
    }
  }
}

// The conversions of a vector are those of scalars.hpp, for all bit patterns.
template <typename T>
void converting(Loads<T> (*loads)()) {
  const Loads<T> all = loads();
  for (uint32_t bits = 0; bits < 0x10000; bits += all.size) {
    T from[widest];
    for (int i = 0; i < all.size; ++i) {
      from[i].bits = static_cast<uint16_t>(bits + i);
    }
    Lanes<float> to;
    all.whole(from, to.v);
    for (int i = 0; i < all.size; ++i) {
      CHECK(same(to.v[i], widen(from[i])));
      CHECK_EQUAL(std::signbit(to.v[i]), std::signbit(widen(from[i])));
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
TEST(exp2_of_floats) { EACH_ISA(powers_of_floats, operations<float>); }
TEST(exp2_of_doubles) { EACH_ISA(powers_of_doubles, operations<double>); }
TEST(rounding_and_scaling_of_floats) { EACH_ISA(rounding_and_scaling, float_operations); }
TEST(loading_floats) { EACH_ISA(loading<float>, loads<float>); }
TEST(loading_doubles) { EACH_ISA(loading<double>, loads<double>); }
TEST(loading_float16) { EACH_ISA(loading<Float16>, loads<Float16>); }
TEST(loading_bfloat16) { EACH_ISA(loading<BFloat16>, loads<BFloat16>); }
TEST(converting_float16) { EACH_ISA(converting<Float16>, loads<Float16>); }
TEST(converting_bfloat16) { EACH_ISA(converting<BFloat16>, loads<BFloat16>); }

}  // namespace

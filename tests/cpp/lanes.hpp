// Numbers for the tests of vectors, one a lane.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

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

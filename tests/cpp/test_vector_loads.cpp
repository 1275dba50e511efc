// The loads of vectors.hpp and the conversions in them, in each instruction set.
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <type_traits>

#include "ensemble_kernels/scalars.hpp"

namespace ensemble_kernels {

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
#define EK_KERNELS "vector_loads_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

#include "each_isa.hpp"
#include "lanes.hpp"

using namespace ensemble_kernels;

namespace {

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

TEST(loading_floats) { EACH_ISA(loading<float>, loads<float>); }
TEST(loading_doubles) { EACH_ISA(loading<double>, loads<double>); }
TEST(loading_float16) { EACH_ISA(loading<Float16>, loads<Float16>); }
TEST(loading_bfloat16) { EACH_ISA(loading<BFloat16>, loads<BFloat16>); }
TEST(converting_float16) { EACH_ISA(converting<Float16>, loads<Float16>); }
TEST(converting_bfloat16) { EACH_ISA(converting<BFloat16>, loads<BFloat16>); }

}  // namespace

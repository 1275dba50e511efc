// The k highest of many scores, without atomics and without sorting: the bits of the k-th highest
// are found one after the other by counting, and what reaches it is written in its order.
#pragma once

#include <cstring>

#include "ensemble_kernels/cuda/logits.cuh"
#include "ensemble_kernels/cuda/reductions.cuh"

namespace ensemble_kernels::cuda {

__device__ inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
__device__ inline uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A whole number that is greater where the score is, and 0 for -inf, which is never chosen. Both
// zeros have the same. A NaN has one as good as any.
template <typename Scalar>
__device__ auto key_of(Scalar score) {
  using Bits = decltype(bits_of(score));
  constexpr Bits sign = Bits{1} << (8 * sizeof(Bits) - 1);
  if (!(score > minus_infinity<Scalar>)) {
    return Bits{0};
  }
  const Bits bits = bits_of(score + Scalar(0));  // -0 becomes 0
  return bits & sign ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | sign);
}

template <typename Scalar>
using KeyOf = decltype(key_of(Scalar()));

// The key of the k-th highest, 0 where there are no k that may be chosen. `count_at_least(key)`
// must say to every thread how many of all keys there are from `key` on.
template <typename Key, typename Count>
__device__ Key kth_key(int64_t k, const Count& count_at_least) {
  Key found = 0;
  for (int bit = 8 * static_cast<int>(sizeof(Key)) - 1; bit >= 0; --bit) {
    const Key higher = static_cast<Key>(found | Key{1} << bit);
    if (count_at_least(higher) >= k) {
      found = higher;
    }
  }
  return found;
}

// Hands out the places of what is chosen, in the order in which it is offered: all above the k-th,
// and of those that equal it the first ones, so that there are k.
template <unsigned threads, typename Key>
class Chooser {
 public:
  __device__ Chooser(Key kth, int64_t above, int64_t k) : kth_(kth), equal_left_(k - above) {}

  // Where what this thread offers goes, or -1. Every thread must come.
  __device__ int64_t place(Key key) {
    const bool above = key > kth_, equal = key == kth_ && key != 0;
    const Ranks equals = block_ranks<threads>(equal);
    const bool chosen = above || (equal && equals.before < equal_left_);
    equal_left_ -= equals.all;
    const Ranks ranks = block_ranks<threads>(chosen);
    const int64_t place = chosen ? taken_ + ranks.before : -1;
    taken_ += ranks.all;
    return place;
  }

  __device__ int64_t taken() const { return taken_; }

 private:
  const Key kth_;
  int64_t equal_left_, taken_ = 0;
};

}  // namespace ensemble_kernels::cuda

// Slots move as in a plain copy, bit by bit.
#include "each_order.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Slots of `size` bytes and a gap between them; units as wide as `unit`.
void check_compaction(int64_t size, int64_t gap, int unit, std::mt19937& random) {
  constexpr int64_t matrices = 3, slots = 40;
  const int64_t stride = size + gap;
  std::vector<int64_t> keep;
  const int64_t start = 2;
  for (int64_t slot = start; slot < slots; ++slot) {
    if (random() % 2) {
      keep.push_back(slot);
    }
  }
  keep.push_back(-1);
  const int64_t bytes = matrices * slots * stride - gap;
  std::unique_ptr<uint4[]> aligned(new uint4[(bytes + 15) / 16]);
  char* data = reinterpret_cast<char*>(aligned.get());
  for (int64_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<char>(random());
  }
  const std::vector<char> before(data, data + bytes);
  std::vector<char> expected = before;
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    for (size_t i = 0; i + 1 < keep.size(); ++i) {
      const int64_t to = (matrix * slots + start + static_cast<int64_t>(i)) * stride;
      const int64_t from = (matrix * slots + keep[i]) * stride;
      std::copy_n(before.begin() + from, size, expected.begin() + to);
    }
  }
  EkCompaction call{};
  call.cache = data;
  call.keep = keep.data();
  call.start = &start;
  call.kept = static_cast<int64_t>(keep.size());
  call.keep_stride = 1;
  call.slots = slots;
  call.slot_stride = stride;
  call.groups = 1;
  call.group_units = size / unit;
  call.matrices = matrices;
  call.sizes[0] = matrices;
  call.strides[0] = slots * stride;
  call.leading = 1;
  call.batch = -1;
  call.unit_bytes = unit;
  CHECK_EQUAL(ek_compact_kv(&call, nullptr), 0);
  CHECK(std::equal(expected.begin(), expected.end(), data));
}

TEST(slots_move_bit_by_bit_in_units_of_any_width) {
  std::mt19937 random(1);
  in_each_order([&] {
    for (const int unit : {1, 2, 4, 8, 16}) {
      for (const int64_t units : {1, 3, 40}) {
        check_compaction(units * unit, 0, unit, random);
        check_compaction(units * unit, 5 * unit, unit, random);
      }
    }
  });
}

}  // namespace

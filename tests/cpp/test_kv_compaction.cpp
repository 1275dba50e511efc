// Moves of slots against a copy made slot by slot; every other byte must stay.
#include "ensemble_kernels/kv_compaction.hpp"

#include <memory>
#include <random>

#include "check.hpp"

using namespace ensemble_kernels;

namespace {

struct Layout {
  const char* name;
  int64_t slots, row_length, element_size, slot_stride, element_stride;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int64_t size : {1, 2, 4, 8, 16}) {
    all.push_back({"contiguous", 24, 5, size, 5 * size, size});
    all.push_back({"gaps between slots", 24, 5, size, 9 * size, size});
    all.push_back({"gaps between elements", 24, 5, size, 17 * size, 3 * size});
    all.push_back({"transposed", 24, 5, size, size, 24 * size});
    all.push_back({"one element", 24, 1, size, size, size});
    all.push_back({"one slot for all", 1, 5, size, 5 * size, size});
    all.push_back({"a row of nothing", 24, 0, size, 5 * size, size});
  }
  return all;
}

// Slots that ascend, each at or behind its destination.
std::vector<int64_t> any_keep(std::mt19937& random, int64_t slots, int64_t start) {
  std::vector<int64_t> keep;
  const unsigned density = 1 + random() % 5;
  for (int64_t slot = start; slot < slots; ++slot) {
    if (random() % 5 < density) {
      keep.push_back(slot);
    }
  }
  return keep;
}

void check_move(const Layout& layout, const std::vector<int64_t>& keep, int64_t start,
                std::mt19937& random) {
  const int64_t last_row = layout.row_length ? (layout.row_length - 1) * layout.element_stride : 0;
  const int64_t guard = 64;
  const int64_t extent =
      (layout.slots - 1) * layout.slot_stride + last_row + layout.element_size;
  // Of this very size, so that a tool sees what goes beyond it.
  const std::unique_ptr<char[]> bytes(new char[guard + extent + guard]);
  std::vector<char> before(guard + extent + guard);
  for (size_t i = 0; i < before.size(); ++i) {
    bytes[i] = before[i] = static_cast<char>(random());
  }
  std::vector<char> expected = before;
  for (size_t i = 0; i < keep.size(); ++i) {
    for (int64_t d = 0; d < layout.row_length; ++d) {
      for (int64_t byte = 0; byte < layout.element_size; ++byte) {
        const int64_t within = guard + d * layout.element_stride + byte;
        expected[within + (start + static_cast<int64_t>(i)) * layout.slot_stride] =
            before[within + keep[i] * layout.slot_stride];
      }
    }
  }
  move_runs(bytes.get() + guard, slot_runs(keep, start), layout.slot_stride, layout.element_stride,
            layout.row_length, layout.element_size);
  CHECK(std::memcmp(bytes.get(), expected.data(), expected.size()) == 0);
}

TEST(moves_of_any_slots_in_any_layout) {
  std::mt19937 random(1);
  for (const Layout& layout : layouts()) {
    check::context = std::string(layout.name) + ", " + std::to_string(layout.element_size);
    for (int round = 0; round < 200; ++round) {
      const int64_t start = static_cast<int64_t>(random() % layout.slots);
      check_move(layout, any_keep(random, layout.slots, start), start, random);
    }
    check_move(layout, {}, 0, random);
    check_move(layout, {layout.slots - 1}, 0, random);
    check_move(layout, {layout.slots - 1}, layout.slots - 1, random);
  }
}

// What is moved, and that nothing else is: slots in their place and neighbours make no run of theirs.
TEST(runs_cover_what_changes_its_place) {
  std::mt19937 random(2);
  for (int round = 0; round < 5000; ++round) {
    const int64_t start = static_cast<int64_t>(random() % 6);
    const std::vector<int64_t> keep = any_keep(random, 24, start);
    std::vector<int64_t> source(24);
    for (int64_t slot = 0; slot < 24; ++slot) {
      source[slot] = slot;
    }
    int64_t end = -1;
    for (const SlotRun& run : slot_runs(keep, start)) {
      CHECK(run.count > 0);
      CHECK(run.destination < run.source);
      CHECK(run.source > end);  // else the two would be one
      end = run.source + run.count;
      for (int64_t i = 0; i < run.count; ++i) {
        source[run.destination + i] = run.source + i;
      }
    }
    for (size_t i = 0; i < keep.size(); ++i) {
      CHECK_EQUAL(source[start + static_cast<int64_t>(i)], keep[i]);
    }
  }
}

TEST(runs_of_a_worked_example) {
  const std::vector<SlotRun> runs = slot_runs({2, 3, 5, 8, 9, 10}, 2);
  CHECK_EQUAL(runs.size(), size_t{2});
  CHECK(runs[0].destination == 4 && runs[0].source == 5 && runs[0].count == 1);
  CHECK(runs[1].destination == 5 && runs[1].source == 8 && runs[1].count == 3);
  CHECK(slot_runs({}, 0).empty());
  CHECK(slot_runs({4, 5, 6}, 4).empty());
}

}  // namespace

// `segment_attention`: packed candidate segments that attend to a shared prefix and to themselves.
//
// Floor: 2(P+T)·Hkv·D·b + 2T·Hq·D·b + 4·T·Hq bytes, 4·Hq·D·Σ visible FLOPs.
//
// The query rows of all heads of one key head are packed into the lanes of vectors, transposed, so
// that each key is read once per key head and serves all of them: scores, weights and outputs are
// kept as [key][row] and [d][row], a key's number is broadcast, and a softmax over keys needs no sum
// over lanes. A unit of work is one key head, up to `attention_group` packed rows and a split of the
// prefix; units are merged by their log-sum-exp. Splits depend on the length of the prefix alone, so
// that results depend neither on the number of threads nor on the rest of the batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace ensemble_kernels {

constexpr int64_t attention_block = 96;   // keys between two looks at the maximum, at the most
constexpr int64_t attention_group = 256;  // packed rows of a unit of work
constexpr int64_t attention_width = 64;   // packed rows of the widest tile
constexpr int64_t attention_lanes = 16;   // packed rows are padded to the longest vector

// A tensor [B, H, slots, D]; strides in elements.
struct States {
  const void* data;
  int64_t batch_stride, head_stride, slot_stride, element_stride;
};

// Whether two neighbouring numbers of 16 bits can be read as one of 32.
inline bool in_pairs(const States& states) {
  return states.element_stride == 1 && reinterpret_cast<uintptr_t>(states.data) % 4 == 0 &&
         (states.batch_stride | states.head_stride | states.slot_stride) % 2 == 0;
}

struct AttentionCall {
  States query, key, value;
  int64_t heads_per_key;  // query heads of one key head
  int64_t size;           // D
  double scale;
  double softcap;  // 0: none
  uint64_t id;     // tells calls apart

  // Keys of a block: so that its keys and values stay in the L1 cache, and a multiple of the rows
  // that the products keep in registers.
  int64_t block() const { return size <= 64 ? 96 : 48; }
};

// What the packed rows of one batch row may see: row t · heads_per_key + h stands for row t of the
// h-th head of a key head. It sees the prefix slots from `low` on and, of the slots of the rows,
// those from `own_low` to `own_high`. Padded at the end with copies of the last row.
struct RowView {
  int64_t prefix = 0;
  int64_t rows = 0;  // packed rows without padding
  int64_t padded = 0;
  std::vector<int32_t> low, own_low, own_high;
};

struct AttentionUnit {
  int64_t batch, key_head;
  int64_t row_begin, row_end;    // packed rows; their number is padded to `attention_lanes`
  int64_t slot_begin, slot_end;  // of the prefix
  bool own;                      // and the slots of the rows, which follow
};

// The result of a unit: `out [D][padded rows]` is not divided by `total`, and weights are relative
// to `peak`, in units of log2.
template <typename Scalar>
struct AttentionPart {
  Scalar* out;
  Scalar* peak;
  Scalar* total;
  int64_t padded;
};

inline int64_t padded_rows(int64_t rows) {
  return (rows + attention_lanes - 1) / attention_lanes * attention_lanes;
}

// `offsets` of the segments; `first` is the first slot that may be seen, `window` 0 for none.
inline RowView row_view(const std::vector<int64_t>& offsets, int64_t prefix, int64_t first,
                        int64_t window, int64_t heads_per_key) {
  RowView view;
  view.prefix = prefix;
  view.rows = offsets.back() * heads_per_key;
  view.padded = padded_rows(view.rows);
  view.low.reserve(view.padded);
  view.own_low.reserve(view.padded);
  view.own_high.reserve(view.padded);
  for (size_t segment = 0; segment + 1 < offsets.size(); ++segment) {
    for (int64_t row = offsets[segment]; row < offsets[segment + 1]; ++row) {
      int64_t low = first, own_low = std::max(first, prefix + offsets[segment]);
      if (window > 0) {
        const int64_t place = row - offsets[segment];
        low = std::max(low, prefix + place - window + 1);
        own_low = std::max(own_low, prefix + row - window + 1);
      }
      low = std::max<int64_t>(0, std::min(low, prefix));
      own_low = std::min(own_low, prefix + row + 1);
      view.low.insert(view.low.end(), heads_per_key, static_cast<int32_t>(low));
      view.own_low.insert(view.own_low.end(), heads_per_key, static_cast<int32_t>(own_low));
      view.own_high.insert(view.own_high.end(), heads_per_key, static_cast<int32_t>(prefix + row));
    }
  }
  if (view.rows > 0) {
    view.low.resize(view.padded, view.low.back());
    view.own_low.resize(view.padded, view.own_low.back());
    view.own_high.resize(view.padded, view.own_high.back());
  }
  return view;
}

// Splits of `visible` prefix slots: enough for several threads, long enough to be worth a merge.
inline int64_t split_length(int64_t visible) {
  return visible <= 512 ? 128 : visible <= 2048 ? 256 : 512;
}

// The units of one batch row, those that are merged into the same rows next to each other.
inline void add_units(const RowView& view, int64_t batch, int64_t key_heads,
                      std::vector<AttentionUnit>& units) {
  for (int64_t head = 0; head < key_heads; ++head) {
    for (int64_t row = 0; row < view.rows; row += attention_group) {
      const int64_t end = std::min(view.rows, row + attention_group);
      const int64_t begin =
          *std::min_element(view.low.begin() + row, view.low.begin() + end);
      const int64_t split = split_length(view.prefix - begin);
      int64_t slot = begin;
      // The rest of the prefix goes to the last split, up to half of one, and so do the own slots.
      for (; view.prefix - slot > split + split / 2; slot += split) {
        units.push_back({batch, head, row, end, slot, slot + split, false});
      }
      units.push_back({batch, head, row, end, slot, view.prefix, true});
    }
  }
}

}  // namespace ensemble_kernels

// Which slots the rows of a tile see; part of segment_attention_kernels.hpp.

enum class Seen { nothing, partly, wholly };

// What the rows of a tile see.
struct Visibility {
  int64_t prefix, rows;
  const int32_t *low, *own_low, *own_high;

  Visibility(const RowView& view, int64_t row, int64_t count)
      : prefix(view.prefix),
        rows(count),
        low(view.low.data() + row),
        own_low(view.own_low.data() + row),
        own_high(view.own_high.data() + row) {}

  // Lanes, from row `lane` on, that see a slot.
  template <typename V>
  typename V::Mask who_see(int64_t slot, int64_t lane) const {
    const int32_t at = static_cast<int32_t>(slot);
    return slot < prefix ? between<V>(low + lane, own_high + lane, at)
                         : between<V>(own_low + lane, own_high + lane, at);
  }

  Seen seen(int64_t first, int64_t last) const {
    bool any = false, all = true;
    const bool no_prefix = first >= prefix, no_own = last < prefix;
    const int64_t last_of_prefix = std::min(last, prefix - 1), first_own = std::max(first, prefix);
    for (int64_t i = 0; i < rows; ++i) {
      any |= (low[i] <= last_of_prefix) | ((own_low[i] <= last) & (own_high[i] >= first));
      all &= (no_prefix | (low[i] <= first)) &
             (no_own | ((own_high[i] >= last) & (own_low[i] <= first_own)));
    }
    return all ? Seen::wholly : any ? Seen::partly : Seen::nothing;
  }
};

// The block without the own slots before and behind those that the rows see.
template <typename Product>
static KeyBlock<Product> trimmed(KeyBlock<Product> block, const Visibility& rows) {
  if (block.first + block.count <= rows.prefix) {
    return block;
  }
  const int64_t end = *std::max_element(rows.own_high, rows.own_high + rows.rows) + 1;
  block.count = std::min(block.first + block.count, end) - block.first;
  if (block.first >= rows.prefix) {
    const int64_t low = *std::min_element(rows.own_low, rows.own_low + rows.rows);
    // Whole elements: values may be packed in pairs.
    const int64_t skip =
        std::max<int64_t>(0, low - block.first) / Product::elements * Product::elements;
    block.first += skip;
    block.count -= skip;
    block.skipped = skip;
    block.keys += skip * block.key_stride;
    block.values += skip / Product::elements * block.value_stride;
  }
  return block;
}

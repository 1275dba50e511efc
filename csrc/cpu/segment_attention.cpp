// `segment_attention` on CPU tensors.
#include "ensemble_kernels/segment_attention.hpp"

#include <atomic>

#include "operators.hpp"
#include "arguments.hpp"

#define EK_WITH_BF16
#define EK_KERNELS "ensemble_kernels/segment_attention_kernels.hpp"
#include "ensemble_kernels/foreach_isa.hpp"

namespace ensemble_kernels {

namespace {

States states_of(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2),
          tensor.stride(3)};
}

int64_t checked_prefix(const std::optional<Tensor>& lengths, int64_t batch, int64_t longest) {
  if (!lengths.has_value()) {
    return longest;
  }
  const int64_t length = data_of<int32_t>(*lengths)[batch * lengths->stride(0)];
  if (length < 0 || length > longest) {
    throw std::invalid_argument("prefix_length must be from 0 to S - T = " +
                                std::to_string(longest) + ", got " + std::to_string(length));
  }
  return length;
}

// Rows behind the last segment are padding.
template <typename T>
void fill_padding(int64_t heads, int64_t rows, int64_t real, int64_t size, T* out, float* lse) {
  for (int64_t head = 0; head < heads; ++head) {
    std::memset(static_cast<void*>(out + (head * rows + real) * size), 0,
                (rows - real) * size * sizeof(T));
    std::fill(lse + head * rows + real, lse + (head + 1) * rows,
              -std::numeric_limits<float>::infinity());
  }
}

// The units of the same rows; who finishes the last of them merges them.
struct Merge {
  int64_t first_unit, count;
  std::atomic<int64_t> left{0};
};

template <typename T>
void attend(const AttentionCall& call, const std::vector<RowView>& views,
            const std::vector<AttentionUnit>& units, int64_t heads, int64_t rows, T* out,
            float* lse) {
  const auto run = EK_DISPATCH(attention_unit<T>);
  const auto merge = EK_DISPATCH(merge_attention<T>);
  using Scalar = decltype(widen(T{}));
  const int64_t count = static_cast<int64_t>(units.size());
  std::vector<AttentionPart<Scalar>> parts(count);
  std::vector<int64_t> merge_of(count), first_units;
  int64_t memory = 0;
  double work = 0;
  for (int64_t i = 0; i < count; ++i) {
    const AttentionUnit& unit = units[i];
    parts[i].padded = padded_rows(unit.row_end - unit.row_begin);
    memory += parts[i].padded * (call.size + 2);
    if (i == 0 || unit.batch != units[i - 1].batch || unit.key_head != units[i - 1].key_head ||
        unit.row_begin != units[i - 1].row_begin) {
      first_units.push_back(i);
    }
    merge_of[i] = static_cast<int64_t>(first_units.size()) - 1;
    work += static_cast<double>((unit.slot_end - unit.slot_begin + 16) * parts[i].padded);
  }
  const Tensor scratch = empty_cpu({memory}, sizeof(Scalar) == 8 ? ScalarType::Double : ScalarType::Float);
  Scalar* next = writable<Scalar>(scratch);
  for (auto& part : parts) {
    part.out = next;
    part.peak = part.out + call.size * part.padded;
    part.total = part.peak + part.padded;
    next = part.total + part.padded;
  }
  std::vector<Merge> merges(first_units.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    merges[i].first_unit = first_units[i];
    merges[i].count = (i + 1 < merges.size() ? first_units[i + 1] : count) - first_units[i];
    merges[i].left = merges[i].count;
  }
  const double cost = work / static_cast<double>(count) * static_cast<double>(call.size) / 25;
  for_each_unit(count, cost, [&](int64_t i) {
    const AttentionUnit& unit = units[i];
    run(call, views[unit.batch], unit, parts[i]);
    Merge& group = merges[merge_of[i]];
    if (--group.left == 0) {
      const int64_t head = unit.batch * heads + unit.key_head * call.heads_per_key;
      merge(call, parts.data() + group.first_unit, group.count, unit.row_begin, unit.row_end, rows,
            out + head * rows * call.size, lse + head * rows);
    }
  });
}

}  // namespace

std::tuple<Tensor, Tensor> segment_attention(Tensor query, Tensor key, Tensor value,
                                             Tensor segment_offsets,
                                             std::optional<Tensor> prefix_length,
                                             std::optional<Tensor> key_start, double scale,
                                             std::optional<int64_t> window,
                                             std::optional<double> softcap) {
  static std::atomic<uint64_t> calls{0};
  count_call("segment_attention");
  const int64_t batch = query.size(0), heads = query.size(1), rows = query.size(2);
  const int64_t key_heads = key.size(1), longest = key.size(2) - rows;
  if (key_heads == 0 || heads < key_heads) {
    throw std::invalid_argument("query must have a multiple of the heads of key, not 0, got " +
                                std::to_string(heads) + " and " + std::to_string(key_heads));
  }
  const AttentionCall call{states_of(query),    states_of(key),        states_of(value),
                           heads / key_heads,   query.size(3),         scale,
                           softcap.value_or(0), ++calls};
  std::vector<RowView> views;
  std::vector<AttentionUnit> units;
  for (int64_t b = 0; b < batch; ++b) {
    const auto offsets = checked_offsets("segment_offsets", segment_offsets, rows, b);
    const int64_t prefix = checked_prefix(prefix_length, b, longest);
    const int64_t first =
        key_start.has_value() ? data_of<int32_t>(*key_start)[b * key_start->stride(0)] : 0;
    views.push_back(row_view(offsets, prefix, first, window.value_or(0), call.heads_per_key));
    add_units(views.back(), b, key_heads, units);
  }
  Tensor out = empty_cpu({batch, heads, rows, call.size}, query.scalar_type());
  Tensor lse = empty_cpu({batch, heads, rows}, ScalarType::Float);
  with_float_type(query, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (int64_t b = 0; b < batch; ++b) {
      fill_padding(heads, rows, views[b].rows / call.heads_per_key, call.size,
                   writable<T>(out) + b * heads * rows * call.size,
                   writable<float>(lse) + b * heads * rows);
    }
    if (!units.empty()) {
      attend(call, views, units, heads, rows, writable<T>(out), writable<float>(lse));
    }
  });
  return {out, lse};
}

}  // namespace ensemble_kernels

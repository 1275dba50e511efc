#include "kv_arguments.hpp"

namespace ensemble_kernels {

namespace {

std::vector<int64_t> checked_row(const std::string& name, const int64_t* keep, int64_t count,
                                 int64_t stride, int64_t slots, bool padded,
                                 const std::string& start_name, int64_t start) {
  std::vector<int64_t> kept(count);
  for (int64_t i = 0; i < count; ++i) {
    kept[i] = keep[i * stride];
  }
  while (padded && !kept.empty() && kept.back() == -1) {
    kept.pop_back();
  }
  if (start < 0) {
    throw std::invalid_argument(start_name + " must not be negative, got " + std::to_string(start));
  }
  int64_t previous = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(kept.size()); ++i) {
    const std::string at = name + "[" + std::to_string(i) + "]";
    if (kept[i] < 0 || kept[i] >= slots) {
      throw std::invalid_argument(at + " must be a slot from 0 to " + std::to_string(slots - 1) +
                                  ", got " + std::to_string(kept[i]));
    }
    if (kept[i] <= previous) {
      throw std::invalid_argument(name + " must ascend strictly, got " + std::to_string(previous) +
                                  " before " + std::to_string(kept[i]));
    }
    if (kept[i] < start + i) {
      throw std::invalid_argument(at + " must be at or behind its destination " +
                                  std::to_string(start + i) + ", got " + std::to_string(kept[i]));
    }
    previous = kept[i];
  }
  return kept;
}

}  // namespace

int64_t element_size(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Bool:
    case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e4m3fnuz:
    case ScalarType::Float8_e5m2:
    case ScalarType::Float8_e5m2fnuz:
    case ScalarType::Float8_e8m0fnu:
    case ScalarType::Float4_e2m1fn_x2:
      return 1;
    case ScalarType::Short:
    case ScalarType::UInt16:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Int:
    case ScalarType::UInt32:
    case ScalarType::Float:
    case ScalarType::ComplexHalf:
      return 4;
    case ScalarType::Long:
    case ScalarType::UInt64:
    case ScalarType::Double:
    case ScalarType::ComplexFloat:
      return 8;
    case ScalarType::ComplexDouble:
      return 16;
    default:
      throw std::invalid_argument("cache must be of a dtype whose elements are whole bytes");
  }
}

std::vector<KeptSlots> checked_keep(const Tensor& keep, const Tensor& destination_start,
                                    int64_t slots) {
  const bool by_row = keep.dim() == 2;
  const int64_t rows = by_row ? keep.size(0) : 1;
  std::vector<KeptSlots> result;
  for (int64_t row = 0; row < rows; ++row) {
    const std::string at = by_row ? "[" + std::to_string(row) + "]" : "";
    const int64_t* kept = data_of<int64_t>(keep) + (by_row ? row * keep.stride(0) : 0);
    const int64_t start =
        data_of<int64_t>(destination_start)[by_row ? row * destination_start.stride(0) : 0];
    result.push_back({checked_row("keep" + at, kept, keep.size(-1), keep.stride(-1), slots, by_row,
                                  "destination_start" + at, start),
                      start});
  }
  return result;
}

}  // namespace ensemble_kernels

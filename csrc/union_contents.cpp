#include "union_contents.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace ensemble_kernels {

namespace {

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values(tensor.size(0));
  with_float_type(tensor, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (int64_t i = 0; i < tensor.size(0); ++i) {
      values[i] = widen(data_of<T>(tensor)[i * tensor.stride(0)]);
    }
  });
  return values;
}

// As Python prints a list of floats.
std::string listed(const std::vector<double>& values) {
  std::string all;
  for (const double value : values) {
    char text[32];
    for (int digits = 1; digits <= 17; ++digits) {
      std::snprintf(text, sizeof text, "%.*g", digits, value);
      if (std::strtod(text, nullptr) == value) {
        break;
      }
    }
    if (std::isnan(value)) {  // without a sign
      std::snprintf(text, sizeof text, "nan");
    }
    const bool whole = std::string(text).find_first_not_of("-0123456789") == std::string::npos;
    all += (all.empty() ? "" : ", ") + std::string(text) + (whole ? ".0" : "");
  }
  return "[" + all + "]";
}

}  // namespace

std::vector<double> checked_weights(const Tensor& weights) {
  std::vector<double> values = values_of(weights);
  double total = 0;
  bool valid = true;
  for (const double value : values) {
    valid = valid && 0 <= value && value < std::numeric_limits<double>::infinity();
    total += value;
  }
  if (!valid || !(total > 0)) {
    throw std::invalid_argument("weights must be finite, not negative and not all zero, got " +
                                listed(values));
  }
  for (double& value : values) {
    value /= total;
  }
  return values;
}

std::vector<double> checked_temperature(const Tensor& temperature) {
  const std::vector<double> values = values_of(temperature);
  for (const double value : values) {
    if (!(0 < value && value < std::numeric_limits<double>::infinity())) {
      throw std::invalid_argument("temperature must be positive and finite, got " + listed(values));
    }
  }
  for (const double value : values) {
    // The range of `_checks.py`, for its reason.
    if (!(1e-37f <= value && value <= 1e37)) {
      throw std::invalid_argument("temperature must be from 1e-37 to 1e+37, got " + listed(values));
    }
  }
  return values;
}

void raise_bad_map() {
  throw std::invalid_argument(
      "map_offsets must be non-decreasing, from 0 to at most the length of map_ids");
}

void check_map(const Tensor& offsets, int64_t ids) {
  const int32_t* data = data_of<int32_t>(offsets);
  int32_t before = 0;
  for (int64_t i = 0; i < offsets.size(0); ++i) {
    if (data[i] < before || data[i] > ids) {
      raise_bad_map();
    }
    before = data[i];
  }
}

}  // namespace ensemble_kernels

// What the operators over a union vocabulary ask of the contents of their arguments, read on the
// CPU. Each raises std::invalid_argument.
#pragma once

#include <vector>

#include "arguments.hpp"

namespace ensemble_kernels {

// Normalised.
std::vector<double> checked_weights(const Tensor& weights);
std::vector<double> checked_temperature(const Tensor& temperature);

// Contiguous offsets into `ids` ids.
void check_map(const Tensor& offsets, int64_t ids);
[[noreturn]] void raise_bad_map();

}  // namespace ensemble_kernels

// The operators on CPU tensors, with the arguments of the schemas in ensemble_kernels/_library.py.
// Shapes, dtypes and devices have been checked in Python; contents are checked here, before anything
// is written, and raise std::invalid_argument (ValueError in Python).
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace ensemble_kernels {

using torch::stable::Tensor;

void compact_kv_(Tensor cache, Tensor keep, Tensor destination_start);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> token_statistics(Tensor logits, Tensor token_ids,
                                                                    int64_t vocab_size,
                                                                    double temperature);

std::tuple<Tensor, Tensor> segment_attention(Tensor query, Tensor key, Tensor value,
                                             Tensor segment_offsets,
                                             std::optional<Tensor> prefix_length,
                                             std::optional<Tensor> key_start, double scale,
                                             std::optional<int64_t> window,
                                             std::optional<double> softcap);

Tensor segment_mean(Tensor values, Tensor segment_offsets);

std::tuple<Tensor, Tensor, Tensor> mix_distributions(std::vector<Tensor> logits,
                                                     std::vector<Tensor> map_offsets,
                                                     std::vector<Tensor> map_ids, Tensor weights,
                                                     Tensor temperature, bool geometric);

Tensor sharpen_prefixes(Tensor probabilities, Tensor prefix_end, Tensor columns, double threshold);

std::tuple<Tensor, Tensor> top_k_union(std::vector<Tensor> logits, std::vector<Tensor> map_offsets,
                                       std::vector<Tensor> map_ids,
                                       std::vector<Tensor> score_columns, Tensor weights,
                                       Tensor temperature, int64_t k);

}  // namespace ensemble_kernels

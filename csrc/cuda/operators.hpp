// The operators on CUDA tensors, with the arguments of the schemas in ensemble_kernels/_library.py.
// Shapes, dtypes and devices have been checked in Python. Nothing here waits for the device.
#pragma once

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

#include "arguments.hpp"

namespace ensemble_kernels::cuda {

void compact_kv_(Tensor cache, Tensor keep, Tensor destination_start);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> token_statistics(Tensor logits, Tensor token_ids,
                                                                    int64_t vocab_size,
                                                                    double temperature);

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

// Of `ensemble_kernels_cuda` alone: attention itself is Triton's.
std::tuple<Tensor, Tensor> merge_attention_states(Tensor states, Tensor lse);

// For the dispatch key that the library `m` is made for.
template <typename Library>
void implement_operators(Library& m) {
  m.impl("compact_kv_", TORCH_BOX(&compact_kv_));
  m.impl("token_statistics", TORCH_BOX(&token_statistics));
  m.impl("segment_mean", TORCH_BOX(&segment_mean));
  m.impl("mix_distributions", TORCH_BOX(&mix_distributions));
  m.impl("sharpen_prefixes", TORCH_BOX(&sharpen_prefixes));
  m.impl("top_k_union", TORCH_BOX(&top_k_union));
}

}  // namespace ensemble_kernels::cuda

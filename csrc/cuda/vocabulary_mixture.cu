#include "ensemble_kernels/cuda/vocabulary_mixture.cuh"

using namespace ensemble_kernels::cuda;

namespace {

int64_t stretches_of_all(const EkUnionModels& all) {
  int64_t stretches = 0;
  for (int32_t m = 0; m < all.count; ++m) {
    stretches += stretches_of(all.models[m]);
  }
  return stretches;
}

// One at least, which writes what is of the row and of no column.
int64_t chunks_of(const EkUnionModels& all) {
  return all.size > 0 ? ceil_div(all.size, union_chunk) : 1;
}

template <typename Scalar>
cudaError_t mix(const EkMixture& call, void* stream) {
  const dim3 of_stretches(static_cast<unsigned>(call.all.rows * call.stretches));
  const dim3 of_chunks(static_cast<unsigned>(call.all.rows * call.chunks));
  cudaError_t error = launch(softmax_parts<sizeof(Scalar) == sizeof(double)>, of_stretches,
                             chunk_threads, stream, call.all, call.stretches,
                             MixtureWorkspace(call).parts);
  if (error == cudaSuccess) {
    error = launch(mix_chunks<Scalar>, of_chunks, chunk_threads, stream, call);
  }
  if (error == cudaSuccess) {
    error = launch(finish_chunks<Scalar>, of_chunks, chunk_threads, stream, call);
  }
  return error;
}

}  // namespace

int64_t ek_mix_distributions_workspace(const EkUnionModels* all) {
  const int64_t parts = stretches_of_all(*all) + chunks_of(*all);
  return all->rows * (parts * int64_t{sizeof(SoftmaxPart)} +
                      all->count * chunks_of(*all) * int64_t{sizeof(double)});
}

int ek_mix_distributions(const EkMixture* given, void* stream) {
  EkMixture call = *given;
  call.stretches = stretches_of_all(call.all);
  call.chunks = chunks_of(call.all);
  if (call.all.rows == 0) {
    return cudaSuccess;
  }
  if (call.all.rows * call.stretches > most_blocks || call.all.rows * call.chunks > most_blocks) {
    return cudaErrorInvalidConfiguration;
  }
  return call.all.in_double ? mix<double>(call, stream) : mix<float>(call, stream);
}

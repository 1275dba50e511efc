#include "ensemble_kernels/cuda/unite_candidates.cuh"

using namespace ensemble_kernels::cuda;

namespace {

template <typename Scalar>
cudaError_t select_and_mix(const EkTopK& call, void* stream) {
  const TopKWorkspace<Scalar> workspace(call);
  if (workspace.pairs * workspace.chunks > most_blocks) {
    return cudaErrorInvalidConfiguration;
  }
  const auto run = [&](auto kernel, int64_t blocks, unsigned threads) {
    return launch(kernel, dim3(static_cast<unsigned>(blocks)), threads, stream, call);
  };
  cudaError_t error =
      run(score_chunks<Scalar>, workspace.pairs * workspace.chunks, chunk_threads);
  if (error == cudaSuccess) {
    error = run(choose_columns<Scalar>, workspace.pairs, choosing_threads);
  }
  if (error == cudaSuccess) {
    error = run(mix_candidates<Scalar>, call.all.rows, uniting_threads);
  }
  return error;
}

}  // namespace

int64_t ek_top_k_union_workspace(const EkTopK* call) {
  return call->all.in_double ? TopKWorkspace<double>(*call).bytes
                             : TopKWorkspace<float>(*call).bytes;
}

int ek_top_k_union(const EkTopK* call, void* stream) {
  if (call->all.rows == 0) {
    return cudaSuccess;
  }
  return call->all.in_double ? select_and_mix<double>(*call, stream)
                             : select_and_mix<float>(*call, stream);
}

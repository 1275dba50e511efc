// What does not fit into the registers that it asks for: the build must refuse it.
__global__ void __launch_bounds__(1024, 2) spill(float* out, const float* in) {
  float values[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    values[i] = in[i * 1024 + threadIdx.x];
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < 4; ++round) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      values[i] = values[i] * values[(i + 7) % 64] + values[(i + 31) % 64];
    }
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    out[i * 1024 + threadIdx.x] = values[i];
  }
}

#include <cuda_runtime.h>

#include "cuda/launchers.h"

const char* ek_error_name(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

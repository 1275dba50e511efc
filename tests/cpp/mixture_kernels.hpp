// The kernels of test_vocabulary_mixture.cpp, which share gathers.hpp.
#include "ensemble_kernels/vocabulary_mixture_kernels.hpp"
#define EK_GATHERS_INCLUDED
#include "ensemble_kernels/top_k_union_kernels.hpp"
#undef EK_GATHERS_INCLUDED

// What the tests of the CUDA kernels share: a body run in several orders of threads, and memory
// that ends where it must, so that the sanitizers see what goes beyond. The kernels are called
// through their C launchers and held against plain loops; the cases of tests/kernels go further,
// these need neither torch nor Python.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <random>

#include "check.hpp"
#include "cuda/launchers.h"
#include "ensemble_kernels/scalars.hpp"

template <typename Body>
void in_each_order(const Body& body) {
  for (const unsigned order : {0u, 1u, 7u}) {
    emulator::order = order;
    check::context = "order " + std::to_string(order);
    body();
  }
  emulator::order = 0;
}

// Of this very size, so that a tool sees what goes beyond it.
template <typename T>
std::unique_ptr<T[]> filled(size_t count, std::mt19937& random, float spread = 4) {
  std::unique_ptr<T[]> values(new T[count]);
  std::normal_distribution<float> normal(0, spread);
  for (size_t i = 0; i < count; ++i) {
    ensemble_kernels::narrow(normal(random), values[i]);
  }
  return values;
}

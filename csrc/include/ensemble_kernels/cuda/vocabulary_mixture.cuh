// `mix_distributions`: several models' distributions over one union vocabulary, in three launches.
//
// Floor: R·Σ V_m·b bytes + map + 4·R·U bytes; at decoding sizes the launches. Each launch handles
// all models and all rows: (1) softmax_parts.cuh; (2) a block mixes a chunk of columns, which
// gather their logits through the map, and sums what it found; (3) the chunks' sums are merged, and
// the chunk, still in the L2 cache, is scaled: 8·R·U bytes of traffic there above the floor. Chunks
// have a fixed size and are merged in order in double precision, so that a row's result depends on
// nothing else.
#pragma once

#include "ensemble_kernels/cuda/softmax_parts.cuh"

namespace ensemble_kernels::cuda {

// Where the stages leave what the next one needs.
struct MixtureWorkspace {
  SoftmaxPart* parts;       // [rows, stretches]
  SoftmaxPart* log_chunks;  // [rows, chunks]: of the geometric mean
  double* masses;           // [rows, count, chunks]: of the models, on the columns of a chunk

  __host__ __device__ explicit MixtureWorkspace(const EkMixture& call)
      : parts(static_cast<SoftmaxPart*>(call.workspace)),
        log_chunks(parts + call.all.rows * call.stretches),
        masses(reinterpret_cast<double*>(log_chunks + call.all.rows * call.chunks)) {}
};

// How the models' rows enter the mixture of a block's row.
struct Shares {
  double weight[EK_MODELS], peak[EK_MODELS], total[EK_MODELS];

  // NaN, +inf, or nothing but -inf
  __device__ bool broken(int model) const { return !(total[model] > 0); }
};

// Fills `shares`, a warp a model. Every thread of the block must come.
__device__ inline void find_shares(const EkMixture& call, int64_t row, Shares& shares) {
  const MixtureWorkspace workspace(call);
  int64_t first = 0;
  for (int model = 0; model < call.all.count; ++model) {
    const int64_t stretches = stretches_of(call.all.models[model]);
    if (model % (chunk_threads / warp_lanes) == threadIdx.x / warp_lanes) {
      const SoftmaxPart part = merge_parts(workspace.parts + row * call.stretches + first,
                                           stretches, factor_of(call.all, model));
      if (threadIdx.x % warp_lanes == 0) {
        shares.weight[model] = share_of(call.all, model);
        shares.peak[model] = part.maximum;
        shares.total[model] = part.total;
      }
    }
    first += stretches;
  }
  __syncthreads();
}

// What one column has of one model: the sum of its ids' powers, and the logarithm of it.
template <typename Scalar>
struct ColumnPower {
  Scalar power, log;
};

template <typename Scalar>
__device__ ColumnPower<Scalar> column_power(const EkUnionModel& model, const UnionRow& logits,
                                            int64_t column, Scalar peak, Scalar factor) {
  const IdRange range = ids_of_column(model, column);
  ColumnPower<Scalar> result{0, minus_infinity<Scalar>};
  if (range.end - range.begin == 1) {
    result.log = (logits.template logit<Scalar>(model.ids[range.begin]) - peak) * factor;
    result.power = power_of_2(result.log);
    return result;
  }
  Scalar highest = minus_infinity<Scalar>;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const Scalar log = (logits.template logit<Scalar>(model.ids[i]) - peak) * factor;
    result.power += power_of_2(log);
    highest = log > highest ? log : highest;
  }
  if (highest > minus_infinity<Scalar>) {
    // Relative to the highest, since the powers themselves may all underflow.
    double total = 0;
    for (int64_t i = range.begin; i < range.end; ++i) {
      const Scalar log = (logits.template logit<Scalar>(model.ids[i]) - peak) * factor;
      total += exp2(static_cast<double>(log) - static_cast<double>(highest));
    }
    result.log = static_cast<Scalar>(static_cast<double>(highest) + log2(total));
  }
  return result;
}

// The thread's columns of the chunk that begins at `start`, mixed; of the geometric mean their
// logarithms. Writes the models' masses to `masses`, `chunks` apart, unless that is null. Every
// thread must come.
template <typename Scalar>
__device__ void mix_columns(const EkMixture& call, const Shares& shares, int64_t row, int64_t start,
                            bool geometric, double* masses, Scalar (&mixed)[columns_of_thread]) {
#pragma unroll
  for (Scalar& value : mixed) {
    value = 0;
  }
  for (int m = 0; m < call.all.count; ++m) {
    double mass = 0;
    if (!shares.broken(m)) {
      const EkUnionModel& model = call.all.models[m];
      const UnionRow logits(model, row);
      const Scalar peak = static_cast<Scalar>(shares.peak[m]);
      const Scalar factor = static_cast<Scalar>(factor_of(call.all, m));
      const Scalar log_total = static_cast<Scalar>(log2(shares.total[m]));
      const double weight = shares.weight[m];
      const Scalar scale = static_cast<Scalar>(geometric ? weight : weight / shares.total[m]);
#pragma unroll
      for (int i = 0; i < columns_of_thread; ++i) {
        const int64_t column = start + i * int64_t{chunk_threads} + threadIdx.x;
        if (column < call.all.size) {
          const auto found = column_power(model, logits, column, peak, factor);
          mass += found.power;
          if (weight > 0) {  // 0 · (-inf) would be NaN
            mixed[i] += scale * (geometric ? found.log - log_total : found.power);
          }
        }
      }
      mass /= shares.total[m];
    } else {
      mass = not_a_number;
    }
    if (masses) {
      mass = block_reduce<chunk_threads>(mass, 0.0, Add{});
      if (threadIdx.x == 0) {
        masses[m * call.chunks] = mass;
      }
    }
  }
}

// Powers of the thread's logarithms relative to the highest of the chunk.
template <typename Scalar>
__device__ SoftmaxPart powers_of_logs(int64_t columns, Scalar (&logs)[columns_of_thread]) {
  constexpr Scalar nothing = minus_infinity<Scalar>;
  Scalar peak = nothing;
#pragma unroll
  for (int i = 0; i < columns_of_thread; ++i) {
    logs[i] = i * int64_t{chunk_threads} + threadIdx.x < columns ? logs[i] : nothing;
    peak = logs[i] > peak ? logs[i] : peak;
  }
  peak = block_reduce<chunk_threads>(peak, nothing, Maximum{});
  const Scalar shift = peak > nothing ? peak : Scalar(0);
  double total = 0;
#pragma unroll
  for (Scalar& log : logs) {
    log = power_of_2(log - shift);
    total += log;
  }
  return {peak, block_reduce<chunk_threads>(total, 0.0, Add{})};
}

template <typename Scalar>
__device__ void write_columns(const EkMixture& call, int64_t row, int64_t start, double factor,
                              const Scalar (&values)[columns_of_thread]) {
#pragma unroll
  for (int i = 0; i < columns_of_thread; ++i) {
    const int64_t column = start + i * int64_t{chunk_threads} + threadIdx.x;
    if (column < call.all.size) {
      call.probabilities[row * call.all.size + column] =
          static_cast<float>(static_cast<double>(values[i]) * factor);
    }
  }
}

template <typename Scalar>
__global__ void __launch_bounds__(chunk_threads, 2)
    mix_chunks(const __grid_constant__ EkMixture call) {
  const int64_t row = blockIdx.x / call.chunks, chunk = blockIdx.x % call.chunks;
  const int64_t start = chunk * union_chunk;
  const MixtureWorkspace workspace(call);
  __shared__ Shares shares;
  find_shares(call, row, shares);
  Scalar mixed[columns_of_thread];
  mix_columns(call, shares, row, start, call.geometric,
              workspace.masses + row * call.all.count * call.chunks + chunk, mixed);
  if (call.geometric) {
    const SoftmaxPart part = powers_of_logs(call.all.size - start, mixed);
    if (threadIdx.x == 0) {
      workspace.log_chunks[blockIdx.x] = part;
    }
  }
  write_columns(call, row, start, 1, mixed);
}

// What the last stage knows of a whole row.
struct RowTotals {
  double mass[EK_MODELS];
  SoftmaxPart logs;
};

__device__ inline void find_totals(const EkMixture& call, int64_t row, RowTotals& totals) {
  const MixtureWorkspace workspace(call);
  constexpr unsigned warps = chunk_threads / warp_lanes;
  const unsigned lane = threadIdx.x % warp_lanes, warp = threadIdx.x / warp_lanes;
  for (int m = static_cast<int>(warp); m < call.all.count; m += warps) {
    const double* masses = workspace.masses + (row * call.all.count + m) * call.chunks;
    double mass = 0;
    for (int64_t i = lane; i < call.chunks; i += warp_lanes) {
      mass += masses[i];
    }
    mass = warp_reduce(mass, Add{});
    if (lane == 0) {
      totals.mass[m] = mass;
    }
  }
  if (call.geometric && warp == warps - 1) {
    const SoftmaxPart logs =
        merge_parts(workspace.log_chunks + row * call.chunks, call.chunks, 1);
    if (lane == 0) {
      totals.logs = logs;
    }
  }
  __syncthreads();
}

template <typename Scalar>
__global__ void __launch_bounds__(chunk_threads, 2)
    finish_chunks(const __grid_constant__ EkMixture call) {
  const int64_t row = blockIdx.x / call.chunks, chunk = blockIdx.x % call.chunks;
  const int64_t start = chunk * union_chunk;
  __shared__ RowTotals totals;
  find_totals(call, row, totals);
  bool broken = false;
  double total = 0;
  for (int m = 0; m < call.all.count; ++m) {
    const double share = share_of(call.all, m);
    if (share > 0) {
      broken = broken || totals.mass[m] != totals.mass[m];
      total += share * totals.mass[m];
    }
  }
  const bool fell_back = call.geometric && !broken && !(totals.logs.total > 0);
  const bool of_logs = call.geometric && !fell_back;
  total = of_logs ? totals.logs.total : total;
  double factor = broken || !(total > 0) ? not_a_number : 1 / total;
  Scalar values[columns_of_thread];
  if (fell_back) {
    __shared__ Shares shares;
    find_shares(call, row, shares);
    mix_columns(call, shares, row, start, false, nullptr, values);
  } else {
#pragma unroll
    for (int i = 0; i < columns_of_thread; ++i) {
      const int64_t column = start + i * int64_t{chunk_threads} + threadIdx.x;
      values[i] = column < call.all.size ? call.probabilities[row * call.all.size + column] : 0;
    }
    if (of_logs) {
      const MixtureWorkspace workspace(call);
      factor *= exp2(workspace.log_chunks[blockIdx.x].maximum - totals.logs.maximum);
    }
  }
  write_columns(call, row, start, factor, values);
  if (chunk == 0 && threadIdx.x == 0) {
    call.fell_back[row] = fell_back;
    for (int m = 0; m < call.all.count; ++m) {
      const double lost = 1 - totals.mass[m];
      call.lost_mass[m * call.all.rows + row] = static_cast<float>(lost < 0 ? 0 : lost);
    }
  }
}

}  // namespace ensemble_kernels::cuda

// Compiled for each instruction set by foreach_isa.hpp; see token_statistics.hpp.

// `count` columns of a row from `start` on.
template <typename T>
void stretch_statistics(const LogitRow<T>& row, int64_t start, int64_t count, double factor,
                        StretchStatistics& result) {
  using V = VectorOf<T>;
  using Scalar = typename V::Scalar;
  constexpr int unroll = 4;
  constexpr int64_t step = V::size * unroll;
  constexpr Scalar nothing = -std::numeric_limits<Scalar>::infinity();
  Scalar gathered[statistics_block];
  Scalar maximum_so_far = nothing;
  double total = 0, moment = 0;
  int64_t best_block = start;

  for (int64_t done = 0; done < count; done += statistics_block) {
    const int64_t size = count - done < statistics_block ? count - done : statistics_block;
    const int64_t whole = size - size % step;
    const T* block = row.data + (start + done) * row.stride;
    const bool contiguous = row.stride == 1;
    if (!contiguous) {
      for (int64_t i = 0; i < size; ++i) {
        gathered[i] = widen(block[i * row.stride]);
      }
    }
    const auto at = [&](int64_t i) EK_INLINE { return contiguous ? load(block + i) : load(gathered + i); };
    const auto some = [&](int64_t i, int64_t n) EK_INLINE {
      return contiguous ? load_some(block + i, n, nothing) : load_some(gathered + i, n, nothing);
    };
    const auto lanes = [](int64_t left) { return left < V::size ? left : V::size; };

    V peaks[unroll];
    for (int u = 0; u < unroll; ++u) {
      peaks[u] = broadcast(nothing);
    }
    for (int64_t i = 0; i < whole; i += step) {
      for (int u = 0; u < unroll; ++u) {
        peaks[u] = maximum(peaks[u], at(i + u * V::size));
      }
    }
    for (int64_t i = whole; i < size; i += V::size) {
      peaks[0] = maximum(peaks[0], some(i, lanes(size - i)));
    }
    const Scalar peak = highest(maximum(maximum(peaks[0], peaks[1]), maximum(peaks[2], peaks[3])));
    if (peak > maximum_so_far) {
      if (maximum_so_far > nothing) {
        const double lower = (double(maximum_so_far) - double(peak)) * factor;
        const double scale = std::exp2(lower);
        moment = scale * (moment + lower * total);
        total *= scale;
      } else {  // what stood in for -inf goes, NaN stays
        moment *= 0;
        total *= 0;
      }
      maximum_so_far = peak;
      best_block = start + done;
    }

    // A finite stand-in while there was nothing but -inf, since (-inf) - (-inf) is NaN.
    const V shift = broadcast(maximum_so_far > nothing ? maximum_so_far : Scalar(0));
    const V scale = broadcast(static_cast<Scalar>(factor));
    // 2^-126 stands in for less, -inf included: even a million of them change no digit of a sum
    // that is at least 1, 0 · -inf would be NaN, and denormals are slow.
    const V least = broadcast(Scalar(-126));
    V totals[unroll], moments[unroll];
    for (int u = 0; u < unroll; ++u) {
      totals[u] = moments[u] = broadcast(Scalar(0));
    }
    const auto add = [&](int u, V logits) EK_INLINE {
      const V exponent = maximum(least, (logits - shift) * scale);
      const V weight = exp2_in_range(exponent);
      totals[u] = totals[u] + weight;
      moments[u] = fma(exponent, weight, moments[u]);
    };
    // What the processor fetches ahead of its own accord ends with the page: the next block is
    // asked for while this one is worked on.
    const char* next = reinterpret_cast<const char*>(block + (contiguous ? size : 0));
    for (int64_t i = 0; i < whole; i += step) {
      for (size_t line = 0; line < step * sizeof(T); line += 64) {
        EK_PREFETCH(next + i * sizeof(T) + line);
      }
      for (int u = 0; u < unroll; ++u) {
        add(u, at(i + u * V::size));
      }
    }
    for (int64_t i = whole; i < size; i += V::size) {
      add(0, some(i, lanes(size - i)));
    }
    total += sum((totals[0] + totals[1]) + (totals[2] + totals[3]));
    moment += sum((moments[0] + moments[1]) + (moments[2] + moments[3]));
  }

  result.maximum = maximum_so_far;
  result.moment = moment;
  // What stood in for -inf does not count where there was nothing else; NaN does.
  result.total = maximum_so_far > nothing || total != total ? total : 0;
  if (maximum_so_far > nothing) {
    int64_t best = best_block;
    while (widen(row.data[best * row.stride]) != maximum_so_far) {
      ++best;
    }
    result.argmax = best;
  }
}

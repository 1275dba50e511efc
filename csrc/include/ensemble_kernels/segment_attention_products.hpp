// The products of a tile, with sums in registers; part of segment_attention_kernels.hpp.

// The two products of attention as C[m][row] (+)= Σ_k A[m][k] · B[k][row], where A is read number by
// number. An Element is what one step of k takes of A: one number, or two of bfloat16.
template <typename V>
struct FullProduct {
  using Vector = V;
  using Element = typename V::Scalar;
  using Lanes = V;
  static constexpr int elements = 1;  // steps of k in one Element
  static Lanes lanes(const Element* p) { return load(p); }
  static Lanes spread(Element a) { return broadcast(a); }
  static V add(Lanes a, Lanes b, V c) { return fma(a, b, c); }
};

#if EK_ISA == 3
struct PairProduct {
  using Vector = Floats;
  using Element = uint32_t;
  using Lanes = __m512i;
  static constexpr int elements = 2;
  static Lanes lanes(const Element* p) { return _mm512_loadu_si512(p); }
  static Lanes spread(Element a) { return _mm512_set1_epi32(static_cast<int>(a)); }
  static Floats add(Lanes a, Lanes b, Floats c) {
    return {_mm512_dpbf16_ps(c.v, (__m512bh)a, (__m512bh)b)};
  }
};
#endif

// Rows of A that are kept in registers, for 1 to 4 vectors of B.
#if EK_ISA >= 2
static constexpr int attention_rows_of_a[] = {0, 16, 12, 8, 6};
#else
static constexpr int attention_rows_of_a[] = {0, 8, 6, 4, 3};
#endif

// `rescale`: what C is multiplied by first; null to overwrite it.
template <typename Product, int vectors, int rows>
static inline void product_tile(const typename Product::Element* a, int64_t a_row, int64_t a_step,
                                int64_t steps, const typename Product::Element* b, int64_t b_step,
                                typename Product::Vector::Scalar* c, int64_t c_row,
                                const typename Product::Vector::Scalar* rescale) {
  using V = typename Product::Vector;
  V sums[rows][vectors];
  for (int v = 0; v < vectors; ++v) {
    const V factor = rescale ? load(rescale + v * V::size) : broadcast(typename V::Scalar(0));
    for (int m = 0; m < rows; ++m) {
      sums[m][v] = rescale ? load(c + m * c_row + v * V::size) * factor : factor;
    }
  }
  for (int64_t k = 0; k < steps; ++k) {
    typename Product::Lanes lanes[vectors];
    for (int v = 0; v < vectors; ++v) {
      lanes[v] = Product::lanes(b + k * b_step + v * V::size);
    }
    for (int m = 0; m < rows; ++m) {
      const auto number = Product::spread(a[m * a_row + k * a_step]);
      for (int v = 0; v < vectors; ++v) {
        sums[m][v] = Product::add(number, lanes[v], sums[m][v]);
      }
    }
  }
  for (int m = 0; m < rows; ++m) {
    for (int v = 0; v < vectors; ++v) {
      store(c + m * c_row + v * V::size, sums[m][v]);
    }
  }
}

// A function of its own: inlined, what is alive around it would push the sums out of registers.
template <typename Product, int vectors>
EK_NOINLINE static void product(const typename Product::Element* a, int64_t a_row, int64_t a_step,
                    int64_t rows, int64_t steps, const typename Product::Element* b,
                    int64_t b_step, typename Product::Vector::Scalar* c, int64_t c_row,
                    const typename Product::Vector::Scalar* rescale) {
  constexpr int most = attention_rows_of_a[vectors];
  int64_t m = 0;
  for (; m + most <= rows; m += most) {
    product_tile<Product, vectors, most>(a + m * a_row, a_row, a_step, steps, b, b_step,
                                         c + m * c_row, c_row, rescale);
  }
  for (; m + 4 <= rows; m += 4) {
    product_tile<Product, vectors, 4>(a + m * a_row, a_row, a_step, steps, b, b_step, c + m * c_row,
                                      c_row, rescale);
  }
  for (; m < rows; ++m) {
    product_tile<Product, vectors, 1>(a + m * a_row, a_row, a_step, steps, b, b_step, c + m * c_row,
                                      c_row, rescale);
  }
}

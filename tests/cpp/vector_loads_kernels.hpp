// Compiled for each instruction set by foreach_isa.hpp: the loads of vectors.hpp, between arrays.

template <typename T>
static void probe_load(const T* from, typename VectorOf<T>::Scalar* to) {
  store(to, load(from));
}
template <typename T>
static void probe_load_some(const T* from, int64_t n, typename VectorOf<T>::Scalar fill,
                            typename VectorOf<T>::Scalar* to) {
  store(to, load_some(from, n, fill));
}
template <typename T>
static Loads<T> loads() {
  return {VectorOf<T>::size, &probe_load<T>, &probe_load_some<T>};
}

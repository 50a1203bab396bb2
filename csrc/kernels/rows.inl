// Vectors along pixels, broadcast weights. Included by kernels.inl.

constexpr int kRowsMr = VECTOR_REGISTERS / 4;

template <int M>
constexpr int kRowsVectors = rows_vectors(kRowsMr, M);

// Vectors of the next of the fewest blocks of the same width.
template <class T, int M>
INLINE int next_vectors(std::int64_t len) {
  return even_part((len + Vec<T>::lanes - 1) / Vec<T>::lanes, kRowsVectors<M>);
}

// Stores the sums of a row of results: of the last vector those that `len` reaches.
template <class T, int NV>
INLINE void store_sums(T* c, const V<T>* acc, std::int64_t len, bool accumulate) {
  constexpr int L = Vec<T>::lanes;
  UNROLL for (int j = 0; j < NV; ++j, c += L) {
    if (j < NV - 1 || len >= NV * L) {
      storeu(c, accumulate ? loadu(c) + acc[j] : acc[j]);
      continue;
    }
    const int rest = static_cast<int>(len - j * L);
    store_part(c, accumulate ? load_part(c, rest) + acc[j] : acc[j], rest);
  }
}

template <class T, int M, int NV>
void rows_block(std::int64_t len, const T* s, const std::ptrdiff_t* offset, std::int64_t taps, const T* w, T* c,
                std::ptrdiff_t ldc, bool accumulate) {
  constexpr int L = Vec<T>::lanes;
  V<T> acc[M][NV];
  UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = V<T>{};
  for (std::int64_t t = 0; t < taps; ++t, w += M) {
    const T* p = s + offset[t];
    V<T> v[NV];
    UNROLL for (int j = 0; j < NV; ++j) {
      v[j] = loadu(p + j * L);
      if constexpr (M > 1) KEEP(v[j]);
    }
    UNROLL for (int i = 0; i < M; ++i) {
      const V<T> f = splat(w[i]);
      UNROLL for (int j = 0; j < NV; ++j) acc[i][j] += f * v[j];
    }
  }
  UNROLL for (int i = 0; i < M; ++i) store_sums<T, NV>(c + i * ldc, acc[i], len, accumulate);
}

template <class T, int M, int NV = kRowsVectors<M>>
void rows_vectors(int vectors, std::int64_t len, const T* s, const std::ptrdiff_t* offset, std::int64_t taps,
                  const T* w, T* c, std::ptrdiff_t ldc, bool accumulate) {
  if constexpr (NV > 1)
    if (vectors < NV) return rows_vectors<T, M, NV - 1>(vectors, len, s, offset, taps, w, c, ldc, accumulate);
  rows_block<T, M, NV>(len, s, offset, taps, w, c, ldc, accumulate);
}

template <class T, int M = kRowsMr>
void rows(int m, std::int64_t len, const T* s, const std::ptrdiff_t* offset, std::int64_t taps, const T* w, T* c,
          std::ptrdiff_t ldc, bool accumulate) {
  if constexpr (M > 1) {
    if (m < M) return rows<T, M - 1>(m, len, s, offset, taps, w, c, ldc, accumulate);
  }
  for (int now; len > 0; len -= now, s += now, c += now) {
    const int vectors = next_vectors<T, M>(len);
    rows_vectors<T, M>(vectors, len, s, offset, taps, w, c, ldc, accumulate);
    now = vectors * Vec<T>::lanes;
  }
}

// Rows of one channel's results. Vectors lie across cache lines and cost two loads each, so that a result alone waits
// for them: a row of the source is loaded once for all M rows that it adds to.
template <class T, int M, int NV>
void stacked_block(std::int64_t len, const T* s, std::ptrdiff_t row, const std::ptrdiff_t* offset, std::int64_t groups,
                   std::int64_t height, const T* w, T* c, std::ptrdiff_t crow, bool accumulate) {
  constexpr int L = Vec<T>::lanes;
  V<T> acc[M][NV];
  UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = V<T>{};
  for (std::int64_t g = 0; g < groups; ++g, w += height) {
    const T *p = s + offset[g * height], *weight = w;
    const auto add = [&](int first, int end) __attribute__((always_inline)) {  // a source row to results [first, end)
      V<T> v[NV];
      UNROLL for (int j = 0; j < NV; ++j) {
        v[j] = loadu(p + j * L);
        KEEP(v[j]);
      }
      UNROLL for (int i = first; i < end; ++i) {
        const V<T> f = splat(weight[-i]);
        UNROLL for (int j = 0; j < NV; ++j) acc[i][j] += f * v[j];
      }
      p += row;
      ++weight;
    };
    UNROLL for (int r = 0; r < M - 1; ++r) add(0, r + 1);
    for (std::int64_t r = M - 1; r < height; ++r) add(0, M);
    UNROLL for (int r = 1; r < M; ++r) add(r, M);
  }
  UNROLL for (int i = 0; i < M; ++i) store_sums<T, NV>(c + i * crow, acc[i], len, accumulate);
}

template <class T, int M, int NV = M == 4 ? 2 : kRowsVectors<M>>
void stacked_vectors(int vectors, std::int64_t len, const T* s, std::ptrdiff_t row, const std::ptrdiff_t* offset,
                     std::int64_t groups, std::int64_t height, const T* w, T* c, std::ptrdiff_t crow, bool accumulate) {
  if constexpr (NV > 1)
    if (vectors < NV)
      return stacked_vectors<T, M, NV - 1>(vectors, len, s, row, offset, groups, height, w, c, crow, accumulate);
  stacked_block<T, M, NV>(len, s, row, offset, groups, height, w, c, crow, accumulate);
}

template <class T, int M>
void stacked_tile(std::int64_t len, const T* s, std::ptrdiff_t row, const std::ptrdiff_t* offset, std::int64_t groups,
                  std::int64_t height, const T* w, T* c, std::ptrdiff_t crow, bool accumulate) {
  for (int now; len > 0; len -= now, s += now, c += now) {
    const int vectors = next_vectors<T, M>(len);
    stacked_vectors<T, M>(vectors, len, s, row, offset, groups, height, w, c, crow, accumulate);
    now = vectors * Vec<T>::lanes;
  }
}

template <class T>
void stacked_rows(std::int64_t rows, std::int64_t len, const T* s, std::ptrdiff_t row, const std::ptrdiff_t* offset,
                  std::int64_t groups, std::int64_t height, const T* w, T* c, std::ptrdiff_t crow, bool accumulate) {
  const int most = stacked_height(len, height, Vec<T>::lanes);
  while (rows > 0) {
    const int now = rows <= most ? static_cast<int>(rows) : rows == most + 1 ? most - 1 : most;
    const auto tile = now == 4 ? stacked_tile<T, 4> : now == 3 ? stacked_tile<T, 3> : stacked_tile<T, 2>;
    tile(len, s, row, offset, groups, height, w, c, crow, accumulate);
    rows -= now, s += now * row, c += now * crow;
  }
}

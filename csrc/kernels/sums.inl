// Dot products along pixels, and sums. Included by kernels.inl.

// ------------------------------------------------------------------------------------------------------------ dots

constexpr int kDotsMr = VECTOR_REGISTERS >= 32 ? 4 : 3, kDotsNt = VECTOR_REGISTERS >= 32 ? 6 : 3;

template <class T, int kHalf = Vec<T>::lanes / 2>
INLINE T sum_lanes(V<T> v) {
  v += pick<Vec<T>::lanes, [](int i) { return (i + kHalf) % Vec<T>::lanes; }>(v, v);
  if constexpr (kHalf > 1)
    return sum_lanes<T, kHalf / 2>(v);
  else
    return v[0];
}

// sum_lanes of each of so many vectors as there are lanes.
template <class T, int kCount>
INLINE V<T> sum_lanes_of(const V<T>* v) {
  if constexpr (kCount == 1) {
    return *v;
  } else {
    constexpr int L = Vec<T>::lanes;
    const V<T> a = sum_lanes_of<T, kCount / 2>(v), b = sum_lanes_of<T, kCount / 2>(v + kCount / 2);
    return halves<T, L / kCount, false>(a, b) + halves<T, L / kCount, true>(a, b);
  }
}

template <class T, int M, int N>
void dots_tile(std::int64_t len, const T* a, std::ptrdiff_t lda, const T* x, const std::ptrdiff_t* offset, T* out,
               std::ptrdiff_t ldo, Meanwhile fetch) {
  constexpr int L = Vec<T>::lanes;
  // Columns may lie in memory that no prefetcher has foreseen: with them fetched, 32 channels 372x372, 3x3, take 0.7 of
  // the time, and those in a cache as long as without (Zen 5).
  constexpr int kAhead = 1024;
  const T* p[N];
  UNROLL for (int j = 0; j < N; ++j) p[j] = x + offset[j];
  const char* fetched = static_cast<const char*>(fetch.at ? fetch.at : p[0] + kAhead);
  const std::ptrdiff_t step = fetch.at ? fetch.step : VECTOR_BYTES;
  V<T> acc[M][N];
  UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < N; ++j) acc[i][j] = V<T>{};
  const auto add = [&](std::int64_t k, const auto& load) __attribute__((always_inline)) {
    V<T> f[M];
    UNROLL for (int i = 0; i < M; ++i) {
      f[i] = load(a + i * lda + k);
      KEEP(f[i]);
    }
    UNROLL for (int j = 0; j < N; ++j) {
      V<T> v = load(p[j] + k);
      if constexpr (M > 1) KEEP(v);
      UNROLL for (int i = 0; i < M; ++i) acc[i][j] += f[i] * v;
    }
  };
  std::int64_t k = 0;
  for (; k + L <= len; k += L, fetched += step) {
    fetch_later(fetched);
    add(k, [](const T* c) __attribute__((always_inline)) { return loadu(c); });
  }
  if (const int rest = static_cast<int>(len - k); rest > 0)
    add(k, [=](const T* c) __attribute__((always_inline)) { return load_part(c, rest); });
  constexpr int kSums = M * N;
  UNROLL for (int s = 0; s + L <= kSums; s += L) {
    const V<T> sums = sum_lanes_of<T, L>(&acc[0][0] + s);
    UNROLL for (int l = 0; l < L; ++l) out[(s + l) / N * ldo + (s + l) % N] += sums[l];
  }
  UNROLL for (int s = kSums / L * L; s < kSums; ++s) out[s / N * ldo + s % N] += sum_lanes<T>((&acc[0][0])[s]);
}

template <class T, int M, int N = kDotsNt>
void dots_row(int nt, std::int64_t len, const T* a, std::ptrdiff_t lda, const T* x, const std::ptrdiff_t* offset,
              T* out, std::ptrdiff_t ldo, Meanwhile fetch) {
  if constexpr (N > 1) {
    if (nt < N) return dots_row<T, M, N - 1>(nt, len, a, lda, x, offset, out, ldo, fetch);
  }
  dots_tile<T, M, N>(len, a, lda, x, offset, out, ldo, fetch);
}

template <class T, int M = kDotsMr>
void dots(int m, int nt, std::int64_t len, const T* a, std::ptrdiff_t lda, const T* x, const std::ptrdiff_t* offset,
          T* out, std::ptrdiff_t ldo, Meanwhile fetch) {
  if constexpr (M > 1) {
    if (m < M) return dots<T, M - 1>(m, nt, len, a, lda, x, offset, out, ldo, fetch);
  }
  dots_row<T, M>(nt, len, a, lda, x, offset, out, ldo, fetch);
}

// ------------------------------------------------------------------------------------------------------------- sum

// 64 running sums whatever the vector length, added in the order of a tree: the same on every instruction set.
template <class T>
double sum(const T* p, std::int64_t n) {
  constexpr int L = Vec<T>::lanes, N = 64 / L;
  V<T> acc[N];
  UNROLL for (int j = 0; j < N; ++j) acc[j] = V<T>{};
  // The processor follows lines up to the end of a page: the first ones of what comes a page later. With all lines sums
  // from memory take 1.1 to 1.8 times as long (Zen 4), with none 1.25 times (Zen 5).
  constexpr int kAhead = 4096 / sizeof(T), kLine = 64 / sizeof(T);
  UNROLL for (int j = 0; j < 4 * kLine; j += kLine) __builtin_prefetch(p + kAhead + j);
  for (; n >= 64; n -= 64, p += 64) {
    UNROLL for (int j = 0; j < N; ++j) acc[j] += loadu(p + j * L);
  }
  UNROLL for (int j = 0; j < N; ++j) {
    const std::int64_t left = n - j * L;
    if (left >= L)
      acc[j] += loadu(p + j * L);
    else if (left > 0)
      acc[j] += load_part(p + j * L, static_cast<int>(left));
  }
  UNROLL for (int j = 0; j < N / 2; ++j) acc[j] += acc[j + N / 2];
  UNROLL for (int j = 0; j < N / 4; ++j) acc[j] += acc[j + N / 4];
  alignas(VECTOR_BYTES) T t[16];
  UNROLL for (int j = 0; j < N / 4; ++j) storeu(t + j * L, acc[j]);
  double total[8];
  UNROLL for (int j = 0; j < 8; ++j) total[j] = static_cast<double>(t[j]) + static_cast<double>(t[j + 8]);
  for (int half = 4; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) total[j] += total[j + half];
  return total[0];
}

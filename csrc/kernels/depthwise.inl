// Depthwise convolutions, vectors along channels; a part of kernels.inl.

constexpr int kDepthwisePixels = VECTOR_REGISTERS >= 32 ? 14 : 12;  // accumulators, and registers for a weight and more
constexpr int kDepthwiseTaps = 5,                                   // along an axis
    kDepthwiseSums = VECTOR_REGISTERS >= 32 ? 25 : 12;

// M columns; with kDense the next one reads the next vector.
template <class T, int M, bool kDense>
void depthwise_tile(std::int64_t rows, T* out, std::ptrdiff_t orow, std::ptrdiff_t ostep, const T* s,
                    std::ptrdiff_t srow, std::ptrdiff_t sstep, const DepthwiseTap* tap, std::int64_t taps, const T* w,
                    bool accumulate, Meanwhile fetch) {
  const std::ptrdiff_t step = kDense ? Vec<T>::lanes : sstep;
  const char* line = static_cast<const char*>(fetch.at);
  for (; rows > 0; --rows, out += orow, s += srow) {
    for (int i = 0; line && i < M; ++i, line += fetch.step) __builtin_prefetch(line);
    V<T> acc[M];
    UNROLL for (int i = 0; i < M; ++i) acc[i] = V<T>{};
    for (const DepthwiseTap *t = tap, *end = tap + taps; t != end; ++t) {
      V<T> f = loadu(w + t->w);
      KEEP(f);
      const T* p = s + t->s;
      UNROLL for (int i = 0; i < M; ++i) acc[i] += f * loadu(p + i * step);
    }
    T* to = out;
    UNROLL for (int i = 0; i < M; ++i) {
      storeu(to, accumulate ? loadu(to) + acc[i] : acc[i]);
      to += ostep;
    }
  }
}

template <class T, bool kDense, int M = kDepthwisePixels>
void depthwise_columns(int m, std::int64_t rows, T* out, std::ptrdiff_t orow, std::ptrdiff_t ostep, const T* s,
                       std::ptrdiff_t srow, std::ptrdiff_t sstep, const DepthwiseTap* tap, std::int64_t taps,
                       const T* w, bool accumulate, Meanwhile fetch) {
  if constexpr (M > 1) {
    if (m < M)
      return depthwise_columns<T, kDense, M - 1>(m, rows, out, orow, ostep, s, srow, sstep, tap, taps, w, accumulate,
                                                 fetch);
  }
  depthwise_tile<T, M, kDense>(rows, out, orow, ostep, s, srow, sstep, tap, taps, w, accumulate, fetch);
}

template <class T>
void depthwise(std::int64_t rows, std::int64_t cols, T* out, std::ptrdiff_t orow, std::ptrdiff_t ostep, const T* s,
               std::ptrdiff_t srow, std::ptrdiff_t sstep, const DepthwiseTap* tap, std::int64_t taps, const T* w,
               bool accumulate, Meanwhile fetch) {
  while (cols > 0) {
    const int m = even_part(cols, kDepthwisePixels);
    if (sstep == Vec<T>::lanes)
      depthwise_columns<T, true>(m, rows, out, orow, ostep, s, srow, sstep, tap, taps, w, accumulate, fetch);
    else
      depthwise_columns<T, false>(m, rows, out, orow, ostep, s, srow, sstep, tap, taps, w, accumulate, fetch);
    cols -= m, out += m * ostep, s += m * sstep;
    if (fetch.at) fetch.at = static_cast<const char*>(fetch.at) + rows * m * fetch.step;
  }
}

// Products of weights' gradients that are summed straight: sums of 49 had 2.1 times PyTorch's error.
constexpr std::int64_t kTapsStraight = 32;

template <class T, int H, int W>
void depthwise_taps_tile(std::int64_t rows, std::int64_t cols, const T* y, std::ptrdiff_t yrow, const T* x,
                         std::ptrdiff_t xrow, std::ptrdiff_t xstep, std::ptrdiff_t xh, std::ptrdiff_t xw, T* out,
                         std::ptrdiff_t oh) {
  constexpr int L = Vec<T>::lanes;
  V<T> acc[H][W]{}, sum[H][W]{};
  const auto flush = [&]() __attribute__((always_inline)) {
    UNROLL for (int i = 0; i < H; ++i) UNROLL for (int j = 0; j < W; ++j) {
      sum[i][j] += acc[i][j];
      acc[i][j] = V<T>{};
    }
  };
  std::int64_t summed = 0;
  for (; rows > 0; --rows, y += yrow, x += xrow) {
    const T *p[H], *f = y;
    UNROLL for (int i = 0; i < H; ++i) p[i] = x + i * xh;
    for (std::int64_t left = cols, part; left > 0; left -= part) {
      part = left < kTapsStraight ? left : kTapsStraight;
      if (summed + part > kTapsStraight) {
        flush();
        summed = 0;
      }
      summed += part;
      for (std::int64_t c = part; c > 0; --c, f += L) {
        V<T> v = loadu(f);
        KEEP(v);
        UNROLL for (int i = 0; i < H; ++i) {
          UNROLL for (int j = 0; j < W; ++j) acc[i][j] += v * loadu(p[i] + j * xw);
          p[i] += xstep;
        }
      }
    }
  }
  UNROLL for (int i = 0; i < H; ++i) UNROLL for (int j = 0; j < W; ++j) {
    T* to = out + i * oh + j * L;
    storeu(to, loadu(to) + (sum[i][j] + acc[i][j]));
  }
}

template <class T, int H, int W>
void depthwise_taps_block(int h, int w, std::int64_t rows, std::int64_t cols, const T* y, std::ptrdiff_t yrow,
                          const T* x, std::ptrdiff_t xrow, std::ptrdiff_t xstep, std::ptrdiff_t xh, std::ptrdiff_t xw,
                          T* out, std::ptrdiff_t oh) {
  if constexpr (W > 1) {
    if (w < W) return depthwise_taps_block<T, H, W - 1>(h, w, rows, cols, y, yrow, x, xrow, xstep, xh, xw, out, oh);
  }
  if constexpr (H > 1) {
    if (h < H) return depthwise_taps_block<T, H - 1, W>(h, w, rows, cols, y, yrow, x, xrow, xstep, xh, xw, out, oh);
  }
  if constexpr (H * W <= kDepthwiseSums)
    depthwise_taps_tile<T, H, W>(rows, cols, y, yrow, x, xrow, xstep, xh, xw, out, oh);
}

template <class T>
void depthwise_taps(std::int64_t h, std::int64_t w, std::int64_t rows, std::int64_t cols, const T* y,
                    std::ptrdiff_t yrow, const T* x, std::ptrdiff_t xrow, std::ptrdiff_t xstep, std::ptrdiff_t xh,
                    std::ptrdiff_t xw, T* out, std::ptrdiff_t oh) {
  for (int n; w > 0; w -= n, x += n * xw, out += n * Vec<T>::lanes) {
    n = even_part(w, kDepthwiseTaps);
    const int most = kDepthwiseSums / n < kDepthwiseTaps ? kDepthwiseSums / n : kDepthwiseTaps;
    const T* from = x;
    T* to = out;
    for (std::int64_t left = h; left > 0;) {
      const int m = even_part(left, most);
      depthwise_taps_block<T, kDepthwiseTaps, kDepthwiseTaps>(m, n, rows, cols, y, yrow, from, xrow, xstep, xh, xw, to,
                                                              oh);
      left -= m, from += m * xh, to += m * oh;
    }
  }
}

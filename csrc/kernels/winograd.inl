// Winograd F(2x2, 3x3) with the points 0, 1, -1 and infinity, one tile at a time, vectors along channels: pixels and
// frequencies (4*row + column) of a tile are vectors. Sums and halves only, so that small integers stay exact.

// Along one axis: image (of 4), gradient of outputs (of 2), weights (of 3), outputs (2) and weights' gradient (3).
template <class T>
INLINE void winograd_image4(const V<T>* d, V<T>* v, int step) {
  v[0] = d[0] - d[2 * step], v[step] = d[step] + d[2 * step];
  v[2 * step] = d[2 * step] - d[step], v[3 * step] = d[step] - d[3 * step];
}
template <class T>
INLINE void winograd_weights3(V<T> a, V<T> b, V<T> c, V<T>* v) {
  const V<T> half = splat(T(0.5)), even = (a + c) * half, odd = b * half;
  v[0] = a, v[1] = even + odd, v[2] = even - odd, v[3] = c;
}

template <class T>
INLINE V<T> winograd_pixel(const T* row, std::int64_t column, std::int64_t width) {
  return column >= 0 && column < width ? loadu(row + column * Vec<T>::lanes) : V<T>{};
}

template <class T>
void winograd_image(T* v, std::ptrdiff_t fstep, std::ptrdiff_t tstep, const T* const* row, std::int64_t first,
                    std::int64_t width, std::int64_t tiles) {
  V<T> c[4][4];  // columns of a tile, transformed; the next tile shares two of them
  const auto column = [&](V<T>* out, std::int64_t x) {
    V<T> d[4];
    UNROLL for (int i = 0; i < 4; ++i) d[i] = winograd_pixel(row[i], x, width);
    winograd_image4<T>(d, out, 1);
  };
  column(c[0], first);
  column(c[1], first + 1);
  for (std::int64_t t = 0; t < tiles; ++t, v += tstep) {
    column(c[2], first + 2 * t + 2);
    column(c[3], first + 2 * t + 3);
    UNROLL for (int i = 0; i < 4; ++i) {
      T* out = v + 4 * i * fstep;
      storeu(out, c[0][i] - c[2][i]);
      storeu(out + fstep, c[1][i] + c[2][i]);
      storeu(out + 2 * fstep, c[2][i] - c[1][i]);
      storeu(out + 3 * fstep, c[1][i] - c[3][i]);
      c[0][i] = c[2][i], c[1][i] = c[3][i];
    }
  }
}

template <class T>
void winograd_gradient(T* v, std::ptrdiff_t fstep, std::ptrdiff_t tstep, const T* const* row, std::int64_t width,
                       std::int64_t tiles) {
  for (std::int64_t t = 0; t < tiles; ++t, v += tstep) {
    V<T> c[2][4];
    UNROLL for (int j = 0; j < 2; ++j) {
      const V<T> a = winograd_pixel(row[0], 2 * t + j, width), b = winograd_pixel(row[1], 2 * t + j, width);
      c[j][0] = a, c[j][1] = a + b, c[j][2] = a - b, c[j][3] = -b;
    }
    UNROLL for (int i = 0; i < 4; ++i) {
      T* out = v + 4 * i * fstep;
      storeu(out, c[0][i]);
      storeu(out + fstep, c[0][i] + c[1][i]);
      storeu(out + 2 * fstep, c[0][i] - c[1][i]);
      storeu(out + 3 * fstep, -c[1][i]);
    }
  }
}

template <class T>
void winograd_weights(T* u, std::ptrdiff_t fstep, const T* w, std::ptrdiff_t ldw, int vectors, bool flip) {
  constexpr int L = Vec<T>::lanes;
  const auto place = [&](int i) { return flip && i % 3 == 0 ? 3 - i : i; };  // reversed taps: points 0 and infinity
  for (int j = 0; j < vectors; ++j, w += L * ldw, u += L) {
    V<T> g[(9 + L - 1) / L * L], r[3][4];
    UNROLL for (int t = 0; t < 9; t += L) {
      UNROLL for (int i = 0; i < L; ++i) g[t + i] = loadu(w + i * ldw + t);
      transpose_square<T>(g + t);
    }
    UNROLL for (int i = 0; i < 3; ++i) winograd_weights3<T>(g[i], g[3 + i], g[6 + i], r[i]);
    UNROLL for (int i = 0; i < 4; ++i) {
      V<T> f[4];
      winograd_weights3<T>(r[0][i], r[1][i], r[2][i], f);
      T* out = u + 4 * place(i) * fstep;
      UNROLL for (int k = 0; k < 4; ++k) storeu(out + place(k) * fstep, f[k]);
    }
  }
}

template <class T>
bool winograd_finite(V<T> zero) {
  alignas(VECTOR_BYTES) T t[Vec<T>::lanes];
  storeu(t, zero);
  T sum = 0;
  for (int i = 0; i < Vec<T>::lanes; ++i) sum += t[i];
  return sum == 0;
}

template <class T>
bool winograd_output(T* const* row, std::ptrdiff_t ldo, std::int64_t width, const T* m, std::ptrdiff_t fstep,
                     std::ptrdiff_t tstep, std::int64_t tiles) {
  V<T> zero{};
  for (std::int64_t t = 0; t < tiles; ++t, m += tstep) {
    V<T> s[4], d[4];
    UNROLL for (int j = 0; j < 4; ++j) {
      const V<T> a = loadu(m + j * fstep), b = loadu(m + (4 + j) * fstep), c = loadu(m + (8 + j) * fstep);
      s[j] = a + b + c, d[j] = b - c - loadu(m + (12 + j) * fstep);
    }
    const V<T> y[2][2] = {{s[0] + s[1] + s[2], s[1] - s[2] - s[3]}, {d[0] + d[1] + d[2], d[1] - d[2] - d[3]}};
    UNROLL for (int i = 0; i < 2; ++i) {
      zero += (y[i][0] - y[i][0]) + (y[i][1] - y[i][1]);
      if (!row[i]) continue;
      storeu(row[i] + 2 * t * ldo, y[i][0]);
      if (2 * t + 1 < width) storeu(row[i] + (2 * t + 1) * ldo, y[i][1]);
    }
  }
  return winograd_finite<T>(zero);
}

template <class T>
bool winograd_taps(T* w, std::ptrdiff_t ldw, const T* c, std::ptrdiff_t fstep, int vectors) {
  constexpr int L = Vec<T>::lanes;
  const V<T> half = splat(T(0.5));
  V<T> zero{};
  for (int j = 0; j < vectors; ++j, w += L, c += L) {
    V<T> r[3][4];
    UNROLL for (int i = 0; i < 4; ++i) {
      const V<T> a = loadu(c + (4 + i) * fstep) * half, b = loadu(c + (8 + i) * fstep) * half;
      r[0][i] = loadu(c + i * fstep) + (a + b), r[1][i] = a - b, r[2][i] = a + b + loadu(c + (12 + i) * fstep);
    }
    UNROLL for (int i = 0; i < 3; ++i) {
      const V<T> even = (r[i][1] + r[i][2]) * half, odd = (r[i][1] - r[i][2]) * half;
      const V<T> tap[3] = {r[i][0] + even, odd, even + r[i][3]};
      UNROLL for (int k = 0; k < 3; ++k) {
        zero += tap[k] - tap[k];
        storeu(w + (3 * i + k) * ldw, tap[k]);
      }
    }
  }
  return winograd_finite<T>(zero);
}

template <class T>
T peak(const T* p, std::int64_t n) {
  constexpr int L = Vec<T>::lanes, N = 4;
  V<T> largest[N], sum[N], count[N];
  UNROLL for (int j = 0; j < N; ++j) largest[j] = sum[j] = count[j] = V<T>{};
  const auto take = [&](int j, V<T> v) {
    typedef decltype(v < v) Bits;
    const V<T> a = reinterpret_cast<V<T>>(reinterpret_cast<Bits>(v) & ~reinterpret_cast<Bits>(splat(T(-0.0))));
    largest[j] = a > largest[j] ? a : largest[j];
    sum[j] += a;
    count[j] += a != 0 ? splat(T(1)) : V<T>{};
  };
  std::int64_t i = 0;
  for (; i + N * L <= n; i += N * L) UNROLL for (int j = 0; j < N; ++j) take(j, loadu(p + i + j * L));
  for (; i < n; i += L) take(0, loadu(p + i));
  T top = 0, total = 0, values = 0;
  for (int j = 0; j < N; ++j)
    for (int k = 0; k < L; ++k) {
      if (largest[j][k] > top) top = largest[j][k];
      total += sum[j][k], values += count[j][k];
    }
  return total == 0 ? T{} : (top + (total - total)) / total * values;  // NaN where the sum is not finite
}

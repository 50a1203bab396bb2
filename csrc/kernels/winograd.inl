// Winograd's algorithm, along each of two axes: a tile of M outputs of a window of K taps are polynomials, multiplied
// by their remainders, N frequencies. One tile at a time, vectors along channels: pixels and frequencies (N * row +
// column) of a tile are vectors.
//
// N = 3, 4 and 6 are values at as many points, M + K - 1 (Toom and Cook): 0, pairs +p and -p, and infinity. N = 3 has
// the point 1 alone and N = 4 the pair: sums and halves only, so that small integers stay exact. N = 6 has 5/8 and 3/2,
// the best of {0, +-a, +-b, infinity}: less than half of the error that 1 and 2 have (root mean square, F(4x4, 3x3)).
//
// N = 7 has 0, 1, -1, infinity and the remainder of x^2 + 1, a complex number whose product takes three (Karatsuba):
// one more than N = 6 for the same M + K - 1 = 6 pixels, but sums, halves and quarters, and the error of N = 4.

template <class T, int N>
constexpr T kPoint[2] = {N == 4 || N == 7 ? T(1) : T(0.625), T(1.5)};

template <int N>
constexpr int kPairs = N == 7 ? 1 : N / 2 - 1;  // of points +p and -p

// 1 over the product of the differences between point p_k and the others, in the scale of winograd_image.
template <class T, int N>
constexpr T winograd_scale(int k) {
  const T p = kPoint<T, N>[k] * kPoint<T, N>[k], q = N == 7 ? T(-1) : kPoint<T, N>[1 - k] * kPoint<T, N>[1 - k];
  return 1 / (2 * p * (N == 4 ? T(1) : p - q));
}

// Along one axis: pixels to frequencies, which are remainders of the polynomial of all points.
template <class T, int N>
INLINE void winograd_image(const V<T>* d, V<T>* v) {
  if constexpr (N == 1) {
    v[0] = d[0];
  } else if constexpr (N == 3) {
    v[0] = d[0] - d[1], v[1] = d[1], v[2] = d[2] - d[1];
  } else if constexpr (N == 4) {
    v[0] = d[0] - d[2], v[1] = d[2] + d[1], v[2] = d[2] - d[1], v[3] = d[3] - d[1];
  } else if constexpr (N == 7) {
    const V<T> even = d[4] + d[2], odd = d[3] + d[1], real = d[4] - d[2], imaginary = d[3] - d[1];
    v[0] = d[0] - d[4], v[1] = even + odd, v[2] = even - odd;
    v[3] = real + imaginary, v[4] = imaginary - real, v[5] = d[1] - d[3], v[6] = d[5] - d[1];
  } else {
    constexpr T a = kPoint<T, N>[0] * kPoint<T, N>[0], b = kPoint<T, N>[1] * kPoint<T, N>[1];
    v[0] = d[0] - splat(1 / a + 1 / b) * d[2] + splat(1 / (a * b)) * d[4];
    UNROLL for (int k = 0; k < 2; ++k) {
      const V<T> even = d[4] - splat(k ? a : b) * d[2], odd = splat(kPoint<T, N>[k]) * (d[3] - splat(k ? a : b) * d[1]);
      v[1 + 2 * k] = even + odd, v[2 + 2 * k] = even - odd;
    }
    v[5] = d[5] - splat(a + b) * d[3] + splat(a * b) * d[1];
  }
}

// The remainders of a polynomial with J coefficients; those of weights are scaled.
template <class T, int N, int J, bool kScaled>
INLINE void winograd_values(const V<T>* g, V<T>* v) {
  v[0] = g[0];
  if constexpr (N == 1) return;
  if constexpr (N == 3) v[1] = g[0] + g[1];
  UNROLL for (int k = 0; k < kPairs<N>; ++k) {
    const T p = kPoint<T, N>[k];
    T power = kScaled ? winograd_scale<T, N>(k) : T(1);
    V<T> part[2] = {splat(power) * g[0], V<T>{}};
    UNROLL for (int j = 1; j < J; ++j) part[j % 2] += splat(power *= p) * g[j];
    v[1 + 2 * k] = part[0] + part[1], v[2 + 2 * k] = part[0] - part[1];
  }
  if constexpr (N == 7) {
    const V<T> half = splat(kScaled ? T(0.5) : T(1));
    v[3] = half * (g[0] - g[2]), v[4] = half * (J > 3 ? g[1] - g[J - 1] : g[1]), v[5] = v[3] + v[4];
  }
  v[N - 1] = g[J - 1];
}

// The transpose of winograd_values.
template <class T, int N, int J, bool kScaled>
INLINE void winograd_sums(const V<T>* v, V<T>* g) {
  g[0] = v[0];
  if constexpr (N == 1) return;
  UNROLL for (int j = 1; j < J; ++j) g[j] = V<T>{};
  if constexpr (N == 3) g[0] += v[1], g[1] += v[1];
  UNROLL for (int k = 0; k < kPairs<N>; ++k) {
    T power = kScaled ? winograd_scale<T, N>(k) : T(1);
    const V<T> part[2] = {v[1 + 2 * k] + v[2 + 2 * k], v[1 + 2 * k] - v[2 + 2 * k]};
    UNROLL for (int j = 0; j < J; ++j, power *= kPoint<T, N>[k]) g[j] += splat(power) * part[j % 2];
  }
  if constexpr (N == 7) {
    const V<T> half = splat(kScaled ? T(0.5) : T(1)), part[2] = {half * (v[3] + v[5]), half * (v[4] + v[5])};
    UNROLL for (int j = 0; j < J; ++j) g[j] = j < 2 ? g[j] + part[j] : g[j] - part[j % 2];
  }
  g[J - 1] += v[N - 1];
}

template <class T>
INLINE V<T> winograd_pixel(const T* row, std::ptrdiff_t apart, std::int64_t column, std::int64_t width) {
  return column >= 0 && column < width ? loadu(row + column * apart) : V<T>{};
}

template <class T>
INLINE bool winograd_finite(V<T> zero) {
  alignas(VECTOR_BYTES) T t[Vec<T>::lanes];
  storeu(t, zero);
  T sum = 0;
  for (int i = 0; i < Vec<T>::lanes; ++i) sum += t[i];
  return sum == 0;
}

// Tiles of MH x MW outputs, windows of KH x KW taps; `kExact`: so that small integers stay exact.
template <class T, int MH, int MW, int KH, int KW, bool kExact = true>
struct Winograd {
  static constexpr int PH = MH + KH - 1, PW = MW + KW - 1, L = Vec<T>::lanes;  // pixels
  static constexpr int NH = kExact && PH == 6 ? 7 : PH, NW = kExact && PW == 6 ? 7 : PW;

  static void image(T* v, std::ptrdiff_t fstep, std::ptrdiff_t tstep, const T* const* row, std::ptrdiff_t apart,
                    std::int64_t first, std::int64_t width, std::int64_t tiles) {
    V<T> c[PW][NH];  // columns of a tile, transformed; the next tile shares the last ones
    const auto column = [&](V<T>* out, std::int64_t x) {
      V<T> d[PH];
      UNROLL for (int i = 0; i < PH; ++i) d[i] = winograd_pixel(row[i], apart, x, width);
      winograd_image<T, NH>(d, out);
    };
    UNROLL for (int j = 0; j < KW - 1; ++j) column(c[j], first + j);
    for (std::int64_t t = 0; t < tiles; ++t, v += tstep) {
      UNROLL for (int j = KW - 1; j < PW; ++j) column(c[j], first + MW * t + j);
      UNROLL for (int i = 0; i < NH; ++i) {
        V<T> d[PW], f[NW];
        UNROLL for (int j = 0; j < PW; ++j) d[j] = c[j][i];
        winograd_image<T, NW>(d, f);
        UNROLL for (int j = 0; j < NW; ++j) storeu(v + (NW * i + j) * fstep, f[j]);
      }
      UNROLL for (int j = 0; j < KW - 1; ++j) UNROLL for (int i = 0; i < NH; ++i) c[j][i] = c[j + MW][i];
    }
  }

  static void gradient(T* v, std::ptrdiff_t fstep, std::ptrdiff_t tstep, const T* const* row, std::ptrdiff_t apart,
                       std::int64_t width, std::int64_t tiles) {
    for (std::int64_t t = 0; t < tiles; ++t, v += tstep) {
      V<T> c[MW][NH];
      UNROLL for (int j = 0; j < MW; ++j) {
        V<T> d[MH];
        UNROLL for (int i = 0; i < MH; ++i) d[i] = winograd_pixel(row[i], apart, MW * t + j, width);
        winograd_values<T, NH, MH, false>(d, c[j]);
      }
      UNROLL for (int i = 0; i < NH; ++i) {
        V<T> d[MW], f[NW];
        UNROLL for (int j = 0; j < MW; ++j) d[j] = c[j][i];
        winograd_values<T, NW, MW, false>(d, f);
        UNROLL for (int j = 0; j < NW; ++j) storeu(v + (NW * i + j) * fstep, f[j]);
      }
    }
  }

  static void weights(T* u, std::ptrdiff_t pstep, std::ptrdiff_t fstep, const T* w, std::ptrdiff_t ldw, int taps,
                      const int* tap, int parts, int vectors, T* scratch) {
    for (int n = 0; n < vectors; ++n, w += L * ldw, u += L) {
      const auto transposed = [&]<int W>(int t) __attribute__((always_inline)) {
        V<T> g[L];
        UNROLL for (int i = 0; i < L; ++i) g[i] = loadu(w + i * ldw + t);
        transpose_square<T, W>(g);
        UNROLL for (int i = 0; i < W; ++i) storeu(scratch + (t + i) * L, g[i]);
      };
      for (int t = 0; t < taps; t += L)
        if (taps - t > L * 3 / 4)
          transposed.template operator()<L>(t);
        else
          transposed.template operator()<L * 3 / 4>(t);
      const int* of_part = tap;
      for (int p = 0; p < parts; ++p, of_part += KH * KW) {
        V<T> r[KW][NH];
        UNROLL for (int j = 0; j < KW; ++j) {
          V<T> d[KH];
          UNROLL for (int i = 0; i < KH; ++i) {
            const int t = of_part[KW * i + j];
            d[i] = t < 0 ? V<T>{} : loadu(scratch + t * L);
          }
          winograd_values<T, NH, KH, true>(d, r[j]);
        }
        UNROLL for (int i = 0; i < NH; ++i) {
          V<T> d[KW], f[NW];
          UNROLL for (int j = 0; j < KW; ++j) d[j] = r[j][i];
          winograd_values<T, NW, KW, true>(d, f);
          UNROLL for (int j = 0; j < NW; ++j) storeu(u + p * pstep + (NW * i + j) * fstep, f[j]);
        }
      }
    }
  }

  // Frequencies of a tile to JH x JW sums, each handed to f(row, column, sum).
  template <int JH, int JW, bool kScaled, class F>
  static INLINE void sums(const T* m, std::ptrdiff_t fstep, F&& f) {
    V<T> s[NW][JH];
    UNROLL for (int j = 0; j < NW; ++j) {
      V<T> d[NH];
      UNROLL for (int i = 0; i < NH; ++i) d[i] = loadu(m + (NW * i + j) * fstep);
      winograd_sums<T, NH, JH, kScaled>(d, s[j]);
    }
    UNROLL for (int i = 0; i < JH; ++i) {
      V<T> d[NW], y[JW];
      UNROLL for (int j = 0; j < NW; ++j) d[j] = s[j][i];
      winograd_sums<T, NW, JW, kScaled>(d, y);
      UNROLL for (int j = 0; j < JW; ++j) f(i, j, y[j]);
    }
  }

  static bool output(T* const* row, std::ptrdiff_t ldo, std::int64_t width, const T* m, std::ptrdiff_t fstep,
                     std::ptrdiff_t tstep, std::int64_t tiles) {
    V<T> zero{};
    for (std::int64_t t = 0; t < tiles; ++t, m += tstep)
      sums<MH, MW, false>(m, fstep, [&](int i, int j, V<T> y) __attribute__((always_inline)) {
        zero += y - y;
        if (row[i] && MW * t + j < width) storeu(row[i] + (MW * t + j) * ldo, y);
      });
    return winograd_finite<T>(zero);
  }

  static bool taps(T* w, std::ptrdiff_t ldw, const int* tap, const T* c, std::ptrdiff_t fstep, int vectors) {
    V<T> zero{};
    for (int n = 0; n < vectors; ++n, w += L, c += L)
      sums<KH, KW, true>(c, fstep, [&](int i, int j, V<T> sum) __attribute__((always_inline)) {
        zero += sum - sum;
        const int t = tap[KW * i + j];
        if (t >= 0) storeu(w + t * ldw, sum);
      });
    return winograd_finite<T>(zero);
  }

  static constexpr WinogradKernels<T> kernels{{MH, MW}, {KH, KW}, {NH, NW}, image, gradient, weights, output, taps};
};

template <class T>
T peak(const T* p, std::int64_t n, T enough) {
  constexpr int L = Vec<T>::lanes, N = 4;
  typedef decltype(V<T>{} < V<T>{}) Bits;  // magnitudes compare as integers, NaN above infinity
  const auto magnitude = [](const T* at) __attribute__((always_inline)) {
    return reinterpret_cast<Bits>(loadu(at)) & ~reinterpret_cast<Bits>(splat(T(-0.0)));
  };
  Bits largest[N]{};
  V<T> sum[N]{};
  const auto take = [&](int j, Bits a) __attribute__((always_inline)) {
    largest[j] = a > largest[j] ? a : largest[j];
    sum[j] += reinterpret_cast<V<T>>(a);
  };
  std::int64_t i = 0;
  for (; i + N * L <= n; i += N * L) UNROLL for (int j = 0; j < N; ++j) take(j, magnitude(p + i + j * L));
  for (; i < n; i += L) take(0, magnitude(p + i));
  UNROLL for (int j = 1; j < N; ++j) {
    largest[0] = largest[j] > largest[0] ? largest[j] : largest[0];
    sum[0] += sum[j];
  }
  T top = 0, total = 0, values = static_cast<T>(n);
  UNROLL for (int k = 0; k < L; ++k) {
    const T a = reinterpret_cast<V<T>>(largest[0])[k];
    top = top >= a ? top : a;
    total += sum[0][k];
  }
  if (total == 0) return T{};
  if (!(top / total * values <= enough)) {
    V<T> zeros{};
    for (i = 0; i < n; i += L) zeros += loadu(p + i) == 0 ? splat(T(1)) : V<T>{};
    for (int k = 0; k < L; ++k) values -= zeros[k];
  }
  return (top + (total - total)) / total * values;  // NaN where the sum is not finite
}

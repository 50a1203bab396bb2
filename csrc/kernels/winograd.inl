// Winograd's algorithm, along each of two axes: a tile of M outputs and a window of K taps are polynomials, which are
// multiplied by their remainders. One tile at a time, vectors along channels: pixels and frequencies of a tile are
// vectors.
//
// An axis of P = M + K - 1 pixels has remainders of x, x^R - 1 and infinity, R = P - 2 a power of two. Those of x^R - 1
// are values at its roots: 1, -1 and pairs of conjugate ones, a Fourier transform (radix two, real, pruned to the
// coefficients that there are). With R = 1, 2 and 4 all are sums, with powers of two as factors, so that small
// integers stay exact. A product of complex values takes three (Karatsuba); where both axes have them, two values, and
// six products, stand for the four of their real and imaginary parts.
//
// Six pixels may also have the points 0, +-5/8, +-3/2 and infinity, which are the best of {0, +-a, +-b, infinity}: less
// than half of the error that 1 and 2 have (root mean square, F(4x4, 3x3)). They save the products of complex values.

// Cosines of the parts of a turn, the first quarter of it.
constexpr int kTurn = 32;
template <class T>
constexpr T kCosine[kTurn / 4 + 1] = {T(1),
                                      T(0.98078528040323044913),
                                      T(0.92387953251128675613),
                                      T(0.83146961230254523708),
                                      T(0.70710678118654752440),
                                      T(0.55557023301960222474),
                                      T(0.38268343236508977173),
                                      T(0.19509032201612826785),
                                      T(0)};

// Of an axis with P pixels: its remainders lie in `fore` real ones, pairs of real and imaginary parts, and a last one.
template <int P, bool kRoots>
struct Remainders {
  static constexpr int roots = P - 2;  // R
  static constexpr int complexes = kRoots && roots > 2 ? roots / 2 - 1 : 0, reals = P - 2 * complexes, fore = reals - 1;
  static_assert(P == 1 || !kRoots || (roots > 0 && (roots & (roots - 1)) == 0 && roots <= kTurn));
};

template <class T>
constexpr T kPoint[2] = {T(0.625), T(1.5)};

// 1 over the product of the differences between point p_k and the others, in the scale of winograd_image.
template <class T>
constexpr T winograd_scale(int k) {
  const T p = kPoint<T>[k] * kPoint<T>[k], q = kPoint<T>[1 - k] * kPoint<T>[1 - k];
  return 1 / (2 * p * (p - q));
}

// Values of a polynomial of J coefficients, `step` apart, at the R-th roots of 1: at 1, at -1, and at those between, of
// positive imaginary part, real and imaginary parts.
template <class T, int R, int J>
INLINE void winograd_at_roots(const V<T>* g, int step, V<T>* x) {
  if constexpr (R == 1 || J == 1) {
    x[0] = g[0];
    UNROLL for (int j = 1; j < J; ++j) x[0] += g[j * step];
    if constexpr (R > 1) x[1] = g[0];
  } else {
    constexpr int H = R / 2, E = (J + 1) / 2, O = J / 2;  // even and odd coefficients, at the roots' squares
    V<T> e[H > 1 ? H : 2], o[H > 1 ? H : 2];
    winograd_at_roots<T, H, E>(g, 2 * step, e);
    winograd_at_roots<T, H, O>(g + step, 2 * step, o);
    x[0] = e[0] + o[0], x[1] = e[0] - o[0];
    if constexpr (R > 2) x[H] = e[1], x[H + 1] = o[1];
    UNROLL for (int k = 1; k < R / 4; ++k) {
      const V<T> c = splat(kCosine<T>[kTurn / R * k]), s = splat(kCosine<T>[kTurn / 4 - kTurn / R * k]);
      V<T> re = c * o[O > 1 ? 2 * k : 0], im = s * o[O > 1 ? 2 * k : 0];
      if constexpr (O > 1) re -= s * o[2 * k + 1], im += c * o[2 * k + 1];
      const V<T> even = e[E > 1 ? 2 * k : 0];
      x[2 * k] = even + re, x[R - 2 * k] = even - re;
      x[2 * k + 1] = E > 1 ? e[2 * k + 1] + im : im, x[R - 2 * k + 1] = E > 1 ? im - e[2 * k + 1] : im;
    }
  }
}

// Its transpose.
template <class T, int R, int J>
INLINE void winograd_from_roots(const V<T>* x, V<T>* g, int step) {
  if constexpr (R == 1 || J == 1) {
    V<T> sum = x[0];
    if constexpr (R > 1) sum += x[1];
    UNROLL for (int k = 2; k < R; k += 2) sum += x[k];
    UNROLL for (int j = 0; j < J; ++j) g[j * step] = sum;
  } else {
    constexpr int H = R / 2;
    V<T> e[H > 1 ? H : 2], o[H > 1 ? H : 2];
    e[0] = x[0] + x[1], o[0] = x[0] - x[1];
    if constexpr (R > 2) e[1] = x[H], o[1] = x[H + 1];
    UNROLL for (int k = 1; k < R / 4; ++k) {
      const V<T> c = splat(kCosine<T>[kTurn / R * k]), s = splat(kCosine<T>[kTurn / 4 - kTurn / R * k]);
      const V<T> re = x[2 * k] - x[R - 2 * k], im = x[2 * k + 1] + x[R - 2 * k + 1];
      e[2 * k] = x[2 * k] + x[R - 2 * k], e[2 * k + 1] = x[2 * k + 1] - x[R - 2 * k + 1];
      o[2 * k] = c * re + s * im, o[2 * k + 1] = c * im - s * re;
    }
    winograd_from_roots<T, H, (J + 1) / 2>(e, g, 2 * step);
    winograd_from_roots<T, H, J / 2>(o, g + step, 2 * step);
  }
}

// Along one axis, elements `step` apart: pixels to remainders.
template <class T, int P, bool kRoots>
INLINE void winograd_image(const V<T>* d, int step, V<T>* v) {
  if constexpr (P == 1) {
    v[0] = d[0];
  } else if constexpr (kRoots) {
    constexpr int R = P - 2;
    v[0] = d[0] - d[R * step], v[P - 1] = d[(P - 1) * step] - d[step];
    winograd_at_roots<T, R, R>(d + R * step, -step, v + 1);
  } else {
    constexpr T a = kPoint<T>[0] * kPoint<T>[0], b = kPoint<T>[1] * kPoint<T>[1];
    const V<T> p[6] = {d[0], d[step], d[2 * step], d[3 * step], d[4 * step], d[5 * step]};
    v[0] = p[0] - splat(1 / a + 1 / b) * p[2] + splat(1 / (a * b)) * p[4];
    UNROLL for (int k = 0; k < 2; ++k) {
      const V<T> even = p[4] - splat(k ? a : b) * p[2], odd = splat(kPoint<T>[k]) * (p[3] - splat(k ? a : b) * p[1]);
      v[1 + 2 * k] = even + odd, v[2 + 2 * k] = even - odd;
    }
    v[5] = p[5] - splat(a + b) * p[3] + splat(a * b) * p[1];
  }
}

// The remainders of a polynomial with J coefficients; those of weights are scaled.
template <class T, int P, bool kRoots, int J, bool kScaled>
INLINE void winograd_values(const V<T>* g, int step, V<T>* v) {
  if constexpr (P > 1 && kRoots) {
    constexpr int R = P - 2;
    winograd_at_roots<T, R, J>(g, step, v + 1);
    if constexpr (kScaled) UNROLL for (int i = 0; i < R; ++i) v[1 + i] *= splat(T(i < 2 ? 1 : 2) / R);
  } else if constexpr (P > 1) {
    UNROLL for (int k = 0; k < 2; ++k) {
      const T p = kPoint<T>[k];
      T power = kScaled ? winograd_scale<T>(k) : T(1);
      V<T> part[2] = {splat(power) * g[0], V<T>{}};
      UNROLL for (int j = 1; j < J; ++j) part[j % 2] += splat(power *= p) * g[j * step];
      v[1 + 2 * k] = part[0] + part[1], v[2 + 2 * k] = part[0] - part[1];
    }
  }
  v[0] = g[0], v[P - 1] = g[(J - 1) * step];
}

// The transpose of winograd_values.
template <class T, int P, bool kRoots, int J, bool kScaled>
INLINE void winograd_sums(const V<T>* v, int step, V<T>* g) {
  if constexpr (P > 1 && kRoots) {
    constexpr int R = P - 2;
    V<T> x[R];
    UNROLL for (int i = 0; i < R; ++i) x[i] = splat(kScaled ? T(i < 2 ? 1 : 2) / R : T(1)) * v[(1 + i) * step];
    winograd_from_roots<T, R, J>(x, g, 1);
    g[0] += v[0], g[J - 1] += v[(P - 1) * step];
  } else if constexpr (P > 1) {
    UNROLL for (int j = 0; j < J; ++j) g[j] = j == 0 ? v[0] : V<T>{};
    UNROLL for (int k = 0; k < 2; ++k) {
      T power = kScaled ? winograd_scale<T>(k) : T(1);
      const V<T> a = v[(1 + 2 * k) * step], b = v[(2 + 2 * k) * step], part[2] = {a + b, a - b};
      UNROLL for (int j = 0; j < J; ++j, power *= kPoint<T>[k]) g[j] += splat(power) * part[j % 2];
    }
    g[J - 1] += v[(P - 1) * step];
  } else {
    g[0] = v[0];
  }
}

constexpr int kInRegisters = 6;  // pixels of an axis

template <class Vector, void (*kTransform)(const Vector*, int, Vector*)>
__attribute__((noinline)) void winograd_called(const Vector* from, int step, Vector* to) {
  kTransform(from, step, to);
}
// A transform of an axis of P pixels: large ones, of some hundred instructions, are compiled once.
template <int P, class Vector, void (*kTransform)(const Vector*, int, Vector*)>
INLINE void winograd_axis(const Vector* from, int step, Vector* to) {
  if constexpr (P > kInRegisters)
    winograd_called<Vector, kTransform>(from, step, to);
  else
    kTransform(from, step, to);
}

template <class T>
INLINE bool winograd_finite(V<T> zero) {
  alignas(VECTOR_BYTES) T t[Vec<T>::lanes];
  storeu(t, zero);
  T sum = 0;
  for (int i = 0; i < Vec<T>::lanes; ++i) sum += t[i];
  return sum == 0;
}

// Tiles of MH x MW outputs, windows of KH x KW taps.
template <class T, int MH, int MW, int KH, int KW, bool kRoots = true>
struct Winograd {
  static constexpr int PH = MH + KH - 1, PW = MW + KW - 1, L = Vec<T>::lanes;  // pixels
  static_assert(PH <= kMostTileRows);
  using H = Remainders<PH, kRoots>;
  using W = Remainders<PW, kRoots>;
  static constexpr bool kSmall = PH <= kInRegisters && PW <= kInRegisters;
  static constexpr int real_row = W::reals + 3 * W::complexes, complex_row = 3 * W::reals + 6 * W::complexes;

  template <int N, class F>
  static INLINE void repeat(F&& f) {
    if constexpr (kSmall)
      UNROLL for (int i = 0; i < N; ++i) f(i);
    else
      for (int i = 0; i < N; ++i) f(i);
  }

  // Calls of(row, frequency) for the remainders along h, whose frequencies begin with that: a real one, or the real
  // part of a complex one (`kComplex`), whose imaginary part is the next row.
  template <class F>
  static INLINE void rows(F&& of) {
    repeat<H::fore>([&](int i) __attribute__((always_inline)) { of.template operator()<false>(i, i * real_row); });
    repeat<H::complexes>([&](int i) __attribute__((always_inline)) {
      of.template operator()<true>(H::fore + 2 * i, H::fore * real_row + i * complex_row);
    });
    of.template operator()<false>(PH - 1, H::fore * real_row + H::complexes * complex_row);
  }

  // Remainders along h of columns, c[column][row], to frequencies.
  template <int J, bool kPixels, bool kScaled>
  static INLINE void frequencies(T* v, std::ptrdiff_t fstep, const V<T> (*c)[PH]) {
    const auto along_w = [&](int i, V<T>* f) __attribute__((always_inline)) {
      if constexpr (kPixels)
        winograd_axis<PW, V<T>, winograd_image<T, PW, kRoots>>(*c + i, PH, f);
      else
        winograd_axis<PW, V<T>, winograd_values<T, PW, kRoots, J, kScaled>>(*c + i, PH, f);
    };
    rows([&]<bool kComplex>(int i, int frequency) __attribute__((always_inline)) {
      T* to = v + frequency * fstep;
      const auto put = [&](V<T> value) __attribute__((always_inline)) { storeu(to, value), to += fstep; };
      const auto put_complex = [&](V<T> re, V<T> im) __attribute__((always_inline)) {
        put(kPixels ? re + im : re), put(kPixels ? im - re : im), put(kPixels ? im : re + im);
      };
      V<T> f[PW], g[PW];
      along_w(i, f);
      if constexpr (kComplex) along_w(i + 1, g);
      const auto put_real = [&](int j) __attribute__((always_inline)) {
        if constexpr (kComplex)
          put_complex(f[j], g[j]);
        else
          put(f[j]);
      };
      repeat<W::fore>(put_real);
      repeat<W::complexes>([&](int k) __attribute__((always_inline)) {
        const int j = W::fore + 2 * k;
        if constexpr (kComplex) {
          const V<T> half = splat(kScaled ? T(0.5) : T(1));
          put_complex(half * (f[j] - g[j + 1]), half * (f[j + 1] + g[j]));
          put_complex(half * (f[j] + g[j + 1]), half * (g[j] - f[j + 1]));
        } else {
          put_complex(f[j], f[j + 1]);
        }
      });
      put_real(PW - 1);
    });
  }

  template <int N>
  static INLINE void column(V<T>* d, const T* const* row, std::ptrdiff_t apart, std::int64_t at, std::int64_t width) {
    const bool inside = at >= 0 && at < width;
    repeat<N>([&](int i) __attribute__((always_inline)) { d[i] = inside ? loadu(row[i] + at * apart) : V<T>{}; });
  }

  static void image(T* v, std::ptrdiff_t fstep, std::ptrdiff_t tstep, const T* const* row, std::ptrdiff_t apart,
                    std::int64_t first, std::int64_t width, std::int64_t tiles) {
    V<T> c[PW][PH];  // the next tile shares the last columns
    const auto columns = [&]<int kFrom, int kCount>(std::int64_t x) __attribute__((always_inline)) {
      repeat<kCount>([&](int j) __attribute__((always_inline)) {
        V<T> d[PH];
        column<PH>(d, row, apart, x + kFrom + j, width);
        winograd_axis<PH, V<T>, winograd_image<T, PH, kRoots>>(d, 1, c[kFrom + j]);
      });
    };
    columns.template operator()<0, KW - 1>(first);
    for (std::int64_t t = 0; t < tiles; ++t, v += tstep) {
      columns.template operator()<KW - 1, MW>(first + MW * t);
      frequencies<PW, true, false>(v, fstep, c);
      repeat<KW - 1>([&](int j) __attribute__((always_inline)) {
        repeat<PH>([&](int i) __attribute__((always_inline)) { c[j][i] = c[j + MW][i]; });
      });
    }
  }

  static void gradient(T* v, std::ptrdiff_t fstep, std::ptrdiff_t tstep, const T* const* row, std::ptrdiff_t apart,
                       std::int64_t width, std::int64_t tiles) {
    for (std::int64_t t = 0; t < tiles; ++t, v += tstep) {
      V<T> c[MW][PH];
      repeat<MW>([&](int j) __attribute__((always_inline)) {
        V<T> d[MH];
        column<MH>(d, row, apart, MW * t + j, width);
        winograd_axis<PH, V<T>, winograd_values<T, PH, kRoots, MH, false>>(d, 1, c[j]);
      });
      frequencies<MW, false, false>(v, fstep, c);
    }
  }

  static void weights(T* u, std::ptrdiff_t pstep, std::ptrdiff_t fstep, const T* w, std::ptrdiff_t ldw,
                      std::ptrdiff_t ahead, int taps, const int* tap, int parts, int vectors, T* scratch) {
    for (int n = 0; n < vectors; ++n, w += L * ldw, u += L) {
      const auto transposed = [&]<int kTaps>(int t) __attribute__((always_inline)) {
        V<T> g[L];
        const T* row = w + t;
        UNROLL for (int i = 0; i < L; ++i, row += ldw) {
          HIDE(row);
          __builtin_prefetch(row + ahead);
          g[i] = loadu(row);
        }
        transpose_square<T>(g);
        UNROLL for (int i = 0; i < kTaps; ++i) storeu(scratch + (t + i) * L, g[i]);
      };
      for (int t = 0; t < taps; t += L)
        if (taps - t > L * 3 / 4)
          transposed.template operator()<L>(t);
        else
          transposed.template operator()<L * 3 / 4>(t);
      const int* of_part = tap;
      for (int p = 0; p < parts; ++p, of_part += KH * KW) {
        V<T> c[KW][PH];
        repeat<KW>([&](int j) __attribute__((always_inline)) {
          V<T> d[KH];
          repeat<KH>([&](int i) __attribute__((always_inline)) {
            const int t = of_part[KW * i + j];
            d[i] = t < 0 ? V<T>{} : loadu(scratch + t * L);
          });
          winograd_axis<PH, V<T>, winograd_values<T, PH, kRoots, KH, true>>(d, 1, c[j]);
        });
        frequencies<KW, false, true>(u + p * pstep, fstep, c);
      }
    }
  }

  // Frequencies of a tile to JH x JW sums, each handed to f(row, column, sum).
  template <int JH, int JW, bool kScaled, class F>
  static INLINE void sums(const T* m, std::ptrdiff_t fstep, F&& f) {
    V<T> s[PH][JW];
    rows([&]<bool kComplex>(int i, int frequency) __attribute__((always_inline)) {
      const T* from = m + frequency * fstep;
      const auto get = [&]() __attribute__((always_inline)) {
        const V<T> value = loadu(from);
        from += fstep;
        return value;
      };
      const auto get_complex = [&](V<T>& re, V<T>& im) __attribute__((always_inline)) {
        re = get(), im = get();
        const V<T> both = get();
        re -= both, im -= both;
      };
      V<T> r[PW], q[PW];
      const auto get_real = [&](int j) __attribute__((always_inline)) {
        if constexpr (kComplex)
          get_complex(r[j], q[j]);
        else
          r[j] = get();
      };
      repeat<W::fore>(get_real);
      repeat<W::complexes>([&](int k) __attribute__((always_inline)) {
        const int j = W::fore + 2 * k;
        if constexpr (kComplex) {
          const V<T> half = splat(kScaled ? T(0.5) : T(1));
          V<T> re[2], im[2];
          get_complex(re[0], im[0]), get_complex(re[1], im[1]);
          r[j] = half * (re[0] + re[1]), q[j] = half * (im[0] + im[1]);
          r[j + 1] = half * (im[0] - im[1]), q[j + 1] = half * (re[1] - re[0]);
        } else {
          get_complex(r[j], r[j + 1]);
        }
      });
      get_real(PW - 1);
      winograd_axis<PW, V<T>, winograd_sums<T, PW, kRoots, JW, kScaled>>(r, 1, s[i]);
      if constexpr (kComplex) winograd_axis<PW, V<T>, winograd_sums<T, PW, kRoots, JW, kScaled>>(q, 1, s[i + 1]);
    });
    repeat<JW>([&](int j) __attribute__((always_inline)) {
      V<T> y[JH];
      winograd_axis<PH, V<T>, winograd_sums<T, PH, kRoots, JH, kScaled>>(*s + j, JW, y);
      repeat<JH>([&](int i) __attribute__((always_inline)) { f(i, j, y[i]); });
    });
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

  static constexpr WinogradKernels<T> kernels{{MH, MW},
                                              {KH, KW},
                                              {H::reals, W::reals},
                                              {H::complexes, W::complexes},
                                              kRoots && PH <= 6 && PW <= 6,
                                              image,
                                              gradient,
                                              weights,
                                              output,
                                              taps};
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

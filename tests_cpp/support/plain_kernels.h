// The contracts of kernels/kernel.h as plain loops: what kernels are compared with, and sets with odd tiles, which
// stress packing and edges of the engine on any machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/formats.h"
#include "kernels/kernel.h"

namespace convbwd::test::plain {

template <class T>
void gather(int nr, int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* segments,
            std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow, bool accumulate) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < nr; ++j) {
      T sum{};
      for (std::int64_t s = 0; s < count; ++s)
        for (std::int64_t k = 0; k < segments[s].len; ++k)
          sum += x[row[i] + segments[s].x + k * xstep] * b[segments[s].b + k * bstep + j];
      T& out = c[crow[i] + j];
      out = accumulate ? out + sum : sum;
    }
}

template <class T>
void rows(int m, std::int64_t len, const T* s, const std::ptrdiff_t* offset, std::int64_t taps, const T* w, T* c,
          std::ptrdiff_t ldc, bool accumulate) {
  for (int i = 0; i < m; ++i)
    for (std::int64_t p = 0; p < len; ++p) {
      T sum{};
      for (std::int64_t t = 0; t < taps; ++t) sum += w[t * m + i] * s[offset[t] + p];
      T& out = c[i * ldc + p];
      out = accumulate ? out + sum : sum;
    }
}

template <class T>
void stacked_rows(std::int64_t rows, std::int64_t len, const T* s, std::ptrdiff_t row, const std::ptrdiff_t* offset,
                  std::int64_t groups, std::int64_t height, const T* w, T* c, std::ptrdiff_t crow, bool accumulate) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t p = 0; p < len; ++p) {
      T sum{};
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t h = 0; h < height; ++h) sum += w[g * height + h] * s[(r + h) * row + offset[g * height] + p];
      T& out = c[r * crow + p];
      out = accumulate ? out + sum : sum;
    }
}

template <class T>
void dots(int m, int nt, std::int64_t len, const T* a, std::ptrdiff_t lda, const T* x, const std::ptrdiff_t* offset,
          T* out, std::ptrdiff_t ldo, Meanwhile) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < nt; ++j) {
      T sum{};
      for (std::int64_t p = 0; p < len; ++p) sum += a[i * lda + p] * x[offset[j] + p];
      out[i * ldo + j] += sum;
    }
}

template <class T>
void depthwise(int lanes, std::int64_t rows, std::int64_t cols, T* out, std::ptrdiff_t orow, std::ptrdiff_t ostep,
               const T* s, std::ptrdiff_t srow, std::ptrdiff_t sstep, const DepthwiseTap* tap, std::int64_t taps,
               const T* w, bool accumulate) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t p = 0; p < cols; ++p)
      for (int l = 0; l < lanes; ++l) {
        T sum{};
        for (std::int64_t t = 0; t < taps; ++t) sum += s[r * srow + p * sstep + tap[t].s + l] * w[tap[t].w + l];
        T& result = out[r * orow + p * ostep + l];
        result = accumulate ? result + sum : sum;
      }
}

template <class T>
void depthwise_taps(int lanes, std::int64_t h, std::int64_t w, std::int64_t rows, std::int64_t cols, const T* y,
                    std::ptrdiff_t yrow, const T* x, std::ptrdiff_t xrow, std::ptrdiff_t xstep, std::ptrdiff_t xh,
                    std::ptrdiff_t xw, T* out, std::ptrdiff_t oh) {
  for (std::int64_t i = 0; i < h; ++i)
    for (std::int64_t j = 0; j < w; ++j)
      for (int l = 0; l < lanes; ++l) {
        T sum{};
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t p = 0; p < cols; ++p)
            sum += y[r * yrow + p * lanes + l] * x[r * xrow + p * xstep + i * xh + j * xw + l];
        out[i * oh + j * lanes + l] += sum;
      }
}

template <class T, class S>
T load_one(const S& s) {
  if constexpr (sizeof(S) == 8)
    return static_cast<T>(s);
  else
    return static_cast<T>(widen(s));
}

template <class T, class S>
void transpose(T* const* dst, std::int64_t period, std::ptrdiff_t ldd, const void* src, const std::ptrdiff_t* row,
               std::ptrdiff_t lds, int rows, int rows_out, std::int64_t cols, Fetch) {
  for (std::int64_t k = 0; k < cols; ++k)
    for (int r = 0; r < rows_out; ++r)
      if (dst[k % period])
        dst[k % period][k / period * ldd + r] =
            r < rows ? load_one<T>(static_cast<const S*>(src)[(row ? row[r] : r) * lds + k]) : T{};
}

template <class T, class S>
void pad(T* dst, std::ptrdiff_t ldd, const void* src, std::ptrdiff_t lds, std::ptrdiff_t step, std::int64_t rows,
         std::int64_t left, std::int64_t width, std::int64_t right, std::ptrdiff_t) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < left + width + right; ++i) {
      const bool inside = i >= left && i < left + width;
      dst[r * ldd + i] = inside ? load_one<T>(static_cast<const S*>(src)[r * lds + (i - left) * step]) : T{};
    }
}

// float64 -> float32 with rounding to odd, so that a second rounding gives what one rounding would.
inline float to_odd(double d) {
  const float f = static_cast<float>(d);
  const double back = f, error = d - back;
  std::uint32_t u = bits_of(f);
  if (error != 0 && error == error && !(u & 1u)) u += (error > 0) == (d > 0) ? 1u : ~0u;
  return float_of(u);
}

template <class T, class S>
void store(void* dst, const T* src, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    S& s = static_cast<S*>(dst)[i];
    if constexpr (sizeof(S) == 8)
      s = src[i];
    else if constexpr (std::is_same_v<S, float>)
      s = static_cast<float>(src[i]);
    else if constexpr (sizeof(T) == 8)
      narrow(to_odd(src[i]), s);
    else
      narrow(src[i], s);
  }
}

template <class T>
void interleave(T* dst, std::ptrdiff_t ldd, const T* const* sources, std::int64_t turns, std::ptrdiff_t lds,
                std::int64_t rows, std::int64_t n) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < n; ++i) dst[r * ldd + i] = sources[r % turns * 2 + i % 2][r / turns * lds + i / 2];
}

template <class T>
double sum(const T* p, std::int64_t n) {
  T sums[64] = {};
  for (std::int64_t i = 0; i < n; ++i) sums[i % 64] += p[i];
  for (int half = 32; half >= 16; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  double total[16];
  std::copy(sums, sums + 16, total);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) total[i] += total[i + half];
  return total[0];
}

/// A set with vectors of `Lanes` elements, one gathering kernel for each of the heights `Mr`.
template <class T, int Lanes, int... Mr>
const KernelSet<T>& set(const char* name) {
  static const KernelSet<T> kernels = [name] {
    KernelSet<T> k{};
    k.name = name;
    k.lanes = Lanes;
    k.any_bstep = true;
    const auto add = [&]<int Height, int Nr>() {
      k.gather[k.gather_count] = k.blocked[k.gather_count] = {
          "gather", Height, Nr,
          [](int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* segments,
             std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow,
             bool accumulate) { gather(Nr, m, x, row, xstep, segments, count, b, bstep, c, crow, accumulate); }};
      ++k.gather_count;
    };
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (add.template operator()<Mr, static_cast<int>(I + 1) * Lanes>(), ...);
    }(std::make_index_sequence<sizeof...(Mr)>());
    k.rows = rows<T>;
    k.rows_mr = Lanes;
    k.stacked_rows = stacked_rows<T>;
    k.dots = dots<T>;
    k.dots_mr = 2;
    k.dots_nt = Lanes;
    k.depthwise = [](std::int64_t rows, std::int64_t cols, T* out, std::ptrdiff_t orow, std::ptrdiff_t ostep,
                     const T* s, std::ptrdiff_t srow, std::ptrdiff_t sstep, const DepthwiseTap* tap, std::int64_t taps,
                     const T* w, bool accumulate, Meanwhile) {
      depthwise(Lanes, rows, cols, out, orow, ostep, s, srow, sstep, tap, taps, w, accumulate);
    };
    k.depthwise_taps = [](std::int64_t h, std::int64_t w, std::int64_t rows, std::int64_t cols, const T* y,
                          std::ptrdiff_t yrow, const T* x, std::ptrdiff_t xrow, std::ptrdiff_t xstep, std::ptrdiff_t xh,
                          std::ptrdiff_t xw, T* out, std::ptrdiff_t oh) {
      depthwise_taps(Lanes, h, w, rows, cols, y, yrow, x, xrow, xstep, xh, xw, out, oh);
    };
    const auto convert = [&]<class S>(int t, S) {
      k.transpose[t] = transpose<T, S>, k.pad[t] = pad<T, S>, k.store[t] = store<T, S>;
    };
    int t = 0;
#define CONVBWD_CONVERT(name, type) convert(t++, type{});
    CONVBWD_TYPE_LIST(CONVBWD_CONVERT)
#undef CONVBWD_CONVERT
    k.sum = sum<T>;
    k.interleave = interleave<T>;
    return k;
  }();
  return kernels;
}

}  // namespace convbwd::test::plain

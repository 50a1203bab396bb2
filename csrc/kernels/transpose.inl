// Transposition with conversion, and interleaving. Included by kernels.inl.

// The values of a square, column by column. Parts of 16 bytes trade places before elements do within them, which
// processors do sooner than with elements of any place: 0.78 of the time of the latter (Zen 5).
template <class T, int kHalf = Vec<T>::lanes / 2>
INLINE void transpose_square(V<T>* r) {
  constexpr int L = Vec<T>::lanes, kPart = 16 / sizeof(T);
  V<T> s[L];
  UNROLL for (int i = 0; i < L / 2; ++i) {
    if constexpr (kHalf >= kPart) {
      const int first = i / kHalf * 2 * kHalf, j = i % kHalf / kPart * 2 * kPart + i % kPart;
      s[first + i % kHalf] = halves<T, kHalf, false>(r[first + j], r[first + j + kPart]);
      s[first + i % kHalf + kHalf] = halves<T, kHalf, true>(r[first + j], r[first + j + kPart]);
    } else {
      const int part = i / (kPart / 2) * kPart, j = i % (kPart / 2);
      s[part + 2 * j] = zip<T, kPart, false>(r[part + j], r[part + j + kPart / 2]);
      s[part + 2 * j + 1] = zip<T, kPart, true>(r[part + j], r[part + j + kPart / 2]);
    }
  }
  UNROLL for (int i = 0; i < L; ++i) r[i] = s[i];
  if constexpr (kHalf > 1) transpose_square<T, kHalf / 2>(r);
}

// One square of `live` rows, with zeros up to `out`, by `width` columns, at most W; `tap` and `outer` say where the
// first column goes and move on with it.
template <class T, class S, int W>
INLINE void transpose_block(T* const* dst, std::int64_t period, std::ptrdiff_t ldd, const S* s,
                            const std::ptrdiff_t* row, std::ptrdiff_t lds, int live, int out, int width,
                            std::int64_t& tap, std::ptrdiff_t& outer) {
  constexpr int L = Vec<T>::lanes;
  V<T> v[L];
  if (W == L && live >= L && width == L) {
    UNROLL for (int i = 0; i < L; ++i) v[i] = load_vector<T, S>(s + row[i] * lds);
  } else {
    UNROLL for (int i = 0; i < L; ++i) v[i] = i < live ? load_vector_part<T, S>(s + row[i] * lds, width) : V<T>{};
    UNROLL for (int i = 0; i < L; ++i) KEEP(v[i]);  // or else there is a copy of what follows for each number of rows
  }
  transpose_square<T>(v);
  if (W == L && width == L && period == 1 && dst[0]) {
    T* d = dst[0] + outer;
    outer += L * ldd;
    if (out >= L)
      UNROLL for (int k = 0; k < L; ++k) storeu(d + k * ldd, v[k]);
    else
      UNROLL for (int k = 0; k < L; ++k) store_part(d + k * ldd, v[k], out);
    return;
  }
  UNROLL for (int k = 0; k < W; ++k) {
    if (k >= width) return;
    if (dst[tap]) {
      if (out >= L)
        storeu(dst[tap] + outer, v[k]);
      else
        store_part(dst[tap] + outer, v[k], out);
    }
    if (++tap == period) tap = 0, outer += ldd;
  }
}

constexpr struct EachRow {
  constexpr EachRow() {
    for (int r = 0; r < kMostRows; ++r) row[r] = r;
  }
  std::ptrdiff_t row[kMostRows]{};
} kEachRow;

// Columns of one run of elements, which are picked from as many vectors: weights of a few taps take 0.25 of the time of
// squares, gradients of small planes 0.83 to 0.97 (Zen 4).
constexpr int kRunColumns = 5;

// Every kCount-th element, from kFirst on, of kCount vectors.
template <class T, int kCount, int kFirst, int kNext = 1>
INLINE V<T> pick_every(V<T> picked, const V<T>* v) {
  constexpr int L = Vec<T>::lanes;
  if constexpr (kNext == kCount) {
    return picked;
  } else {
    picked = pick<L, [](int i) {
      const int from = i * kCount + kFirst;
      return from / L == kNext ? L + from % L : kNext == 1 && from < L ? from : i;
    }>(picked, v[kNext]);
    return pick_every<T, kCount, kFirst, kNext + 1>(picked, v);
  }
}

// A few columns of whole vectors of rows that lie one behind the other.
template <class T, int kColumns, int kColumn = 0>
INLINE void store_columns(T* const* dst, int r, const V<T>* v) {
  if constexpr (kColumn < kColumns) {
    if (dst[kColumn]) storeu(dst[kColumn] + r, pick_every<T, kColumns, kColumn>(v[0], v));
    store_columns<T, kColumns, kColumn + 1>(dst, r, v);
  }
}
template <class T, int kColumns>
INLINE void transpose_run(T* const* dst, const T* s, int rows) {
  constexpr int L = Vec<T>::lanes;
  for (int r = 0; r < rows; r += L, s += kColumns * L) {
    V<T> v[kColumns];
    UNROLL for (int i = 0; i < kColumns; ++i) v[i] = loadu(s + i * L);
    store_columns<T, kColumns>(dst, r, v);
  }
}

template <class T, class S>
void transpose(T* const* dst, std::int64_t period, std::ptrdiff_t ldd, const void* src, const std::ptrdiff_t* row,
               std::ptrdiff_t lds, int rows, int rows_out, std::int64_t cols, Fetch fetch) {
  constexpr int L = Vec<T>::lanes;
  if (rows_out <= 0 || cols <= 0) return;
  const S* s = static_cast<const S*>(src);
  int r0 = 0;
  if constexpr (__is_same(S, T) && VECTOR_BYTES >= 32)
    if (!row && cols > 1 && cols <= kRunColumns && cols == period && cols == lds) {
      if (fetch.ahead)
        for (std::int64_t i = 0; i < rows * cols; i += 64 / sizeof(T)) fetch_later(s + fetch.ahead + i);
      r0 = rows / L * L;
      cols == 2   ? transpose_run<T, 2>(dst, s, r0)
      : cols == 3 ? transpose_run<T, 3>(dst, s, r0)
      : cols == 4 ? transpose_run<T, 4>(dst, s, r0)
                  : transpose_run<T, kRunColumns>(dst, s, r0);
    }
  if (!row) row = kEachRow.row;
  const bool far = period == 1 && ldd > lds;  // write along one page after the other
  std::int64_t k0 = 0, tap = 0;
  std::ptrdiff_t outer = 0;
  while (r0 < rows_out && k0 < cols) {  // one place that holds the squares: they are large
    if (far || k0 == 0) outer = k0 * ldd + r0, tap = 0;
    const int width = cols - k0 < L ? static_cast<int>(cols - k0) : L;
    if (fetch.ahead) {
      const std::int64_t k = k0 + fetch.ahead;
      const S* const next = s + k + (k < cols ? 0 : fetch.turn);
      for (int r = r0; r < rows && r < r0 + L; ++r) fetch_later(next + row[r] * lds);
    }
    const auto block = [&]<int W>() __attribute__((always_inline)) {
      transpose_block<T, S, W>(dst, period, ldd, s + k0, row + r0, lds, rows - r0, rows_out - r0, width, tap, outer);
    };
    if (!__is_same(S, T) || width > L * 3 / 4)  // weights of a few taps; not worth its size for other types
      block.template operator()<L>();
    else if (width > L / 2)
      block.template operator()<L * 3 / 4>();
    else if (width > L / 4)
      block.template operator()<L / 2>();
    else
      block.template operator()<L / 4>();
    if (far) {
      if ((r0 += L) >= rows_out) r0 = 0, k0 += L;
    } else {
      if ((k0 += L) >= cols) k0 = 0, r0 += L;
    }
  }
}

template <class T>
void interleave(T* dst, std::ptrdiff_t ldd, const T* const* sources, std::int64_t turns, std::ptrdiff_t lds,
                std::int64_t rows, std::int64_t n) {
  constexpr int L = Vec<T>::lanes;
  constexpr int kAhead = 512;  // input gradients of volumes with steps of two take 0.9 of the time (Zen 5)
  std::int64_t turn = 0;
  std::ptrdiff_t at = 0;
  for (; rows > 0; --rows, dst += ldd) {
    const T *even = sources[2 * turn] + at, *odd = sources[2 * turn + 1] + at;
    if (++turn == turns) turn = 0, at += lds;
    std::int64_t i = 0;
    for (; i + 2 * L <= n; i += 2 * L) {
      const V<T> a = loadu(even + i / 2), b = loadu(odd + i / 2);
      __builtin_prefetch(dst + i + kAhead, 1);
      __builtin_prefetch(dst + i + L + kAhead, 1);
      storeu(dst + i, zip<T, L, false>(a, b));
      storeu(dst + i + L, zip<T, L, true>(a, b));
    }
    if (i == n) continue;
    const int left = static_cast<int>(n - i);
    const V<T> a = load_part(even + i / 2, (left + 1) / 2), b = load_part(odd + i / 2, left / 2);
    store_part(dst + i, zip<T, L, false>(a, b), left < L ? left : L);
    if (left > L) store_part(dst + i + L, zip<T, L, true>(a, b), left - L);
  }
}

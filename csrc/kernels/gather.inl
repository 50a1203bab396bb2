// Image elements by address times a packed panel of weights. Included by kernels.inl.

// Products of a blocked kernel's short sum, at most. Blocks of 49 had up to 1.7 times PyTorch's error, of 36 1.5 times
// (4 images of 27 pixels), 40 products of Winograd's in one 1.15 times that of straight sums; 16 and 32 have the same
// error in sums of 512 and more.
constexpr std::int64_t kBlock = 35;

// Blocked sums are formed of those of `block` products, which are summed in registers, and in (first-level cache)
// memory then. Blocks go on from segment to segment: how many segments pixels make depends on the layout, the order of
// sums must not. With kPairs rows are equally far apart two by two, and each two share a pointer.
template <class T, int M, int NV, bool kBlocked, bool kPairs = false>
void gather_tile(int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* seg,
                 std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow,
                 bool accumulate, std::int64_t block) {
  constexpr int L = Vec<T>::lanes;
  V<T> acc[M][NV], sum[M][NV];
  const auto clear = [](V<T>(&v)[M][NV]) __attribute__((always_inline)) {
    UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) v[i][j] = V<T>{};
  };
  clear(acc);
  if constexpr (kBlocked) clear(sum);
  // Results that come from memory are there when the sum is.
  UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) __builtin_prefetch(c + crow[i] + j * L, 1);
  std::int64_t room = block;
  constexpr int kShared = kPairs ? 2 : 1;
  std::ptrdiff_t apart[M / kShared];
  UNROLL for (int i = 0; i < M / kShared; ++i) apart[i] = row[i * kShared] - row[0];
  const std::ptrdiff_t gap = kPairs ? row[1] - row[0] : 0;
  // What the next tile reads; worth up to 15 % where the image operand is read in place. Rows that lie one behind the
  // other are followed by those of the next tile, others by their next line. Short rows that share nothing, of channels
  // or of taps of patches, are few lines of many pages: there those of the next tile are fetched one by one.
  std::ptrdiff_t side = 0;
  if constexpr (M > 1 && !kPairs) side = row[1] - row[0];
  const std::ptrdiff_t length = count ? seg->len * xstep : 0;
  const bool patches = NV > 2 && xstep > 1 && xstep < M && row[xstep] != row[0] + xstep && length >= L;
  const bool dense = side == length, brief = (side > length || patches) && length < 2 * L;
  const std::ptrdiff_t fetch_step = dense ? M * xstep : xstep;
  const std::ptrdiff_t ahead = dense ? M * side : apart[M / kShared - 1] + gap + L;
  const std::ptrdiff_t* const last = row + (brief && m < 2 * M ? m : 2 * M);
  for (const Segment* end = seg + count; seg != end; ++seg) {
    const T *p = x + row[0] + seg->x, *q = b + seg->b, *fetch = p + ahead;
    if (brief)
      for (const std::ptrdiff_t* r = row + M; r < last; ++r) __builtin_prefetch(x + *r + seg->x);
    const auto step = [&]() __attribute__((always_inline)) {
      V<T> v[NV];
      UNROLL for (int j = 0; j < NV; ++j) {
        v[j] = loadu(q + j * L);
        KEEP(v[j]);
      }
      __builtin_prefetch(kPairs ? p + ahead : fetch);
      UNROLL for (int i = 0; i < M; ++i) {
        const T* at = p + apart[i / kShared];
        if constexpr (kPairs) HIDE(at);  // or else each row gets a register
        const V<T> s = splat(at[i % kShared * gap]);
        UNROLL for (int j = 0; j < NV; ++j) acc[i][j] += s * v[j];
      }
      p += xstep, q += bstep;
      HIDE(p);
      HIDE(q);
      if constexpr (!kPairs) {
        fetch += fetch_step;
        HIDE(fetch);
      }
    };
    for (std::int64_t left = seg->len, part; left > 0; left -= part) {
      part = kBlocked && room < left ? room : left;
      std::int64_t k = part;
      // 5 to 8 % faster where the panel comes from L2; small tiles only grow. GCC 12 leaves the vectors of 7 by 2 in
      // memory without it, which takes twice as long.
      if constexpr (kBlocked && M * NV >= 14)
        for (; k > 1; k -= 2) step(), step();
      for (; k > 0; --k) step();
      if constexpr (kBlocked) {
        if ((room -= part) > 0) continue;
        room = block;
        UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) sum[i][j] += acc[i][j];
        clear(acc);
      }
    }
  }
  UNROLL for (int i = 0; i < M; ++i) UNROLL for (int j = 0; j < NV; ++j) {
    T* out = c + crow[i] + j * L;
    V<T> s = acc[i][j];
    if constexpr (kBlocked) s += sum[i][j];
    storeu(out, accumulate ? loadu(out) + s : s);
  }
}

template <class T, int M, int NV, bool kBlocked>
void gather_rows(int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* seg,
                 std::int64_t count, const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow,
                 bool accumulate, std::int64_t block) {
  if constexpr (M > 1) {
    if (m < M)
      return gather_rows<T, M - 1, NV, kBlocked>(m, x, row, xstep, seg, count, b, bstep, c, crow, accumulate, block);
  }
  gather_tile<T, M, NV, kBlocked>(m, x, row, xstep, seg, count, b, bstep, c, crow, accumulate, block);
}

// Tiles of MR rows. Where that is more than there are registers for addresses, rows must be pairs: pixels of rows of
// even length, rows below each other, channels and images are. Others make smaller tiles.
template <class T, int MR, int NV, bool kBlocked = false>
void gather(int m, const T* x, const std::ptrdiff_t* row, std::ptrdiff_t xstep, const Segment* seg, std::int64_t count,
            const T* b, std::ptrdiff_t bstep, T* c, const std::ptrdiff_t* crow, bool accumulate) {
  constexpr int kRows = MR > kPointers ? kPointers : MR;
  std::int64_t block = 0;
  if constexpr (kBlocked) {  // as many in each: 64 in two blocks of 32 have a smaller error than in 35 and 29
    for (const Segment* end = seg + count; end-- != seg;) block += end->len;
    const std::int64_t blocks = block > kBlock ? (block + kBlock - 1) / kBlock : 1;
    block = (block + blocks - 1) / blocks;
  }
  for (int rows; m > 0; m -= rows, row += rows, crow += rows) {
    if constexpr (MR > kPointers) {
      const auto pairs = [&] {
        int r = 2;
        while (r < MR && row[r + 1] - row[r] == row[1] - row[0]) r += 2;
        return r == MR;
      };
      if (m >= MR && pairs()) {
        rows = MR;
        gather_tile<T, MR, NV, kBlocked, true>(m, x, row, xstep, seg, count, b, bstep, c, crow, accumulate, block);
        continue;
      }
    }
    rows = m <= kRows ? m : m < 2 * kRows ? (m + 1) / 2 : kRows;  // tiles of few rows wait for their sums
    const int seen = rows < kRows ? rows : m;
    gather_rows<T, kRows, NV, kBlocked>(seen, x, row, xstep, seg, count, b, bstep, c, crow, accumulate, block);
  }
}

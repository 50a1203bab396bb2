// Matrix kernels for AVX512-BF16: dot products of pairs. Each instruction adds two products to a sum, one after the
// other, rounding to nearest even both times; tiny numbers count as zero, as in the tiles of AMX.
#include <immintrin.h>

#include "kernels/matrix.h"

namespace convbwd {

namespace {

// Steps whose sums stay in registers: longer chains of additions lose accuracy.
constexpr std::int64_t kLongest = 4;
constexpr int kHeight = 8;  // rows of results in registers, beside two vectors of columns

// R rows of N times 16 columns over steps [begin, end).
template <int R, int N>
void block(const MatrixCall& call, const char* a, const char* b, float* c, std::int64_t begin, std::int64_t end) {
  __m512 sum[R][N];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < N; ++j) sum[i][j] = _mm512_setzero_ps();
  // Small terms first: only the products of the largest ones are rounded as coarsely as the sum.
  for (int both = 2; both >= 0; --both)
    for (int ta = 0; ta < call.a.terms && ta <= both; ++ta) {
      const int tb = both - ta;
      if (tb >= call.b.terms) continue;
      for (std::int64_t s = begin; s < end; ++s) {
        const char *at = a + call.a.at[s] + ta * call.a.term, *bt = b + call.b.at[s] + tb * call.b.term;
        for (int k = 0; k < 16; ++k, at += 4, bt += call.b.row) {
          __m512bh pairs[N];
#pragma GCC unroll 2
          for (int j = 0; j < N; ++j) pairs[j] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(bt + j * call.b.tile));
#pragma GCC unroll 8
          for (int i = 0; i < R; ++i) {
            int pair;
            __builtin_memcpy(&pair, at + i * call.a.row, sizeof pair);
            const auto spread = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 2
            for (int j = 0; j < N; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], pairs[j], spread);
          }
        }
      }
    }
  const bool first = begin == 0 && !call.accumulate;
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      float* const to = c + i * call.ldc + 16 * j;
      _mm512_storeu_ps(to, first ? sum[i][j] : _mm512_loadu_ps(to) + sum[i][j]);
    }
}

void multiply(const MatrixCall& call) {
  constexpr void (*table[2][kHeight])(const MatrixCall&, const char*, const char*, float*, std::int64_t,
                                      std::int64_t) = {
      {block<1, 1>, block<2, 1>, block<3, 1>, block<4, 1>, block<5, 1>, block<6, 1>, block<7, 1>, block<8, 1>},
      {block<1, 2>, block<2, 2>, block<3, 2>, block<4, 2>, block<5, 2>, block<6, 2>, block<7, 2>, block<8, 2>}};
  for (std::int64_t begin = 0; begin < call.steps; begin += call.stretch) {
    const std::int64_t end = begin + call.stretch < call.steps ? begin + call.stretch : call.steps;
    for (std::int64_t j = 0; j < call.columns; j += 32)
      for (std::int64_t t = 0; t < call.shifts; ++t)
        for (std::int64_t s = begin; s < end; s += kLongest)
          for (int i = 0; i < call.rows; i += kHeight) {
            const char* a = static_cast<const char*>(call.a.data) + i / 16 * call.a.tile + i % 16 * call.a.row;
            const char* b =
                static_cast<const char*>(call.b.data) + j / 16 * call.b.tile + (call.shift ? call.shift[t] : 0);
            const int rows = call.rows - i < kHeight ? call.rows - i : kHeight;
            table[j + 16 < call.columns][rows - 1](call, a, b, call.c + t * call.shift_c + i * call.ldc + j, s,
                                                   s + kLongest < end ? s + kLongest : end);
          }
  }
}

#include "kernels/split.inl"

}  // namespace

// Measured on Zen 4, where 32x32x32 products take 0.51 of a direct pass's time; AMX takes 0.081 on a Sapphire Rapids,
// whose own dot products take 20 times as long as its tiles.
const MatrixKernels matrix_kernels_avx512_bf16 = {"avx512_bf16", 6.3,         multiply,     split_rows,
                                                  split_plane,   split_pairs, split_columns};
const MatrixKernels matrix_kernels_amx = {"amx", 1, multiply_amx, split_rows, split_plane, split_pairs, split_columns};

}  // namespace convbwd

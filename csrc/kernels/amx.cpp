// Products on AMX: eight tile registers, four of them sums of 16x16 results.
#include <immintrin.h>

#include "kernels/matrix.h"

namespace convbwd {

namespace {

// Steps whose sums stay in registers: longer chains of additions lose accuracy.
constexpr std::int64_t kLongest = 16;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// The pairs of terms that are multiplied, such that one operand stays from each pair to the next.
struct Pair {
  int a, b;
};
template <int A, int B>
constexpr Pair kPairs[1] = {{0, 0}};
template <>
constexpr Pair kPairs<1, 2>[2] = {{0, 1}, {0, 0}};
template <>
constexpr Pair kPairs<1, 3>[3] = {{0, 2}, {0, 1}, {0, 0}};
template <>
constexpr Pair kPairs<2, 2>[4] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
template <>
constexpr Pair kPairs<2, 3>[5] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {0, 0}};
template <>
constexpr Pair kPairs<3, 3>[6] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};
constexpr int products(int terms_a, int terms_b) {
  const int low = terms_a < terms_b ? terms_a : terms_b, high = terms_a + terms_b - low;
  return low == 1 ? high : low == 2 ? high + 2 : 6;
}

// Sums that are still to be added to C, which happens beside the next products: it would make them wait on its own.
struct Pending {
  float* c = nullptr;
  const float* sum = nullptr;
  std::ptrdiff_t ldc = 0;
  int rows = 0, row = 0, width = 0;

  void add(int count) {
    for (const int end = row + count < rows ? row + count : rows; row < end; ++row)
      for (int j = 0; j < width; j += 16)
        _mm512_storeu_ps(c + row * ldc + j, _mm512_loadu_ps(c + row * ldc + j) + _mm512_load_ps(sum + row * 32 + j));
  }
};

// Products I to LAST of one step, for M x N tiles of results. Tile registers: 0 to 3 results, 4 and 5 of A, 6 and 7 of
// B, which are loaded just before they are needed: one operand is new in each product, both in the first.
template <int TA, int TB, bool LIGHT_A, int M, int N, int FIRST, int LAST, int I = FIRST>
__attribute__((always_inline)) inline void add_products(const MatrixOperand& oa, const MatrixOperand& ob, const char* a,
                                                        const char* b) {
  // A is loaded once less often than B, or the other way round.
  constexpr bool mirror = TA > TB || (TA == TB && LIGHT_A);
  constexpr auto& list = kPairs<(mirror ? TB : TA), (mirror ? TA : TB)>;
  constexpr int term_a = mirror ? list[I].b : list[I].a, term_b = mirror ? list[I].a : list[I].b;
  constexpr bool new_first = I == FIRST || list[I].a != list[I > 0 ? I - 1 : 0].a;
  constexpr bool new_second = I == FIRST || list[I].b != list[I > 0 ? I - 1 : 0].b;
  constexpr bool new_a = mirror ? new_second : new_first, new_b = mirror ? new_first : new_second;
  const char *at = a + term_a * oa.term, *bt = b + term_b * ob.term;
  if constexpr (new_a) _tile_loadd(4, at, oa.row);
  if constexpr (new_b) _tile_loadd(6, bt, ob.row);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (N > 1 && !new_b) _tile_dpbf16ps(1, 4, 7);
  if constexpr (M > 1 && new_a) _tile_loadd(5, at + oa.tile, oa.row);
  if constexpr (M > 1) _tile_dpbf16ps(2, 5, 6);
  if constexpr (N > 1 && new_b) {
    _tile_loadd(7, bt + ob.tile, ob.row);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (M > 1 && N > 1) _tile_dpbf16ps(3, 5, 7);
  if constexpr (I < LAST) add_products<TA, TB, LIGHT_A, M, N, FIRST, LAST, I + 1>(oa, ob, a, b);
}

// One block of results over one stretch of steps. `sums` are two buffers in turn.
template <int TA, int TB, bool LIGHT_A, int M, int N>
inline void block(const MatrixCall& call, const char* a, const char* b, float* c, std::int64_t begin, std::int64_t end,
                  Pending& pending, float (*sums)[32 * 32], int& turn) {
  const int slice = static_cast<int>((32 + end - begin - 1) / (end - begin));
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  if constexpr (M > 1) _tile_zero(2);
  if constexpr (M > 1 && N > 1) _tile_zero(3);
  constexpr int last = products(TA, TB) - 1;
  // Products FIRST to LAST of all steps.
  const auto add = [&]<int FIRST, int LAST>() __attribute__((always_inline)) {
    for (std::int64_t s = begin; s < end; ++s) {
      add_products<TA, TB, LIGHT_A, M, N, FIRST, LAST>(call.a, call.b, a + call.a.at[s], b + call.b.at[s]);
      pending.add(slice);
    }
  };
  // Short sums of floats, whose errors are small elsewhere too: only the products of the largest terms, added last, are
  // rounded as coarsely as the sum. With all sums this would cost 5 % of the speed.
  if constexpr (TA + TB == 6 && !LIGHT_A) {
    if (call.steps <= kLongest) {
      add.template operator()<0, last - 1>();
      add.template operator()<last, last>();
    } else {
      add.template operator()<0, last>();
    }
  } else {
    add.template operator()<0, last>();
  }
  const bool first = begin == 0 && !call.accumulate;
  float* const to = first ? c : sums[turn];
  const std::ptrdiff_t pitch = first ? call.ldc : 32;
  _tile_stored(0, to, pitch * 4);
  if constexpr (N > 1) _tile_stored(1, to + 16, pitch * 4);
  if constexpr (M > 1) _tile_stored(2, to + 16 * pitch, pitch * 4);
  if constexpr (M > 1 && N > 1) _tile_stored(3, to + 16 * pitch + 16, pitch * 4);
  if (first) return;
  pending = {c, to, call.ldc, call.rows, 0, 16 * N};
  turn = 1 - turn;
}

template <int TA, int TB, bool LIGHT_A, int M>
void blocks(const MatrixCall& call) {
  alignas(64) float sums[2][32 * 32];
  Pending pending;
  int turn = 0;
  for (std::int64_t begin = 0; begin < call.steps; begin += call.stretch) {
    const std::int64_t end = begin + call.stretch < call.steps ? begin + call.stretch : call.steps;
    for (std::int64_t j = 0; j < call.columns; j += 32)
      for (std::int64_t t = 0; t < call.shifts; ++t) {
        const char* a = static_cast<const char*>(call.a.data);
        const char* b = static_cast<const char*>(call.b.data) + j / 16 * call.b.tile + (call.shift ? call.shift[t] : 0);
        float* c = call.c + t * call.shift_c + j;
        for (std::int64_t s = begin; s < end; s += kLongest) {
          const std::int64_t stop = s + kLongest < end ? s + kLongest : end;
          j + 16 < call.columns ? block<TA, TB, LIGHT_A, M, 2>(call, a, b, c, s, stop, pending, sums, turn)
                                : block<TA, TB, LIGHT_A, M, 1>(call, a, b, c, s, stop, pending, sums, turn);
        }
      }
  }
  pending.add(32);
}

template <int TA, int TB>
void with_terms(const MatrixCall& call) {
  if (call.shift)
    call.rows > 16 ? blocks<TA, TB, true, 2>(call) : blocks<TA, TB, true, 1>(call);
  else
    call.rows > 16 ? blocks<TA, TB, false, 2>(call) : blocks<TA, TB, false, 1>(call);
}

}  // namespace

void multiply_amx(const MatrixCall& call) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
  const int first = call.rows < 16 ? call.rows : 16;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<std::uint8_t>(first);
  if (call.rows > 16) config.rows[2] = config.rows[3] = config.rows[5] = static_cast<std::uint8_t>(call.rows - 16);
  _tile_loadconfig(&config);
  constexpr void (*table[3][3])(const MatrixCall&) = {
      {with_terms<1, 1>, with_terms<1, 2>, with_terms<1, 3>},
      {with_terms<2, 1>, with_terms<2, 2>, with_terms<2, 3>},
      {with_terms<3, 1>, with_terms<3, 2>, with_terms<3, 3>},
  };
  table[call.a.terms - 1][call.b.terms - 1](call);
  _tile_release();
}

}  // namespace convbwd

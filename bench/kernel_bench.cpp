// Google Benchmark over the kernels alone, one benchmark for each entry of the kernel list that runs here, on operands
// in the first-level cache: what a whole operation can at best reach.
//   kernel_bench --benchmark_filter='avx2/f32/gather.*'
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "convbwd/types.hpp"
#include "kernels/list.h"

namespace convbwd {
namespace {

constexpr std::int64_t kDepth = 128;   // products of a sum
constexpr std::int64_t kPixels = 512;  // of a row

template <class T>
std::vector<T> numbers(std::int64_t count) {
  std::vector<T> v(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<T>(i % 7) - 3;
  return v;
}

void count_products(benchmark::State& state, std::int64_t products) {
  state.counters["flops"] =
      benchmark::Counter(2. * static_cast<double>(products), benchmark::Counter::kIsIterationInvariantRate);
}

template <class T>
void gather(benchmark::State& state, const GatherKernel<T>& kernel) {
  const std::vector<T> x = numbers<T>(kernel.mr * kDepth), b = numbers<T>(kernel.nr * kDepth);
  std::vector<T> c(static_cast<std::size_t>(kernel.mr * kernel.nr));
  std::vector<std::ptrdiff_t> row, crow;
  for (int i = 0; i < kernel.mr; ++i) row.push_back(i), crow.push_back(i * kernel.nr);
  const Segment segment{0, 0, kDepth};
  for (auto _ : state) {
    kernel.run(kernel.mr, x.data(), row.data(), kernel.mr, &segment, 1, b.data(), kernel.nr, c.data(), crow.data(),
               true);
    benchmark::ClobberMemory();
  }
  count_products(state, kernel.mr * kernel.nr * kDepth);
}

template <class T>
void rows(benchmark::State& state, const KernelSet<T>& set) {
  constexpr std::int64_t kTaps = 9;
  const std::vector<T> s = numbers<T>(kPixels + 64), w = numbers<T>(kTaps * set.rows_mr);
  std::vector<T> c(static_cast<std::size_t>(set.rows_mr * kPixels));
  std::vector<std::ptrdiff_t> offset(kTaps);
  std::iota(offset.begin(), offset.end(), 0);
  for (auto _ : state) {
    set.rows(set.rows_mr, kPixels, s.data(), offset.data(), kTaps, w.data(), c.data(), kPixels, false);
    benchmark::ClobberMemory();
  }
  count_products(state, set.rows_mr * kPixels * kTaps);
}

template <class T>
void dots(benchmark::State& state, const KernelSet<T>& set) {
  const std::vector<T> a = numbers<T>(set.dots_mr * kPixels), x = numbers<T>(kPixels + 64);
  std::vector<T> out(static_cast<std::size_t>(set.dots_mr * set.dots_nt));
  std::vector<std::ptrdiff_t> offset(static_cast<std::size_t>(set.dots_nt));
  std::iota(offset.begin(), offset.end(), 0);
  for (auto _ : state) {
    set.dots(set.dots_mr, set.dots_nt, kPixels, a.data(), kPixels, x.data(), offset.data(), out.data(), set.dots_nt,
             {});
    benchmark::ClobberMemory();
  }
  count_products(state, set.dots_mr * set.dots_nt * kPixels);
}

template <class T>
void transpose(benchmark::State& state, const KernelSet<T>& set, DType dtype) {
  constexpr int kRows = 64;
  constexpr std::int64_t kColumns = 64;
  const std::vector<double> src(kRows * kColumns);
  std::vector<T> dst(kRows * kColumns);
  std::vector<std::ptrdiff_t> row(kRows);
  std::iota(row.begin(), row.end(), 0);
  T* table[1] = {dst.data()};
  for (auto _ : state) {
    set.transpose[static_cast<int>(dtype)](table, 1, kRows, src.data(), row.data(), kColumns, kRows, kRows, kColumns,
                                           {});
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows * kColumns);
}

template <class T>
void store(benchmark::State& state, const KernelSet<T>& set, DType dtype) {
  const std::vector<T> src = numbers<T>(kPixels);
  std::vector<double> dst(kPixels);
  for (auto _ : state) {
    set.store[static_cast<int>(dtype)](dst.data(), src.data(), kPixels);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kPixels);
}

template <class T>
void pad(benchmark::State& state, const KernelSet<T>& set, DType dtype) {
  constexpr std::int64_t kRows = 8, kWidth = 56, kBorder = 3;
  const std::vector<double> src(kRows * kWidth);
  std::vector<T> dst(kRows * (kWidth + 2 * kBorder));
  for (auto _ : state) {
    set.pad[static_cast<int>(dtype)](dst.data(), kWidth + 2 * kBorder, src.data(), kWidth, 1, kRows, kBorder, kWidth,
                                     kBorder, 0);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(dst.size()));
}

template <class T>
void interleave(benchmark::State& state, const KernelSet<T>& set) {
  const std::vector<T> even = numbers<T>(kPixels), odd = numbers<T>(kPixels);
  std::vector<T> dst(2 * kPixels);
  const T* const sources[] = {even.data(), odd.data()};
  for (auto _ : state) {
    set.interleave(dst.data(), 0, sources, 1, 0, 1, 2 * kPixels);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 2 * kPixels);
}

/// sum and peak: one number of many.
template <class T, class Kernel>
void reduce(benchmark::State& state, Kernel kernel) {
  const std::vector<T> src = numbers<T>(kPixels);
  for (auto _ : state) benchmark::DoNotOptimize(kernel(src.data(), kPixels));
  state.SetItemsProcessed(state.iterations() * kPixels);
}

/// Winograd's transforms of a row of tiles, or of as many vectors of weights; tiles (or vectors) are counted.
template <class T>
struct Winograd {
  static constexpr std::int64_t kTiles = 14;

  Winograd(const KernelSet<T>& set, const WinogradKernels<T>& transforms)
      : kernels(transforms),
        lanes(set.lanes),
        width(kTiles * transforms.tile[1]),
        fstep(kTiles * lanes),
        pixels(numbers<T>(kMostTileRows * width * lanes)),
        frequencies(numbers<T>(transforms.frequencies() * fstep)),
        weights(numbers<T>((fstep + 1) * kMostTaps)),
        scratch(numbers<T>(kMostTaps * lanes)) {
    for (int i = 0; i < kMostTileRows; ++i) rows[i] = pixels.data() + i * width * lanes;
    for (int i = 0; i < kMostTaps; ++i) taps[i] = i;
  }

  static constexpr int kMostTaps = 96;
  const WinogradKernels<T>& kernels;
  std::ptrdiff_t lanes, width, fstep;
  std::vector<T> pixels, frequencies, weights, scratch;
  T* rows[kMostTileRows];
  int taps[kMostTaps];
};

template <class T, class F>
void winograd(benchmark::State& state, const KernelSet<T>& set, int number, const F& transform) {
  Winograd<T> data(set, set.winograd[number]);
  for (auto _ : state) {
    transform(data);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * Winograd<T>::kTiles);
}

/// Products of a matrix unit, counted as those of the values that the terms stand for.
void matrix(benchmark::State& state, const MatrixKernels& unit, int terms) {
  constexpr std::int64_t kSteps = 4, kRows = 32, kColumns = 32, kTile = 1024;
  const std::vector<std::uint16_t> a(kSteps * 2 * kTile), b(kSteps * 2 * kTile);
  std::vector<float> c(kRows * kColumns);
  std::ptrdiff_t at[kSteps];
  for (std::int64_t s = 0; s < kSteps; ++s) at[s] = s * kTile;
  MatrixCall call;
  call.a = {a.data(), 64, kTile, 0, terms, at};
  call.b = {b.data(), 64, kTile, 0, terms, at};
  call.steps = call.stretch = kSteps;
  call.rows = kRows;
  call.columns = call.ldc = kColumns;
  call.c = c.data();
  call.accumulate = false;
  for (auto _ : state) {
    unit.multiply(call);
    benchmark::ClobberMemory();
  }
  count_products(state, kRows * kColumns * kSteps * 32);
}

template <class T>
void register_set(const KernelSet<T>& set) {
  const std::string prefix = std::string(set.name) + (sizeof(T) == 8 ? "/f64/" : "/f32/");
  const auto add = [&](std::string name, auto&& function, auto... arguments) {
    std::replace(name.begin(), name.end(), ' ', '_');
    benchmark::RegisterBenchmark((prefix + name).c_str(),
                                 [=](benchmark::State& state) { function(state, arguments...); });
  };
  for (int i = 0; i < set.gather_count; ++i) add(set.gather[i].name, gather<T>, set.gather[i]);
  add("rows", rows<T>, set);
  add("dots", dots<T>, set);
  for (const DType t : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    if (size_of(t) <= sizeof(T)) add(std::string("transpose/") + name_of(t), transpose<T>, set, t);
    add(std::string("store/") + name_of(t), store<T>, set, t);
    add(std::string("pad/") + name_of(t), pad<T>, set, t);
  }
  add("interleave", interleave<T>, set);
  add("sum", reduce<T, decltype(set.sum)>, set.sum);
  const auto peak = [&set](const T* p, std::int64_t n) { return set.peak(p, n, T(100)); };
  add("peak", reduce<T, decltype(peak)>, peak);
  using W = Winograd<T>;
  for (int i = 0; i < static_cast<int>(std::size(set.winograd)); ++i) {
    const WinogradKernels<T>& w = set.winograd[i];
    const std::string tile = "winograd/" + std::to_string(w.tile[0]) + "x" + std::to_string(w.tile[1]) + "," +
                             std::to_string(w.window[0]) + "x" + std::to_string(w.window[1]) + "/" +
                             std::to_string(w.frequencies()) + "/";
    const auto add_winograd = [&](const char* name, auto transform) {
      add(tile + name, winograd<T, decltype(transform)>, set, i, transform);
    };
    add_winograd("image", [](W& d) {
      d.kernels.image(d.frequencies.data(), d.fstep, d.lanes, d.rows, d.lanes, -1, d.width, W::kTiles);
    });
    add_winograd("gradient", [](W& d) {
      d.kernels.gradient(d.frequencies.data(), d.fstep, d.lanes, d.rows, d.lanes, d.width, W::kTiles);
    });
    add_winograd("weights", [](W& d) {
      d.kernels.weights(d.frequencies.data(), 0, d.fstep, d.weights.data(), W::kMostTaps, 0, W::kMostTaps, d.taps, 1,
                        W::kTiles, d.scratch.data());
    });
    add_winograd("output", [](W& d) {
      d.kernels.output(d.rows, d.lanes, d.width, d.frequencies.data(), d.fstep, d.lanes, W::kTiles);
    });
    add_winograd("taps", [](W& d) {
      d.kernels.taps(d.weights.data(), d.fstep, d.taps, d.frequencies.data(), d.fstep, W::kTiles);
    });
  }
}

}  // namespace
}  // namespace convbwd

int main(int argc, char** argv) {
#define CONVBWD_REGISTER(isa)                                              \
  if (convbwd::supported(convbwd::Isa::isa)) {                             \
    convbwd::register_set(convbwd::kernel_set<float>(convbwd::Isa::isa));  \
    convbwd::register_set(convbwd::kernel_set<double>(convbwd::Isa::isa)); \
  }
  CONVBWD_ISA_LIST(CONVBWD_REGISTER)
#undef CONVBWD_REGISTER
  for (const convbwd::Isa isa : convbwd::kIsas)
    if (const convbwd::MatrixKernels* unit = convbwd::matrix_kernels(isa); unit && convbwd::supported(isa))
      for (const int terms : {1, 2, 3})
        benchmark::RegisterBenchmark(
            (std::string(unit->name) + "/multiply/" + std::to_string(terms) + "_terms").c_str(),
            [=](benchmark::State& state) { convbwd::matrix(state, *unit, terms); });
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

#include "conv/choose.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "base/cpu.h"
#include "conv/problem.h"
#include "engine/blas.h"
#include "engine/estimate.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

// Above so many, no workspace limit justifies plain loops.
constexpr double kManyProducts = 1 << 17;
// What multiplies less or faster than a direct pass is taken below so much of its time, as far as estimates can tell.
constexpr double kWorthwhile = 0.95;
// Workspace that every problem may have: below it tiles become too narrow for vectors (1x3x8x8 with 8 kernels of 3x3
// took three times as long with a quarter of its im2col, 1.7 KiB). Fits an L2 beside the operands.
constexpr double kLeastBudget = 64 << 10;
// The same where operands are widened, which takes copies of them: with 64 KiB tasks repeated those up to 30 times
// (55x55 images of 16 to 64 channels, 1x1 windows, bfloat16: dx took 5 times as long, dw 2.7 times).
constexpr double kLeastWidening = 256 << 10;
constexpr std::size_t kNoLimit = std::size_t{1} << 50;

// Whether padding or a dilation reach so far that sizes of zero-bordered copies might not fit in 64 bits: only the
// plain loops form none. Whatever can be computed within hours is far below.
bool beyond_copies(const Problem& p) {
  constexpr double kMost = 0x1p52;  // elements times taps: copies have terms, panels and threads beside them
  double elements = static_cast<double>(p.n) * static_cast<double>(p.groups) * static_cast<double>(p.ci + p.co) *
                    static_cast<double>(p.taps());
  for (std::size_t a = 0; a < 3; ++a)
    elements *= std::max(static_cast<double>(p.pad_before[a]) + static_cast<double>(p.x[a]),
                         static_cast<double>(p.y[a] - 1) * static_cast<double>(p.stride[a]) +
                             static_cast<double>(p.w[a] - 1) * static_cast<double>(p.dilation[a]) + 1);
  return elements > kMost;
}

template <class T>
std::unique_ptr<Pass> make_direct(PassSpec spec, Algorithm algorithm, bool along, const KernelSet<T>& native,
                                  const KernelSet<T>& kernels) {
  const bool weights = spec.unknown == Unknown::w;
  for (const std::size_t budget : {spec.budget, kNoLimit}) {
    spec.budget = budget;
    if (weights && algorithm != Algorithm::blas)
      if (auto pass = make_outer(spec, native)) return pass;
    for (const bool vectors_along_pixels : {along, !along}) {
      if (vectors_along_pixels && algorithm == Algorithm::blas) continue;
      auto pass = vectors_along_pixels ? (weights ? make_dots(spec, native) : make_rows(spec, native))
                                       : (weights ? make_gather_weights(spec, kernels) : make_gather(spec, kernels));
      if (pass) return pass;
    }
    if (algorithm == Algorithm::automatic && spec.problem.products() < kManyProducts) return make_reference(spec);
  }
  throw Error(ErrorKind::internal, "no algorithm for " + to_string(spec.problem));
}

// A pass with the sums of another problem, whatever would suit this one better; none where that cannot be.
template <class T>
Candidate follow(PassSpec spec, const KernelSet<T>& native, const KernelSet<T>& kernels) {
  for (const std::size_t budget : {spec.budget, kNoLimit}) {
    spec.budget = budget;
    std::unique_ptr<EstimatedPass> estimated;
    std::unique_ptr<Pass> pass;
    switch (const auto kind = static_cast<SumKind>(spec.sums[0]); kind) {
      case SumKind::reference:
        pass = make_reference(spec);
        break;
      case SumKind::matrix:
      case SumKind::pixels:
        if constexpr (sizeof(T) == sizeof(float))
          if (const MatrixKernels* unit = matrix_kernels(active_isa()))
            estimated =
                kind == SumKind::matrix ? make_matrix(spec, native, *unit) : make_matrix_pixels(spec, native, *unit);
        break;
      case SumKind::winograd:
        for (const auto& transforms : native.winograd)
          if (&transforms - native.winograd == spec.sums[2]) estimated = make_winograd(spec, native, &transforms);
        break;
      case SumKind::columns:
        estimated = make_columns(spec, native);
        break;
      case SumKind::matvec:
        estimated = make_matvec(spec, native);
        break;
      case SumKind::rows:
        pass = make_rows(spec, native);
        break;
      default:
        pass = make_gather(spec, kernels);
    }
    const double time = estimated ? estimated->nanoseconds() : direct_nanoseconds(spec, native);
    if (estimated) pass = std::move(estimated);
    if (pass) return {std::move(pass), time};
  }
  return {};
}

template <class T>
std::vector<Candidate> candidates_of(PassSpec spec, Algorithm algorithm) {
  const Problem& p = spec.problem;
  if (beyond_copies(p)) {
    std::vector<Candidate> one(1);
    one[0].pass = make_reference(spec);
    one[0].nanoseconds = p.products();
    return one;
  }
  const KernelSet<T>& native = kernel_set<T>(active_isa());
  const double im2col = p.products() * static_cast<double>(sizeof(T)) / static_cast<double>(p.co);
  bool widens = false;
  for (const View& v : {spec.operands.x, spec.operands.w, spec.operands.y}) widens |= size_of(v.dtype) < sizeof(float);
  if (spec.budget == 0)
    spec.budget = static_cast<std::size_t>(std::clamp(im2col / 4, widens ? kLeastWidening : kLeastBudget, 1e15));
  // Strict sums take no kernels but our own: OpenBLAS promises nothing about values that are not finite.
  const bool strict = spec.precision == Precision::strict;
  const bool blas = algorithm == Algorithm::blas ||
                    (algorithm == Algorithm::automatic && !strict && have_blas() && active_isa() == Isa::generic);
  const KernelSet<T>& kernels = blas ? blas_kernels(native) : native;
  std::vector<Candidate> all;
  if (spec.sums[0] > 0) {
    if (Candidate one = follow(spec, native, kernels); one.pass) {
      all.push_back(std::move(one));
      return all;
    }
    spec.sums = {};  // of another machine, perhaps, in units of passes that this one has not
  }
  const Index width = width_of_results(spec);
  const bool few = width <= kFewChannels;  // most of a matrix unit's tiles, and of a GEMM's columns, would be empty
  const bool along = blas ? few && algorithm != Algorithm::blas : along_pixels(spec, width, native);
  all.push_back({make_direct<T>(spec, algorithm, along, native, kernels),
                 along ? along_nanoseconds(spec, native) : direct_nanoseconds(spec, native)});
  const bool automatic = algorithm == Algorithm::automatic && !blas;
  const bool unit_may = automatic ? !few : algorithm == Algorithm::matrix;
  const bool winograd_may = automatic ? !strict : algorithm == Algorithm::winograd;
  const auto add = [&](std::unique_ptr<EstimatedPass> pass) {
    if (!pass) return;
    const double time = pass->nanoseconds(), factor = pass->cost() / time;
    all.push_back({std::move(pass), time, factor});
  };
  if (const double time = in_rows_nanoseconds(spec, native); time > 0 && automatic && !along)
    if (auto pass = make_rows(spec, native)) all.push_back({std::move(pass), time});
  if constexpr (sizeof(T) == sizeof(float))
    if (const MatrixKernels* unit = matrix_kernels(active_isa()); unit && unit_may) {
      add(spec.unknown == Unknown::w ? make_matrix_weights(spec, native, *unit) : make_matrix(spec, native, *unit));
      add(make_matrix_pixels(spec, native, *unit));
    }
  if (winograd_may) add(make_winograd(spec, native));
  // Who asks for one of the two gets it wherever it can serve, else what `direct` takes.
  const bool asked = algorithm == Algorithm::matrix || algorithm == Algorithm::winograd,
             served = asked && all.size() > 1;
  if (served) {
    all.erase(all.begin());
  } else if (algorithm != Algorithm::blas) {
    add(spec.unknown == Unknown::w ? make_lanes_weights(spec, native) : make_lanes(spec, native));
    add(make_columns(spec, native)), add(make_matvec(spec, native));
  }
  const auto cost = [&](const Candidate& c) { return c.cost() * (&c == &all.front() && !served ? kWorthwhile : 1); };
  auto best = std::min_element(all.begin(), all.end(),
                               [&](const Candidate& a, const Candidate& b) { return cost(a) < cost(b); });
  // Lanes form the sums of rows, and of channels that lie side by side without a transposition.
  const View& source = spec.unknown == Unknown::x ? spec.operands.y : spec.operands.x;
  const View& result = spec.unknown == Unknown::x ? spec.operands.x : spec.operands.y;
  if (const Sums sums = best->pass->summation();
      p.depthwise() && sums[0] == static_cast<Index>(SumKind::rows) && channels_last(source) && channels_last(result)) {
    auto pass = make_lanes_in_place(spec, native);
    if (!pass && best == all.begin() && 2 * p.groups >= native.lanes) pass = make_lanes(spec, native);
    if (pass) best->pass = std::move(pass);
  }
  std::iter_swap(all.begin(), best);
  return all;
}

}  // namespace

std::vector<Candidate> candidates(PassSpec spec, Algorithm algorithm) {
  const Operands& o = spec.operands;
  const bool wide = o.x.dtype == DType::float64 || o.w.dtype == DType::float64 || o.y.dtype == DType::float64;
  return wide ? candidates_of<double>(spec, algorithm) : candidates_of<float>(spec, algorithm);
}

std::string Candidate::name() const {
  const std::string text = pass->explain();
  return text.substr(0, text.find(" ("));
}

std::unique_ptr<Pass> choose(const PassSpec& spec, Algorithm algorithm) {
  if (algorithm == Algorithm::reference) return make_reference(spec);
  return std::move(candidates(spec, algorithm)[0].pass);
}

std::string reason(const PassSpec& spec, Algorithm algorithm) {
  const std::vector<Candidate> able = candidates(spec, algorithm);
  std::set<std::string> named{able[0].name()};
  std::ostringstream text;
  text.precision(3);
  text << "about " << able[0].nanoseconds / 1e6 << " ms of one thread";
  const auto list = [&](const std::vector<Candidate>& others, double less_than, const std::string& why) {
    bool first = true;
    for (const Candidate& c : others)
      if (c.cost() < less_than && named.insert(c.name()).second)
        text << (std::exchange(first, false) ? why : ", ") << c.name() << " with " << c.nanoseconds / 1e6 << " ms"
             << (c.factor > 1 ? ", badly shared" : "");
  };
  list(able, std::numeric_limits<double>::infinity(), " expected, rather than ");
  PassSpec fast = spec, roomy = spec, both = spec;
  fast.precision = both.precision = Precision::fast;
  roomy.budget = both.budget = kNoLimit;
  const std::string precision =
      std::string("precision '") + (spec.precision == Precision::strict ? "strict'" : "default'");
  const double cost = able[0].cost();
  list(candidates(fast, algorithm), cost, "; " + precision + " refuses ");
  list(candidates(roomy, algorithm), cost, "; the limit of the workspace refuses ");
  list(candidates(both, algorithm), cost, "; " + precision + " with the limit of the workspace refuses ");
  return text.str();
}

}  // namespace convbwd

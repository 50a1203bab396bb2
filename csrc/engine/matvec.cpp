// Unknown x where an image has a single position of y, whose window covers it: x is the sum of the rows of w, each
// times an element of y. Vectors run along the rows, which are read once, where they are.
#include <cmath>
#include <sstream>

#include "engine/estimate.h"
#include "engine/taps.h"

namespace convbwd {
namespace {

// The processor fetches as many rows ahead: with 16 weights of 33 and 50 MB take 1.3 times as long, those of 8 MB, from
// the last cache, as long (Zen 3).
constexpr Index kRowsAtOnce = 8;
constexpr double kFarBytes = 3 << 20;    // of weights, which other passes wait for: more images may share a row
constexpr Index kTaskBytes = 256 << 10;  // of results, which stay in the second-level cache
constexpr double kMuchWork = 1 << 20;    // products of a pass whose channels are cut for kMinTasks

template <class T>
class MatVec final : public EstimatedPass {
 public:
  MatVec(const PassSpec& spec, const KernelSet<T>& kernels) : EstimatedPass(spec), kernels_(kernels) {
    for (std::size_t a = 0; const Range& inside : taps_inside(spec.problem)) inside_[a++] = inside.begin;
  }

  bool plan() {
    const Problem& p = spec_.problem;
    chunk_ = even_part(p.co, kRowsAtOnce);
    // As many sums of chunks as of each chunk's: so the longest sum, and the error, are small.
    group_ = static_cast<Index>(std::ceil(std::sqrt(static_cast<double>(ceil_div(p.co, chunk_))))) * chunk_;
    channels_ = p.products() < kMuchWork ? p.ci : ceil_div(p.ci, ceil_div(kMinTasks, p.groups));
    depth_ = p.w[0];
    if (!divide(densely(spec_.operands))) return false;
    divide(spec_.operands);  // copies of weights in other formats may need more
    return true;
  }

  double nanoseconds() const override {
    const Problem& p = spec_.problem;
    const auto w = static_cast<double>(p.groups * p.co * p.ci * p.taps());
    const double images = static_cast<double>(p.n) / kernels_.lanes;
    // Where some taps lie in the padding results are stored row by row.
    const double rows = p.x_plane() < p.taps() ? static_cast<double>(p.n * p.groups * p.ci * p.x[0] * p.x[1]) : 0;
    return 2000 + 40 * rows + w * (w * sizeof(T) > kFarBytes ? 0.03 + 0.24 * images : 0.44 * images);
  }

  Sums summation() const override { return sums_of(SumKind::matvec, chunk_, 0, 0); }

  std::string explain() const override {
    std::ostringstream s;
    s << "matvec x (" << kernels_.name << "): " << chunk_ << " of " << spec_.problem.co << " rows of weights "
      << (in_place_ ? "in place" : "copied") << " at a time, " << channels_ << " of " << spec_.problem.ci
      << " input channels" << (depth_ < spec_.problem.w[0] ? " in parts" : "") << " a task; " << effort();
    return s.str();
  }

  void run(const Operands& o, std::byte* workspace) const override {
    const Problem& p = spec_.problem;
    const Index blocks = ceil_div(p.ci, channels_), depths = ceil_div(p.w[0], depth_);
    parallel_for(tasks_, slots(), [&](Index i, int number) {
      const Slot s = carve(this->slot(workspace, number));
      const Index c0 = i / depths % blocks * channels_, d0 = i % depths * depth_;
      const Columns columns{
          i / depths / blocks, {c0, std::min(c0 + channels_, p.ci)}, {d0, std::min(d0 + depth_, p.w[0])}};
      for (Index k0 = 0; k0 < p.co; k0 += group_) {
        sum_rows(o, columns, {k0, std::min(k0 + group_, p.co)}, s, k0 > 0 ? s.sums : s.results);
        for (Index n = 0; n < p.n && k0 > 0; ++n)
          for (Index j = n * pitch_; j < n * pitch_ + count(columns); ++j) s.results[j] += s.sums[j];
      }
      store(o, columns, s);
    });
  }

 private:
  struct Slot {
    T *results, *sums, *panel, *values, *bias;
    Index bytes;
  };

  // What a task has of the rows of weights: some channels or, of a single one, some planes of taps.
  struct Columns {
    Index g;
    Range channels, planes;
  };
  Index plane() const { return spec_.problem.w[1] * spec_.problem.w[2]; }
  Index count(const Columns& c) const { return c.channels.size() * c.planes.size() * plane(); }

  // Fewer channels a task, or planes, until their slots are small and within the budget.
  bool divide(const Operands& o) {
    const Problem& p = spec_.problem;
    in_place_ = o.w.dtype == compute_dtype<T> && rows_of_taps(o.w);
    for (;; channels_ > 1 ? channels_ = ceil_div(channels_, 2) : depth_ = ceil_div(depth_, 2)) {
      pitch_ = odd_multiple(channels_ * depth_ * plane(), kernels_.lanes);
      const bool fits = share(p.groups * ceil_div(p.ci, channels_) * ceil_div(p.w[0], depth_), 0, carve({}).bytes);
      if (channels_ * depth_ == 1 || (fits && p.n * pitch_ * static_cast<Index>(sizeof(T)) <= kTaskBytes)) return fits;
    }
  }

  Slot carve(Carver carver) const {
    const Index n = spec_.problem.n;
    Slot s{};
    s.results = carver.take<T>(n * pitch_);
    s.sums = carver.take<T>(group_ < spec_.problem.co ? n * pitch_ : 0);
    s.panel = carver.take<T>(chunk_ * (in_place_ ? kernels_.lanes : pitch_));
    s.values = carver.take<T>(n * group_);
    s.bias = carver.take<T>(channels_);
    s.bytes = carver.used();
    return s;
  }

  // Where the taps of channels are in a row.
  Index5 steps(const Columns& c) const { return {pitch_, c.planes.size() * plane(), plane(), spec_.problem.w[2], 1}; }

  void sum_rows(const Operands& o, const Columns& c, const Range& group, const Slot& s, T* sums) const {
    const Problem& p = spec_.problem;
    const Index columns = count(c), most = kernels_.rows_mr;
    for (Index n = 0; n < p.n; n += most) {  // [image / most][row][image % most]
      const Index m = std::min(most, p.n - n);
      copy_in(kernels_, s.values + n * group.size(), {1, m, 0, 0, 0},
              o.y.at({n, c.g * p.co + group.begin, 0, 0, 0}, {m, group.size(), 1, 1, 1}));
    }
    // Vectors that would reach behind their row are copied.
    const Index whole = in_place_ ? columns - columns % kernels_.lanes : 0;
    const Index pitch = in_place_ ? kernels_.lanes : pitch_;
    std::ptrdiff_t in_place[kRowsAtOnce], copied[kRowsAtOnce];
    for (Index t = 0; t < kRowsAtOnce; ++t) in_place[t] = t * o.w.stride[0], copied[t] = t * pitch;
    for (Index done = 0; done < group.size(); done += chunk_) {
      const Index k = std::min(chunk_, group.size() - done);
      const View w = o.w.at({c.g * p.co + group.begin + done, c.channels.begin, c.planes.begin, 0, 0},
                            {k, c.channels.size(), c.planes.size(), p.w[1], p.w[2]});
      if (!in_place_)
        copy_in(kernels_, s.panel, steps(c), w);
      else if (whole < columns)
        kernels_.pad[static_cast<int>(w.dtype)](s.panel, pitch, advance(w.data, w.dtype, whole), w.stride[0], 1, k, 0,
                                                columns - whole, 0, 0);
      for (Index n = 0; n < p.n; n += most) {
        const Index m = std::min(most, p.n - n);
        const T* const values = s.values + n * group.size() + done * m;
        T* const first = sums + n * pitch_;
        const auto add = [&](Index len, const T* from, const std::ptrdiff_t* offset, T* to) {
          if (len > 0) kernels_.rows(static_cast<int>(m), len, from, offset, k, values, to, pitch_, done > 0);
        };
        add(whole, static_cast<const T*>(w.data), in_place, first);
        add(columns - whole, s.panel, copied, first + whole);
      }
    }
  }

  void store(const Operands& o, const Columns& c, const Slot& s) const {
    const Problem& p = spec_.problem;
    const Index5 step = steps(c);
    const Index channel = c.g * p.ci + c.channels.begin;
    const Index begin = std::max(c.planes.begin, inside_[0]), end = std::min(c.planes.end, inside_[0] + p.x[0]);
    if (begin >= end) return;
    if (o.bias.data) load_bias(kernels_, s.bias, o.bias, channel, c.channels.size());
    for (Index n = 0; n < p.n; ++n) {
      T* const results = s.results + n * pitch_;
      if (o.bias.data)
        for (Index i = 0; i < count(c); ++i) results[i] += s.bias[i / step[1]];
      store_taps(kernels_,
                 o.x.at({n, channel, begin - inside_[0], 0, 0}, {1, c.channels.size(), end - begin, p.x[1], p.x[2]}),
                 results + (begin - c.planes.begin) * step[2] + inside_[1] * step[3] + inside_[2], step);
    }
  }

  const KernelSet<T>& kernels_;
  Index3 inside_{};  // the first taps that do not lie in the padding
  bool in_place_ = false;
  Index chunk_ = 1, group_ = 1;                 // rows
  Index channels_ = 1, depth_ = 1, pitch_ = 1;  // planes of taps, and columns between rows
};

}  // namespace

template <class T>
std::unique_ptr<EstimatedPass> make_matvec(const PassSpec& spec, const KernelSet<T>& kernels) {
  const Problem& p = spec.problem;
  if (spec.unknown != Unknown::x || p.y_plane() != 1 || p.depthwise() || p.ci * p.taps() < kernels.lanes)
    return nullptr;
  const std::array<Range, 3> inside = taps_inside(p);
  for (std::size_t a = 0; a < 3; ++a)
    if (inside[a].size() != p.x[a]) return nullptr;
  return make_planned<MatVec<T>>(spec, kernels);
}
template std::unique_ptr<EstimatedPass> make_matvec(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<EstimatedPass> make_matvec(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd

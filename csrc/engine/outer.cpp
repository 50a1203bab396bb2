// Unknown w where an image has a single position of y: w is the outer product of y and of what the window reads, summed
// over a few images. Vectors run along the rows of w, which are written where they belong, once.
#include <sstream>

#include "engine/estimate.h"
#include "engine/taps.h"

namespace convbwd {
namespace {

constexpr Index kWindowElements = 4096;  // of all images, that stay in the nearest cache for all rows of w
constexpr double kMuchWork = 1 << 20;    // products of a pass whose rows are cut for kMinTasks

template <class T>
class Outer final : public SlottedPass {
 public:
  Outer(const PassSpec& spec, const KernelSet<T>& kernels)
      : SlottedPass(spec),
        kernels_(kernels),
        inside_(taps_inside(spec.problem)),
        padded_(inside_[0].size() * inside_[1].size() * inside_[2].size() < spec.problem.taps()) {}

  bool plan() {
    const Problem& p = spec_.problem;
    chunk_ = even_part(p.ci, kWindowElements / (p.n * p.taps()));
    pitch_ = odd_multiple(chunk_ * p.taps(), kernels_.lanes);
    const Index chunks = p.groups * ceil_div(p.ci, chunk_);
    rows_ = p.products() < kMuchWork ? p.co : round_up(ceil_div(p.co, ceil_div(kMinTasks, chunks)), kernels_.rows_mr);
    return share(chunks * ceil_div(p.co, rows_), 0, carve({}).bytes);
  }

  std::string explain() const override {
    std::ostringstream s;
    s << "outer w (" << kernels_.name << "): " << chunk_ << " of " << spec_.problem.ci << " input channels by "
      << std::min(rows_, spec_.problem.co) << " output channels a task; " << effort();
    return s.str();
  }

  void run(const Operands& o, std::byte* workspace) const override {
    const Problem& p = spec_.problem;
    const Index chunks = ceil_div(p.ci, chunk_), blocks = ceil_div(p.co, rows_);
    const bool in_place = o.w.dtype == compute_dtype<T> && rows_of_taps(o.w);
    parallel_for(tasks_, slots(), [&](Index i, int number) {
      const Slot s = carve(this->slot(workspace, number));
      const Index g = i / blocks / chunks, c0 = i / blocks % chunks * chunk_, c = std::min(chunk_, p.ci - c0);
      const Index begin = i % blocks * rows_, end = std::min(begin + rows_, p.co);
      bring_window(o.x, g * p.ci + c0, c, s);
      std::ptrdiff_t offset[kMostImages];
      for (Index n = 0; n < p.n; ++n) offset[n] = n * pitch_;
      for (Index m0 = begin, m; m0 < end; m0 += m) {
        const Index row = g * p.co + m0;
        m = in_place ? std::min<Index>(kernels_.rows_mr, end - m0) : 1;
        bring_values(o.y, row, m, s);
        // Products with padding are harmless while y is finite.
        const bool finite = !padded_ || all_finite(s.values, p.n * m);
        if (!finite && m > 1) {
          m = 1;
          bring_values(o.y, row, m, s);
        }
        T* const to = in_place && finite ? static_cast<T*>(o.w.data) + o.w.offset({row, c0, 0, 0, 0}) : s.row;
        kernels_.rows(static_cast<int>(m), c * p.taps(), s.window, offset, p.n, s.values, to, o.w.stride[0], false);
        if (!finite) clear_padding(s.row, c);
        if (to == s.row)  // groups may share blocks
          store_taps(kernels_, o.w.at({row, c0, 0, 0, 0}, {1, c, p.w[0], p.w[1], p.w[2]}), s.row,
                     {0, p.taps(), p.w[1] * p.w[2], p.w[2], 1});
      }
    });
  }

 private:
  struct Slot {
    T *window, *values, *row;
    Index bytes;
  };
  Slot carve(Carver carver) const {
    Slot s{};
    s.window = carver.take<T>(spec_.problem.n * pitch_);
    s.values = carver.take<T>(spec_.problem.n * kernels_.rows_mr);
    s.row = carver.take<T>(pitch_);
    s.bytes = carver.used();
    return s;
  }

  // What the window reads of each image: [image][channel][tap], zeros in the padding.
  void bring_window(const View& x, Index c0, Index c, const Slot& s) const {
    const Problem& p = spec_.problem;
    Index5 at{0, c0}, size{p.n, c};
    const Index5 step{pitch_, p.taps(), p.w[1] * p.w[2], p.w[2], 1};
    T* to = s.window;
    for (std::size_t a = 0; a < 3; ++a) {
      size[2 + a] = inside_[a].size();
      at[2 + a] = inside_[a].begin * p.dilation[a] - p.pad_before[a];
      to += inside_[a].begin * step[2 + a];
    }
    if (padded_) std::fill_n(s.window, p.n * pitch_, T{});
    View read = x.at(at, size);
    for (std::size_t a = 0; a < 3; ++a)
      if (inside_[a].size() > 1) read.stride[2 + a] *= p.dilation[a];
    copy_in(kernels_, to, step, read);
  }
  void bring_values(const View& y, Index channel, Index m, const Slot& s) const {
    copy_in(kernels_, s.values, {m, 1, 0, 0, 0}, y.at({0, channel, 0, 0, 0}, {spec_.problem.n, m, 1, 1, 1}));
  }
  void clear_padding(T* row, Index c) const {
    const Index3& w = spec_.problem.w;
    const auto inside = [&](std::size_t a, Index t) { return t >= inside_[a].begin && t < inside_[a].end; };
    for (Index i = 0; i < c; ++i)
      for (Index d = 0; d < w[0]; ++d)
        for (Index h = 0; h < w[1]; ++h)
          for (Index t = 0; t < w[2]; ++t, ++row)
            if (!inside(0, d) || !inside(1, h) || !inside(2, t)) *row = 0;
  }

  const KernelSet<T>& kernels_;
  const std::array<Range, 3> inside_;
  const bool padded_;
  Index chunk_ = 1, rows_ = 1, pitch_ = 1;
};

}  // namespace

template <class T>
std::unique_ptr<Pass> make_outer(const PassSpec& spec, const KernelSet<T>& kernels) {
  if (!one_output(spec.problem) || spec.problem.ci * spec.problem.taps() < kernels.lanes) return nullptr;
  return make_planned<Outer<T>>(spec, kernels);
}
template std::unique_ptr<Pass> make_outer(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_outer(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd

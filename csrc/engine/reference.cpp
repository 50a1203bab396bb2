// Plain loops with double accumulation: obviously right, needs no workspace, serves problems too small to pack and
// users who check another kernel.
#include "base/formats.h"
#include "engine/pass.h"
#include "format/copy.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

// How an operand is read: as it is where both have float32 or float64, else through a table.
template <class E>
struct Elements {
  explicit Elements(const View& v) : data(static_cast<const E*>(v.data)) {}
  double operator()(Index i) const { return data[i]; }
  const E* data;
};
struct AnyElements {
  explicit AnyElements(const View& v) : data(v.data) {
#define CONVBWD_READ(name, type) [](const void* p, Index i) -> double { return widen(static_cast<const type*>(p)[i]); },
    static constexpr decltype(read) kRead[] = {CONVBWD_TYPE_LIST(CONVBWD_READ)};
#undef CONVBWD_READ
    read = kRead[static_cast<int>(v.dtype)];
  }
  double operator()(Index i) const { return read(data, i); }
  const void* data;
  double (*read)(const void*, Index);
};

class Reference final : public Pass {
 public:
  explicit Reference(const PassSpec& spec) : spec_(spec) {
    if (spec.unknown != Unknown::x) return;
    for (std::size_t a = 0; a < 3; ++a) {
      maps_[a] = map_transposed(axis_sizes(spec.problem, a));
      Index positions = 0;
      for (const Phase& f : maps_[a].phases)
        if (!f.offset.empty()) positions += f.count * static_cast<Index>(f.members.size());
      covered_ *= positions;
    }
  }
  std::size_t workspace_bytes() const override { return 0; }
  std::string explain() const override { return "reference: plain loops, double accumulation, no workspace"; }

  Sums summation() const override { return sums_of(SumKind::reference, 0, 0, 0); }

  void run(const Operands& o, std::byte*) const override {
    const View& a = spec_.unknown == Unknown::x ? o.y : o.x;
    const View& b = spec_.unknown == Unknown::w ? o.y : o.w;
    if (a.dtype == b.dtype && a.dtype == DType::float32) return loop<Elements<float>>(o, a, b);
    if (a.dtype == b.dtype && a.dtype == DType::float64) return loop<Elements<double>>(o, a, b);
    loop<AnyElements>(o, a, b);
  }

 private:
  static void put(const View& v, Index at, double value) {
    kernel_set<double>(Isa::generic).store[static_cast<int>(v.dtype)](advance(v.data, v.dtype, at), &value, 1);
  }

  template <class Read>
  void loop(const Operands& o, const View& a, const View& b) const {
    const bool weights = spec_.unknown == Unknown::w, forward = spec_.unknown == Unknown::y;
    const View& out = weights ? o.w : forward ? o.y : o.x;
    const Index tasks = out.size[0] * out.size[1];
    parallel_for(tasks, static_cast<int>(std::min<Index>(tasks, spec_.threads)), [&](Index i, int) {
      const Index i0 = i / out.size[1], i1 = i % out.size[1];
      const View plane = out.at({i0, i1, 0, 0, 0}, out.size);
      if (weights)
        weight_plane<Read>(a, b, plane, i0, i1);
      else if (forward)
        output_plane<Read>(o, a, b, plane, i0, i1);
      else
        input_plane<Read>(o, a, b, plane, i0, i1);
    });
  }

  // Calls f(position) for every position of a box, or a plane.
  template <class F>
  static void each(const Range& d, const Range& h, const Range& w, F&& f) {
    Index3 q;
    for (q[0] = d.begin; q[0] < d.end; ++q[0])
      for (q[1] = h.begin; q[1] < h.end; ++q[1])
        for (q[2] = w.begin; q[2] < w.end; ++q[2]) f(q);
  }
  template <class F>
  static void each(const View& plane, F&& f) {
    each({0, plane.size[2]}, {0, plane.size[3]}, {0, plane.size[4]}, f);
  }
  static Index at(const View& v, const Index3& q) {
    return q[0] * v.stride[2] + q[1] * v.stride[3] + q[2] * v.stride[4];
  }

  template <class Read>
  void output_plane(const Operands& o, const View& x, const View& w, const View& plane, Index n, Index k) const {
    const Problem& p = spec_.problem;
    const Index g = k / p.co;
    const Read read_x(x), read_w(w);
    const double first = o.bias.data ? bias(o.bias, k) : 0;
    each(plane, [&](const Index3& q) {
      Index3 origin;  // position of tap 0, of a row the first one inside; and the taps inside the image
      std::array<Range, 3> taps;
      for (std::size_t a = 0; a < 3; ++a) {
        origin[a] = q[a] * p.stride[a] - p.pad_before[a];
        taps[a] = valid_taps(axis_sizes(p, a), q[a]);
      }
      origin[2] += taps[2].begin * p.dilation[2];
      double sum = first;
      for (Index c = 0; c < p.ci; ++c)
        for (Index d = taps[0].begin; d < taps[0].end; ++d)
          for (Index h = taps[1].begin; h < taps[1].end; ++h) {
            const Index ix =
                x.offset({n, g * p.ci + c, origin[0] + d * p.dilation[0], origin[1] + h * p.dilation[1], origin[2]});
            const Index iw = w.offset({k, c, d, h, taps[2].begin});
            for (Index v = 0; v < taps[2].size(); ++v)
              sum += read_x(ix + v * p.dilation[2] * x.stride[4]) * read_w(iw + v * w.stride[4]);
          }
      put(plane, at(plane, q), sum);
    });
  }

  static Index offset(const Phase& f, Index t) { return f.offset[static_cast<std::size_t>(t)]; }
  static Index tap(const Phase::Member& m, Index t) { return m.tap[static_cast<std::size_t>(t)]; }

  // The positions that windows cover, phase by phase; the others are zeros (or the bias).
  template <class Read>
  void input_plane(const Operands& o, const View& y, const View& w, const View& plane, Index n, Index channel) const {
    const Problem& p = spec_.problem;
    const Index g = channel / p.ci, c = channel % p.ci;
    const Read read_y(y), read_w(w);
    const double first = o.bias.data ? bias(o.bias, channel) : 0;
    const Index5 group{n, g * p.co, 0, 0, 0};
    const View from = y.at(group, y.size);
    const Index origin = y.offset(group);
    if (covered_ < p.x_plane()) fill_plane(kernel_set<double>(Isa::generic), plane, first);
    for (const Phase& fd : maps_[0].phases)
      for (const Phase& fh : maps_[1].phases)
        for (const Phase& fw : maps_[2].phases) {
          // Of the positions that read the same taps, those of one member of each phase.
          const auto sums_of = [&](const Phase::Run& rd, const Phase::Run& rh, const Phase::Run& rw,
                                   const Phase::Member& md, const Phase::Member& mh, const Phase::Member& mw) {
            each({rd.begin, rd.end}, {rh.begin, rh.end}, {rw.begin, rw.end}, [&](const Index3& q) {
              double sum = first;
              for (Index d = rd.inside.begin; d < rd.inside.end; ++d)
                for (Index h = rh.inside.begin; h < rh.inside.end; ++h) {
                  const Index row = origin + at(y, {q[0] + offset(fd, d), q[1] + offset(fh, h), q[2]});
                  const Index taps = w.offset({g * p.co, c, tap(md, d), tap(mh, h), 0});
                  for (Index v = rw.inside.begin; v < rw.inside.end; ++v) {
                    const Index iy = row + offset(fw, v) * y.stride[4];
                    Index iw = taps + tap(mw, v) * w.stride[4];
                    for (Index k = 0; k < p.co; ++k, iw += w.stride[0])
                      sum += read_y(iy + from.along(1, k)) * read_w(iw);
                  }
                }
              put(plane,
                  at(plane, {md.first + q[0] * maps_[0].dst_step, mh.first + q[1] * maps_[1].dst_step,
                             mw.first + q[2] * maps_[2].dst_step}),
                  sum);
            });
          };
          if (fd.offset.empty() || fh.offset.empty() || fw.offset.empty()) continue;
          for (const auto& md : fd.members)
            for (const auto& mh : fh.members)
              for (const auto& mw : fw.members)
                for (const auto& rd : fd.runs)
                  for (const auto& rh : fh.runs)
                    for (const auto& rw : fw.runs) sums_of(rd, rh, rw, md, mh, mw);
        }
  }

  template <class Read>
  void weight_plane(const View& x, const View& y, const View& plane, Index k, Index channel) const {
    const Problem& p = spec_.problem;
    const Index c = k / p.co * p.ci + channel;
    const Read read_x(x), read_y(y);
    each(plane, [&](const Index3& tap) {
      Index3 origin;
      std::array<Range, 3> r;
      for (std::size_t a = 0; a < 3; ++a) {
        origin[a] = tap[a] * p.dilation[a] - p.pad_before[a];
        r[a] = valid_outputs(axis_sizes(p, a), tap[a]);
      }
      origin[2] += r[2].begin * p.stride[2];
      double sum = 0;
      for (Index n = 0; n < p.n; ++n)
        for (Index d = r[0].begin; d < r[0].end; ++d)
          for (Index h = r[1].begin; h < r[1].end; ++h) {
            const Index ix = x.offset({n, c, d * p.stride[0] + origin[0], h * p.stride[1] + origin[1], origin[2]});
            const Index iy = y.offset({n, k, d, h, r[2].begin});
            for (Index v = 0; v < r[2].size(); ++v)
              sum += read_x(ix + v * p.stride[2] * x.stride[4]) * read_y(iy + v * y.stride[4]);
          }
      put(plane, at(plane, tap), sum);
    });
  }

  static double bias(const View& b, Index c) {
    double value = 0;
    load_bias(kernel_set<double>(Isa::generic), &value, b, c, 1);
    return value;
  }

  PassSpec spec_;
  std::array<AxisMap, 3> maps_;  // unknown x
  Index covered_ = 1;            // positions that some tap reaches
};

}  // namespace

std::unique_ptr<Pass> make_reference(const PassSpec& spec) { return std::make_unique<Reference>(spec); }

}  // namespace convbwd

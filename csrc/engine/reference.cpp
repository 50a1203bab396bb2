// Plain loops with double accumulation: obviously right, needs no workspace, serves problems too small to pack and users
// who check another kernel.
#include "base/half.h"
#include "engine/pass.h"
#include "format/copy.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

template <class E>
double read(const void* p, Index i) {
  if constexpr (std::is_same_v<E, Half> || std::is_same_v<E, BFloat>) return widen(static_cast<const E*>(p)[i]);
  else return static_cast<const E*>(p)[i];
}

// Calls f(Element{}) with the element type of a dtype.
template <class F>
void with_type(DType t, F&& f) {
  switch (t) {
    case DType::float64: return f(double{});
    case DType::float32: return f(float{});
    case DType::float16: return f(Half{});
    case DType::bfloat16: return f(BFloat{});
  }
}

class Reference final : public Pass {
 public:
  explicit Reference(const PassSpec& spec) : spec_(spec) {}
  std::size_t workspace_bytes() const override { return 0; }
  std::string explain() const override { return "reference: plain loops, double accumulation, no workspace"; }

  void run(const Operands& o, std::byte*) const override {
    const View& a = spec_.unknown == Unknown::x ? o.y : o.x;
    const View& b = spec_.unknown == Unknown::w ? o.y : o.w;
    with_type(a.dtype, [&](auto ea) {
      with_type(b.dtype, [&](auto eb) { loop<decltype(ea), decltype(eb)>(o, a, b); });
    });
  }

 private:
  static void put(const View& v, Index at, double value) {
    kernel_set<double>(Isa::generic).store[static_cast<int>(v.dtype)](advance(v.data, v.dtype, at), &value, 1);
  }

  template <class A, class B>
  void loop(const Operands& o, const View& a, const View& b) const {
    const bool weights = spec_.unknown == Unknown::w, forward = spec_.unknown == Unknown::y;
    const View& out = weights ? o.w : forward ? o.y : o.x;
    const Index tasks = out.size[0] * out.size[1];
    parallel_for(tasks, std::min(spec_.threads, static_cast<int>(std::min<Index>(tasks, 1 << 20))), [&](Index i, int) {
      const Index i0 = i / out.size[1], i1 = i % out.size[1];
      Index5 at{i0, i1, 0, 0, 0};
      for (at[2] = 0; at[2] < out.size[2]; ++at[2])
        for (at[3] = 0; at[3] < out.size[3]; ++at[3])
          for (at[4] = 0; at[4] < out.size[4]; ++at[4])
            put(out, out.offset(at), weights ? weight<A, B>(a, b, at) : forward ? output<A, B>(o, a, b, at)
                                                                                 : input<A, B>(o, a, b, at));
    });
  }

  template <class X, class W>
  double output(const Operands& o, const View& x, const View& w, const Index5& at) const {
    const Problem& p = spec_.problem;
    const Index g = at[1] / p.co;
    double sum = o.bias.data ? bias(o.bias, at[1]) : 0;
    for (Index c = 0; c < p.ci; ++c)
      for (Index td = 0; td < p.w[0]; ++td)
        for (Index th = 0; th < p.w[1]; ++th)
          for (Index tw = 0; tw < p.w[2]; ++tw) {
            const Index d = at[2] * p.stride[0] + td * p.dilation[0] - p.pad_before[0];
            const Index h = at[3] * p.stride[1] + th * p.dilation[1] - p.pad_before[1];
            const Index v = at[4] * p.stride[2] + tw * p.dilation[2] - p.pad_before[2];
            if (d < 0 || d >= p.x[0] || h < 0 || h >= p.x[1] || v < 0 || v >= p.x[2]) continue;
            sum += read<X>(x.data, x.offset({at[0], g * p.ci + c, d, h, v})) * read<W>(w.data, w.offset({at[1], c, td, th, tw}));
          }
    return sum;
  }

  template <class Y, class W>
  double input(const Operands& o, const View& y, const View& w, const Index5& at) const {
    const Problem& p = spec_.problem;
    const Index g = at[1] / p.ci, c = at[1] % p.ci;
    double sum = o.bias.data ? bias(o.bias, at[1]) : 0;
    const auto window = [&](std::size_t a, Index tap, Index& position) {
      const Index from = at[a + 2] + p.pad_before[a] - tap * p.dilation[a];
      position = from / p.stride[a];
      return from >= 0 && from % p.stride[a] == 0 && position < p.y[a];
    };
    Index d, h, v;
    for (Index td = 0; td < p.w[0]; ++td)
      if (window(0, td, d))
        for (Index th = 0; th < p.w[1]; ++th)
          if (window(1, th, h))
            for (Index tw = 0; tw < p.w[2]; ++tw)
              if (window(2, tw, v))
                for (Index k = g * p.co; k < (g + 1) * p.co; ++k)
                  sum += read<Y>(y.data, y.offset({at[0], k, d, h, v})) * read<W>(w.data, w.offset({k, c, td, th, tw}));
    return sum;
  }

  template <class X, class Y>
  double weight(const View& x, const View& y, const Index5& at) const {
    const Problem& p = spec_.problem;
    const Index c = at[0] / p.co * p.ci + at[1];
    std::array<Range, 3> r;
    for (std::size_t a = 0; a < 3; ++a) r[a] = valid_outputs(axis_sizes(p, static_cast<int>(a)), at[a + 2]);
    double sum = 0;
    for (Index n = 0; n < p.n; ++n)
      for (Index d = r[0].begin; d < r[0].end; ++d)
        for (Index h = r[1].begin; h < r[1].end; ++h)
          for (Index v = r[2].begin; v < r[2].end; ++v)
            sum += read<X>(x.data, x.offset({n, c, d * p.stride[0] + at[2] * p.dilation[0] - p.pad_before[0],
                                             h * p.stride[1] + at[3] * p.dilation[1] - p.pad_before[1],
                                             v * p.stride[2] + at[4] * p.dilation[2] - p.pad_before[2]})) *
                   read<Y>(y.data, y.offset({n, at[0], d, h, v}));
    return sum;
  }

  static double bias(const View& b, Index c) {
    double value = 0;
    kernel_set<double>(Isa::generic).load[static_cast<int>(b.dtype)](&value, advance(b.data, b.dtype, c * b.stride[1]), 1);
    return value;
  }

  PassSpec spec_;
};

}  // namespace

std::unique_ptr<Pass> make_reference(const PassSpec& spec) { return std::make_unique<Reference>(spec); }

}  // namespace convbwd

#include "format/layouts.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

namespace convbwd {
namespace {

struct Row {
  const char* name;
  std::string_view order;  // of a plain format: its axes
  std::size_t rank;
  bool weights;  // FRACTAL_Z
};
constexpr Row kRows[] = {
    {"NCHW", "NCHW", 4, false},    {"NHWC", "NHWC", 4, false},   {"HWCN", "HWCN", 4, false},
    {"NC1HWC0", "", 4, false},     {"FRACTAL_Z", "", 4, true},   {"NCDHW", "NCDHW", 5, false},
    {"NDHWC", "NDHWC", 5, false},  {"DHWCN", "DHWCN", 5, false}, {"NDC1HWC0", "", 5, false},
    {"FRACTAL_Z_3D", "", 5, true},
};
const Row& row(MemoryFormat format) { return kRows[static_cast<std::size_t>(format)]; }  // of one that exists

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::string text = "formats: ";
  ((text += parts), ...);
  throw Error(ErrorKind::value, text);
}

Index times(Index a, Index b) {
  Index product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail("a packed array must have less than 2**63 elements");
  return product;
}

Index blocks(Index size, Index block) { return size / block + (size % block != 0); }

class Layout {
 public:
  Layout(MemoryFormat format, const Shape& shape, Index groups, Index c0) : format_(format), c0_(c0), groups_(groups) {
    if (format > MemoryFormat::fractal_z_3d)
      fail("a format must be a MemoryFormat, up to 9, got ", std::to_string(static_cast<int>(format)));
    const Row& r = row(format);
    if (shape.size() != r.rank)
      fail(r.name, " must have ", std::to_string(r.rank), " axes, got ", std::to_string(shape.size()));
    for (const Index size : shape)
      if (size < 0) fail("sizes must not be negative, got ", std::to_string(size));
    if (c0 < 1) fail("c0 must be at least 1, got ", std::to_string(c0));
    if (groups < 1 || shape[0] % groups != 0)
      fail("groups must divide the first axis = ", std::to_string(shape[0]), ", got ", std::to_string(groups));
    size_ = {shape[0], shape[1], 1, shape[r.rank - 2], shape[r.rank - 1]};
    if (r.rank == 5) size_[2] = shape[2];
    const auto [n, c, d, h, w] = size_;
    if (!r.order.empty()) {
      for (const char axis : r.order) dims_.push_back(size_[std::string_view("NCDHW").find(axis)]);
    } else if (!r.weights) {
      c1_ = blocks(c, c0);
      dims_ = r.rank == 5 ? Shape{n, d, c1_, h, w, c0} : Shape{n, c1_, h, w, c0};
    } else {
      const Index by_c = c0 / std::gcd(c, c0), by_n = kN0 / std::gcd(n / groups, kN0);  // what fills whole blocks
      together_ = std::min(times(by_c / std::gcd(by_c, by_n), by_n), groups);
      c1_ = blocks(times(together_, c), c0);
      n1_ = blocks(times(together_, n / groups), kN0);
      const Index rows = times(times(times(blocks(groups, together_), d), c1_), times(h, w));
      dims_ = {rows, n1_, kN0, c0};
    }
    for (const Index size : dims_) elements_ = times(elements_, size);
  }

  const Shape& dims() const { return dims_; }
  Index elements() const { return elements_; }

  View view(void* data, DType dtype) const {
    const Row& r = row(format_);
    View v{data, dtype, size_};
    const auto [n, c, d, h, w] = size_;
    if (!r.order.empty()) {
      Index dense = 1;
      for (auto axis = r.order.rbegin(); axis != r.order.rend(); ++axis) {
        const std::size_t a = std::string_view("NCDHW").find(*axis);
        v.stride[a] = dense;
        dense *= size_[a];
      }
      return v;
    }
    const Index lanes = r.weights ? n1_ * kN0 * c0_ : c0_, plane = h * w * lanes, block = d * c1_ * plane;
    v.stride = {r.weights ? c0_ : block, 1, c1_ * plane, w * lanes, lanes};
    if (c1_ > 1 || r.weights) v.split = {c0_, plane, 0};
    if (groups_ > 1 && r.weights) v.groups = {n / groups_, together_ * (n / groups_), block, c};
    return v;
  }

 private:
  MemoryFormat format_;
  Index c0_, groups_, together_ = 1, c1_ = 1, n1_ = 1, elements_ = 1;
  Index5 size_{};
  Shape dims_;
};

// One strided copy, of parts that are plain on both sides.
template <Index kBytes>
void copy(const View& to, const View& from) {
  for_each_plain(to, [&](const View& target, Index row, Index c) {
    for_each_plain(from.at({row, c, 0, 0, 0}, target.size), [&](const View& f, Index n0, Index c0) {
      const View t = target.at({n0, c0, 0, 0, 0}, f.size);
      const auto [nn, cc, dd, hh, ww] = f.size;
      for (Index n = 0; n < nn; ++n)
        for (Index d = 0; d < dd; ++d)
          for (Index h = 0; h < hh; ++h) {
            std::byte* const t_row = static_cast<std::byte*>(t.data) + t.offset({n, 0, d, h, 0}) * kBytes;
            const std::byte* const f_row = static_cast<std::byte*>(f.data) + f.offset({n, 0, d, h, 0}) * kBytes;
            for (Index w = 0; w < ww; ++w)
              for (Index i = 0; i < cc; ++i)
                std::memcpy(t_row + (w * t.stride[4] + i * t.stride[1]) * kBytes,
                            f_row + (w * f.stride[4] + i * f.stride[1]) * kBytes, kBytes);
          }
    });
  });
}

}  // namespace

MemoryFormat parse_memory_format(std::string_view name) {
  std::string names;
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (name == kRows[i].name) return static_cast<MemoryFormat>(i);
    names += std::string(i ? ", " : "") + kRows[i].name;
  }
  fail("a format must be one of ", names, ", got '", std::string(name), "'");
}

const char* name_of(MemoryFormat format) noexcept {
  return format > MemoryFormat::fractal_z_3d ? "no format" : row(format).name;
}

Shape packed_shape(MemoryFormat format, const Shape& shape, std::int64_t groups, std::int64_t c0) {
  return Layout(format, shape, groups, c0).dims();
}

void convert_format(void* to, MemoryFormat to_format, const void* from, MemoryFormat from_format, const Shape& shape,
                    std::size_t element_bytes, std::int64_t groups, std::int64_t c0) {
  const Layout t(to_format, shape, groups, c0), f(from_format, shape, groups, c0);
  struct {
    DType carrier;  // any type of that size
    void (*copy)(const View&, const View&);
  } kinds[] = {
      {DType::hifloat8, &copy<1>}, {DType::float16, &copy<2>}, {DType::float32, &copy<4>}, {DType::float64, &copy<8>}};
  const auto kind = std::find_if(std::begin(kinds), std::end(kinds),
                                 [&](const auto& k) { return size_of(k.carrier) == element_bytes; });
  if (kind == std::end(kinds)) fail("elements must have 1, 2, 4 or 8 bytes, got ", std::to_string(element_bytes));
  std::memset(to, 0, static_cast<std::size_t>(times(t.elements(), static_cast<Index>(element_bytes))));
  if (t.elements() == 0 || f.elements() == 0) return;
  kind->copy(t.view(to, kind->carrier), f.view(const_cast<void*>(from), kind->carrier));
}

View packed_view(void* data, DType dtype, const Packing& packing, const Shape& shape, Index groups) {
  return Layout(packing.format, shape, groups, c0_of(packing, dtype)).view(data, dtype);
}

Index packed_elements(DType dtype, const Packing& packing, const Shape& shape, Index groups) {
  return Layout(packing.format, shape, groups, c0_of(packing, dtype)).elements();
}

}  // namespace convbwd

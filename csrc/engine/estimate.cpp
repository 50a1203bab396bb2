#include "engine/estimate.h"

namespace convbwd {
namespace {

// Time that rows and dots take on one thread for depthwise problems, fitted like direct_nanoseconds. Their vectors lie
// across cache lines, their rows have borders, and small planes are mostly overhead.
double depthwise_nanoseconds(const Problem& p, int lanes) {
  const double pixels = static_cast<double>(p.x_plane() + p.y_plane());
  const double row = 1 + static_cast<double>((p.w[2] - 1) * p.dilation[2]) / static_cast<double>(p.y[2] * p.stride[2]);
  const double strided = p.stride[1] * p.stride[2] > 1 ? 110 + 0.12 * pixels : 0;
  return 2000 + p.products() / lanes * 0.4 * row +
         static_cast<double>(p.n * p.groups) * (60 + 0.19 * pixels + 0.4 * static_cast<double>(p.taps()) + strided);
}

// Time that reading an image in place costs more where its planes come from memory, from so many at a time that no
// prefetcher follows: 0.4 to 1.2 ns an element of images of 30 MiB.
double far_nanoseconds(const PassSpec& spec) {
  constexpr double kFar = 16 << 20;
  constexpr Index kPlanes = 32, kPage = 4096;
  const Problem& p = spec.problem;
  const bool of_y = spec.unknown == Unknown::x;
  const Index channels = of_y ? p.co : p.ci, plane = of_y ? p.y_plane() : p.x_plane();
  const auto item = static_cast<Index>(size_of((of_y ? spec.operands.y : spec.operands.x).dtype));
  const double elements = static_cast<double>(p.n * p.groups * channels * plane);
  return channels >= kPlanes && plane * item >= kPage && elements * static_cast<double>(item) > kFar ? 0.8 * elements
                                                                                                     : 0;
}

}  // namespace

double direct_nanoseconds(const PassSpec& spec, int lanes) {
  const Problem& p = spec.problem;
  if (p.depthwise()) return depthwise_nanoseconds(p, lanes);
  const double images = static_cast<double>(p.n * p.groups);
  const double x = images * static_cast<double>(p.ci * p.x_plane()),
               y = images * static_cast<double>(p.co * p.y_plane());
  const double w = static_cast<double>(p.groups * p.ci * p.co * p.taps());
  const Index columns = spec.unknown == Unknown::x ? p.ci : p.co;
  const double wasted = static_cast<double>(round_up(columns, lanes)) / static_cast<double>(columns);
  double time = p.products() / lanes * 0.18 * (columns > lanes ? wasted : 1);
  // Pixels of a row near its ends have taps of their own: those of a few rows do not fill the kernel's tile.
  if (spec.unknown != Unknown::w && p.stride[2] == 1) {
    const Index ends = std::min(p.y[2], (p.w[2] - 1) * p.dilation[2]), rows = p.n * p.y[0] * p.y[1];
    time *= 1 + std::max(0.0, 4.0 / static_cast<double>(rows) - 1) * static_cast<double>(ends) /
                    static_cast<double>(p.y[2]);
  }
  time += 2000;
  // What is not of the compute type is copied, once for each block of channels (patches have those of all taps).
  const bool of_y = spec.unknown == Unknown::x, patches = of_y && p.stride == p.w;
  if (const DType t = (of_y ? spec.operands.y : spec.operands.x).dtype; t != DType::float32 && t != DType::float64) {
    const double planes = images * static_cast<double>(of_y ? p.co * p.y[0] : p.ci * p.x[0]);
    const Index blocks = ceil_div(columns * (patches ? p.taps() : 1), 4 * lanes);
    const double element = !of_y && p.stride[2] > 1 ? 0.2 : 0.1;  // what strides leave out is copied too
    time += static_cast<double>(blocks) * (5 * planes + element * (of_y ? y : x));
  }
  if (spec.unknown == Unknown::w) return time + 0.15 * (x + y) + (outer_product(p) ? 0.2 : 0.8) * w;
  const double far = far_nanoseconds(spec), pixels = of_y ? 0.35 * x + 0.1 * y : 0.1 * x + 0.35 * y;
  const bool single = p.y[2] == 1 && std::min(p.x[2], p.w[2]) > 1;  // window: as if the stride were its length
  if (!of_y || (p.stride[2] == 1 && !single)) return time + far + pixels + 0.4 * w;
  // Phases have fewer pixels each. All of them are transposed into place together, or else rows are put together from
  // them, which takes longer than their pixels, if they are short.
  time *= 1.15;
  if (columns >= lanes && !single && (p.w[2] == 1 || p.stride[2] < p.w[2]))
    return time + far + 0.2 * x + 0.1 * y + 0.4 * w;
  const double rows =
      images * static_cast<double>(p.ci * std::min(p.x[0], p.y[0] * p.w[0]) * std::min(p.x[1], p.y[1] * p.w[1]));
  return time + far + 0.8 * x + 0.1 * y + 0.45 * w + rows * std::max(0.0, 20 - 0.35 * static_cast<double>(p.x[2]));
}

double in_rows_nanoseconds(const PassSpec& spec, int lanes, int rows_mr) {
  const Problem& p = spec.problem;
  const bool to_x = spec.unknown == Unknown::x;
  const Index source = to_x ? p.co : p.ci, results = to_x ? p.ci : p.co;
  if (!p.pointwise() || spec.unknown == Unknown::w || results > 2 * source || source >= 24 || p.y_plane() < 32 * lanes)
    return 0;
  const double images = static_cast<double>(p.n * p.groups * p.y_plane());
  const double rows = static_cast<double>(round_up(results, rows_mr));
  return 2000 + far_nanoseconds(spec) +
         images * (0.235 * rows * static_cast<double>(source) / lanes + 0.15 * static_cast<double>(results));
}

}  // namespace convbwd

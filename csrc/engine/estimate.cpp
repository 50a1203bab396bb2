#include "engine/estimate.h"

#include <cmath>

namespace convbwd {
namespace {

// Cycles of the gathering kernel for the weights' gradient of an image of a group: tiles of `rows` channels on one
// side, `columns` on the other, `packed` elements. Fitted to 70 problems of 1 to 512 channels (AVX-512).
template <class T>
double gathered_weights(const KernelSet<T>& k, Index rows, Index columns, double products, Index packed) {
  constexpr double kVector = 0.53, kPacked = 0.35;
  constexpr Index kLeast = 3;  // fewer rows wait for their sums
  const auto vectors = static_cast<double>(column_cost(k, columns, widest_block(k, columns))) / 8;
  return kVector * vectors * products * static_cast<double>(std::max(rows, kLeast)) +
         kPacked * static_cast<double>(packed);
}

double every_product_inside(const Problem& p) {
  double products = 1;
  for (std::size_t a = 0; a < 3; ++a) {
    const AxisSizes sizes = axis_sizes(p, a);
    Index inside = 0;
    for (Index t = 0; t < sizes.kernel; ++t) inside += valid_outputs(sizes, t).size();
    products *= static_cast<double>(inside);
  }
  return std::max(1.0, products);
}

// Nanoseconds of the gathering kernel for the weights' gradient of a group: tap by tap, without those in the padding,
// results being transposed; and with windows unrolled, results being rows of w. Fitted to 70 problems of 16 to 512
// channels, 2 to 64 taps and 4 to 800 pixels (Zen 5, AVX-512); over these the choice costs 0.9 %, one or the other for
// all 4.7 and 25 %.
template <class T>
double by_taps_nanoseconds(const Problem& p, const KernelSet<T>& k) {
  const double inside = static_cast<double>(p.n) * every_product_inside(p);
  const double all = static_cast<double>(p.n * p.y_plane() * p.taps());
  const double ends = inside < all ? static_cast<double>(p.n * p.y[0] * p.y[1] * p.taps()) : 0;
  const double results = static_cast<double>(p.ci * p.co);
  return results * ((0.139 * inside + 0.086 * ends) / k.lanes + 0.139 * static_cast<double>(p.taps()));
}
template <class T>
double unrolled_nanoseconds(const Problem& p, const KernelSet<T>& k) {
  const Index columns = p.ci * p.taps(), rows = p.n * p.y[0] * p.y[1];
  const double packed = packs_pieces(p)
                            ? 0.168 * static_cast<double>(rows * p.y[2] * (p.w[2] + 2)) / static_cast<double>(p.w[2])
                            : 0.108 * static_cast<double>(rows * round_up(p.y[2] * p.stride[2], k.lanes));
  return 0.125 * static_cast<double>(p.co * rows * p.y[2] * ceil_div(columns, k.lanes)) +
         static_cast<double>(columns) * (0.093 * static_cast<double>(p.co) + packed);
}

}  // namespace

Problem exchanged(const Problem& p) {
  Problem e = p;
  std::swap(e.ci, e.co);
  std::swap(e.x, e.y);
  for (std::size_t a = 0; a < 3; ++a) e.pad_before[a] = (p.w[a] - 1) * p.dilation[a] - p.pad_before[a];
  return e;
}

constexpr double kSet = 500;  // ns of a set of phases in a box, besides its products (Zen 4)

std::array<AxisMap, 3> gather_maps(const Problem& p, bool to_x, int lanes) {
  if (!to_x) return axis_maps(p, map_forward);
  // ns of a vector's products, of a result that is transposed, and of one that is put together (Zen 4, 69 problems).
  constexpr double kProduct = 0.25, kTransposed = 0.25, kPutTogether = 2;
  constexpr std::size_t kMostSets = 256;  // planning takes time, too
  const std::array<AxisMap, 3> joined = axis_maps(p, map_patches), apart = axis_maps(p, map_apart);
  const bool in_pieces = joined[2].phases.size() == 1 && joined[2].phases[0].members.size() > 1;
  if (in_pieces || apart[0].phases.size() * apart[1].phases.size() * apart[2].phases.size() > kMostSets) return joined;
  const auto nanoseconds = [&](const std::array<AxisMap, 3>& maps) {
    const std::vector<PhaseSet> sets = phase_sets(maps);
    double products = 0, live = 0;
    for (const PhaseSet& s : sets) {
      if (s.taps == 0) continue;
      products += static_cast<double>(s.phase[0]->count * s.phase[1]->count * s.phase[2]->count * s.taps *
                                      ceil_div(s.columns(p.ci), lanes));
      ++live;
    }
    const double boxes = std::ceil(static_cast<double>(p.n * p.y_plane()) / static_cast<double>(kBoxPixels));
    return kProduct * products * static_cast<double>(p.n * p.co) + kSet * live * boxes +
           (one_member(sets) ? kTransposed : kPutTogether) * static_cast<double>(p.n * p.ci * p.x_plane());
  };
  return nanoseconds(apart) < nanoseconds(joined) ? apart : joined;
}

template <class T>
double gather_chunks(const PassSpec& spec, const std::vector<PhaseSet>& sets, bool by_taps,
                     const KernelSet<T>& kernels) {
  const bool to_x = spec.unknown == Unknown::x;
  const Index sources = to_x ? spec.problem.co : spec.problem.ci, results = to_x ? spec.problem.ci : spec.problem.co;
  Index taps = 1, of_sum = 1, panel = 1;
  for (const PhaseSet& s : sets) {
    if (s.taps == 0) continue;
    taps = std::max(taps, s.taps), of_sum = std::max(of_sum, taps_of_sum(s, by_taps));
    panel += s.taps * round_up(s.columns(results), kernels.lanes) * static_cast<Index>(sizeof(T));
  }
  const Index most = bytes_of_panels(static_cast<Index>(spec.budget), by_taps) / panel;
  return static_cast<double>(ceil_div(sources, std::clamp<Index>(most, 1, longest_chunk(taps, of_sum, most))));
}

Index width_of_results(const PassSpec& spec) {
  const Problem& p = spec.problem;
  if (spec.unknown != Unknown::x) return p.co;
  Index width = p.ci;
  for (std::size_t a = 0; a < 3; ++a) {
    std::size_t members = 1;
    const AxisSizes sizes = axis_sizes(p, a);
    for (const Phase& f : (p.depthwise() ? map_transposed(sizes) : map_patches(sizes)).phases)
      if (!f.offset.empty()) members = std::max(members, f.members.size());
    width *= static_cast<Index>(members);
  }
  return width;
}

std::array<Range, 3> taps_inside(const Problem& p) {
  std::array<Range, 3> inside{};
  for (std::size_t a = 0; a < 3; ++a)
    for (const TapClass& c : tap_classes(axis_sizes(p, a)))
      if (c.outputs.size() > 0) inside[a] = c.taps;
  return inside;
}

bool one_output(const Problem& p) {
  if (p.y_plane() != 1 || p.depthwise()) return false;
  Index images = kMostImages;
  const std::array<Range, 3> inside = taps_inside(p);
  for (std::size_t a = 0; a < 3; ++a) images = images * inside[a].size() / p.w[a];
  return p.n <= images;
}

// Elements that are packed in the time that one of w is transposed: 1024 channels 28x28 to 256 gain 4 % by packing x
// (2.3 elements for one), two images of 832 channels 14x14 to 128 nothing (2.6), 512 channels 38x38 to 128 lose 5 %
// (8.5).
constexpr double kPackedResults = 2.5;

// Whether x is packed where windows share nothing: one tap that moves by steps, for which elements between those that
// it reads are packed, too, or patches. In place an image from memory waits for each of its lines, in turn for every
// block of columns: 1024 channels 14x14 to 2048, 32 images, take 2.6 times as long, those of volumes with rows of 7
// pixels half (Zen 5). On a Zen 3, where neighbours share the last cache and vectors are narrower, so that there are
// more blocks: steps of 2 on 13 to 25 MB 1.3 to 4 times, on 5 to 6 MB 1.7 to 2.8 times, patches of 2x2 on 7 to 20
// MB 1.4 to 1.7 times, those of 4x4 and 16x16 of 3 channels on 5 MB 1.9 times, on 2.4 MB 1 to 1.35 times as long.
template <class T>
bool packs_apart(const Problem& p, const KernelSet<T>& kernels) {
  constexpr double kFar = 10 << 20, kFarNarrow = 2 << 20, kMostSpread = 3;
  constexpr double kSpread = 1.5;  // of images in a cache: 48 channels 64x64 to 96 lose 7 %
  if (p.stride == Index3{1, 1, 1} || p.depthwise() || p.ci * p.taps() < kernels.lanes) return false;
  for (std::size_t a = 0; a < 3; ++a)
    if (p.stride[a] <= (p.w[a] - 1) * p.dilation[a]) return false;
  const double spread =
      static_cast<double>(round_up(p.y[2] * p.stride[2], kernels.lanes)) / static_cast<double>(p.y[2] * p.w[2]);
  const auto pixels = static_cast<double>(p.n * p.y_plane()), ci = static_cast<double>(p.ci),
             co = static_cast<double>(p.co);
  const double channels = static_cast<double>(p.n * p.groups * p.ci) * sizeof(T);
  const auto plane = static_cast<double>(p.x_plane()),
             rows = static_cast<double>(p.y[0] * p.w[0] * p.y[1] * p.w[1] * p.x[2]);  // those that windows read
  const bool far = channels * plane > kFar || (narrow(kernels) && channels * rows > kFarNarrow);
  const bool again = p.co > widest_block(kernels, p.co) * kernels.lanes;
  const bool padded = p.pad_before != Index3{};  // which takes a copy with a border
  if (far && again && spread <= kMostSpread && (p.taps() == 1 || !padded)) return true;
  return p.taps() == 1 && !padded && (kSpread * spread * ci - co) * pixels < kPackedResults * ci * co;
}

template <class T>
bool exchanges_roles(const Problem& p, const KernelSet<T>& kernels) {
  constexpr double kGain = 1.1;  // estimates of less are wrong as often as right
  if (p.stride != Index3{1, 1, 1}) return false;
  if (p.pointwise()) {  // results are rows of w then, which need not be transposed
    if (p.ci >= kernels.lanes &&
        static_cast<double>((p.ci - p.co) * p.n * p.y_plane()) < kPackedResults * static_cast<double>(p.ci * p.co))
      return true;
    if (p.co > kFewChannels) return false;  // packing planes from memory takes several times as long
  }
  const auto products = static_cast<double>(p.taps() * p.y_plane());
  return kernels.any_bstep && kGain * gathered_weights(kernels, p.co, p.ci, products, p.ci * p.x_plane()) <
                                  gathered_weights(kernels, p.ci, p.co, products, p.co * p.y_plane());
}

template <class T>
bool unrolls_windows(const Problem& p, const KernelSet<T>& kernels) {
  constexpr Index kMost = 256;  // pixels: 512 took 1.08 to 1.15 times as long
  if (!kernels.any_bstep || p.depthwise()) return false;
  if (packs_apart(p, kernels)) return true;
  return p.taps() > 1 && p.n * p.y_plane() <= kMost &&
         unrolled_nanoseconds(p, kernels) < by_taps_nanoseconds(p, kernels);
}

double products_inside(const Problem& p) {
  constexpr double kMost = 0.8;  // as 0.75; counting them never or always costs 0.5 % on average (Zen 5, 160 problems)
  const double inside = every_product_inside(p), all = static_cast<double>(p.y_plane() * p.taps());
  return inside < kMost * all ? inside : all;
}

template <class T>
double direct_nanoseconds(const PassSpec& spec, const KernelSet<T>& kernels, bool tiles) {
  const Problem& p = spec.problem;
  const int lanes = kernels.lanes;
  if (p.depthwise()) return depthwise_nanoseconds(spec, lanes);
  if (spec.unknown == Unknown::w && unrolls_windows(p, kernels))
    return 2000 + 1.5 * static_cast<double>(p.groups) * unrolled_nanoseconds(p, kernels);  // of a Sapphire Rapids
  const double images = static_cast<double>(p.n * p.groups);
  const double x = images * static_cast<double>(p.ci * p.x_plane()),
               y = images * static_cast<double>(p.co * p.y_plane());
  const double w = static_cast<double>(p.groups * p.ci * p.co * p.taps());
  const bool of_ci = spec.unknown == Unknown::x || (spec.unknown == Unknown::w && exchanges_roles(p, kernels));
  const Index columns = of_ci ? p.ci : p.co;
  const double wasted = whole_vectors(columns, lanes);
  double time =
      images * static_cast<double>(p.ci * p.co) * products_inside(p) / lanes * 0.18 * (columns > lanes ? wasted : 1);
  if (tiles && spec.unknown != Unknown::w) time *= tile_waste(spec, kernels);
  const bool of_y = spec.unknown == Unknown::x, patches = of_y && p.stride == p.w;
  time += of_y ? 2500 : 2000;  // rows and columns of some pixels take 0.5 to 0.6 of gather's time
  // What is not of the compute type is copied, once for each block of channels (patches have those of all taps).
  if (const DType t = (of_y ? spec.operands.y : spec.operands.x).dtype; t != DType::float32 && t != DType::float64) {
    const double planes = images * static_cast<double>(of_y ? p.co * p.y[0] : p.ci * p.x[0]);
    const Index blocks = ceil_div(columns * (patches ? p.taps() : 1), 4 * lanes);
    const double element = !of_y && p.stride[2] > 1 ? 0.2 : 0.1;  // what strides leave out is copied too
    time += static_cast<double>(blocks) * (5 * planes + element * (of_y ? y : x));
  }
  if (spec.unknown == Unknown::w) return time + 0.15 * (x + y) + (outer_product(p) || one_output(p) ? 0.2 : 0.8) * w;
  const double pixels = of_y ? 0.35 * x + 0.1 * y : 0.1 * x + 0.35 * y;
  const double packed = (one_output(p) ? 0.12 : 0.4) * w;
  const bool single = p.y[2] == 1 && std::min(p.x[2], p.w[2]) > 1;  // window: as if the stride were its length
  if (!of_y || (p.stride[2] == 1 && !single)) return time + pixels + packed;
  // Phases have fewer pixels each. All of them are transposed into place together, or else rows are put together from
  // them, which takes longer than their pixels, if they are short. Pixels of patches have one tap (Zen 5, 24 problems).
  time *= patches ? 0.95 : 1.15;
  const std::array<AxisMap, 3> maps = gather_maps(p, true, lanes);
  const std::vector<PhaseSet> sets = phase_sets(maps);
  if (!single && (one_member(sets) || (columns >= lanes && p.stride[2] < p.w[2])))
    return time + kSet * static_cast<double>(sets.size()) * gather_chunks(spec, sets, false, kernels) +
           0.2 * wasted * x + 0.1 * y + packed;
  const double rows =
      images * static_cast<double>(p.ci * std::min(p.x[0], p.y[0] * p.w[0]) * std::min(p.x[1], p.y[1] * p.w[1]));
  return time + 0.8 * x + 0.1 * y + 0.45 * w + rows * std::max(0.0, 20 - 0.35 * static_cast<double>(p.x[2]));
}

template double gather_chunks(const PassSpec&, const std::vector<PhaseSet>&, bool, const KernelSet<float>&);
template double gather_chunks(const PassSpec&, const std::vector<PhaseSet>&, bool, const KernelSet<double>&);
template double direct_nanoseconds(const PassSpec&, const KernelSet<float>&, bool);
template double direct_nanoseconds(const PassSpec&, const KernelSet<double>&, bool);
template bool unrolls_windows(const Problem&, const KernelSet<float>&);
template bool unrolls_windows(const Problem&, const KernelSet<double>&);
template bool exchanges_roles(const Problem&, const KernelSet<float>&);
template bool exchanges_roles(const Problem&, const KernelSet<double>&);

}  // namespace convbwd

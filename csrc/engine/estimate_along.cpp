// What passes with vectors along pixels are expected to cost, and gather beside them, by the cycles of their kernels.
#include <cmath>
#include <limits>
#include <optional>

#include "engine/estimate.h"
#include "engine/planes.h"
#include "engine/stack.h"

namespace convbwd {
namespace {

constexpr double kRun = 256 << 10;  // bytes of an image, of which dots read an eighth at a time
constexpr Index kSmallPlane = 2048;

// How results share rows of the source, if that is worth while.
std::optional<Stack> shared_rows(const PhaseSet& s, Index channels, Index src_step) {
  const Stack stack = stack_of(s, channels, src_step);
  if (!stack.serves(s.columns(channels), s.phase[1]->count, s.phase[2]->count)) return std::nullopt;
  return stack;
}

// What remains of the time of a set's products in rows, `row` times as long as their results, where results share rows
// of the source with those below: loads at first, then multiply-adds (Zen 5, 3x3 to 31x31).
double stacked(const PhaseSet& s, const std::optional<Stack>& shared, double row, int lanes) {
  if (!shared) return 1;
  const Index width = s.phase[2]->count;
  return std::max(0.5, 0.4 + 0.8 / static_cast<double>(shared->block(0).size())) *
         static_cast<double>(round_up(width, lanes)) / (row * static_cast<double>(width));
}

// What the kernels do in a cycle: two multiply-adds, or two loads, of which a vector across two lines of the cache is
// two; a sum waits four for its last product.
constexpr double kLatency = 4;

// Of a tile of products of `rows` operands with `columns` vectors that lie across lines.
template <class T>
double tile_cycles(Index rows, Index columns, const KernelSet<T>& kernels) {
  const double loads = 1 + static_cast<double>(kernels.lanes) * sizeof(T) / 64;
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  return std::max({m * n / 2, (m + loads * n) / 2, kLatency});
}

// Cycles of rows for a product of `results` results with so many vectors of pixels.
template <class T>
double rows_cycles(Index vectors, Index results, const KernelSet<T>& kernels) {
  double cycles = 0;
  for (Index left = results; left > 0; left -= kernels.rows_mr) {
    const int rows = static_cast<int>(std::min<Index>(left, kernels.rows_mr));
    const Index widest = rows_vectors(kernels.rows_mr, rows);
    const Index blocks = ceil_div(vectors, widest), narrow = vectors / blocks, wider = vectors % blocks;
    cycles += static_cast<double>(blocks - wider) * tile_cycles(rows, narrow, kernels) +
              static_cast<double>(wider) * tile_cycles(rows, narrow + 1, kernels);
  }
  return cycles;
}

// Cycles of operands that come from memory.
template <class T>
double far_cycles(const Problem& p, double element) {
  constexpr double kFarElements = (12 << 20) / sizeof(T);
  const auto elements = static_cast<double>(p.n * p.groups * (p.ci * p.x_plane() + p.co * p.y_plane()));
  return elements > kFarElements ? element * elements : 0;
}

// Cycles of a Rows and of a Gather pass. The factors were fitted to 701 results of problems in one to three dimensions,
// of up to 32 channels on one side and 128 on the other, 1 to 32 images, 1 to 108 groups (Zen 5, AVX-512 float32). The
// slower of the two is chosen for one in 12, which costs all of them 1.4 % on average.
template <class T>
double rows_pass_cycles(const PassSpec& spec, const KernelSet<T>& kernels) {
  constexpr double kProduct = 0.71, kSum = 5.4, kCall = 215, kCopied = 0.5, kRow = 4.6, kImage = 320;
  // Packing a weight of one result, of several, and of several by a transposition, and that by itself.
  constexpr double kListed = 1.5, kWeight = 3.6, kTransposed = 0.7, kTransposition = 45;
  constexpr double kElement = 0.25;
  constexpr double kJoined = 0.64, kSplit = 1.05;  // elements that are not put together, or split, in pairs
  const Problem& p = spec.problem;
  const bool to_x = spec.unknown == Unknown::x;
  const Index sources = to_x ? p.co : p.ci, results = to_x ? p.ci : p.co;
  const Index3 &source = to_x ? p.y : p.x, &result = to_x ? p.x : p.y;
  const std::array<AxisMap, 3> maps = axis_maps(p, to_x ? map_transposed : map_forward);
  const Index3 pixels = most_pixels(maps);
  const Planes planes(maps, pixels, Planes::Borders::shared);
  const std::vector<PhaseSet> sets = phase_sets(maps);
  // Results leave the rest of a box to a chunk of the sources. (Boxes that are cut along d are left out.)
  Index stored = 0;
  for (const PhaseSet& s : sets) stored += s.taps ? s.columns(results) * planes.plane() * pixels[0] : 0;
  const Index least = least_rows_chunk(p);
  Index chunk = sources;
  while ((planes.channel() * chunk + stored) * static_cast<Index>(sizeof(T)) > kBoxBytes && chunk > least)
    chunk = std::max(least, ceil_div(chunk, 2));
  const Index chunks = ceil_div(sources, chunk);
  const bool one = one_result(sets);
  const bool shared = one && shared_rows(sets[0], results, maps[1].src_step);
  const bool apart = one && !shared &&
                     row_by_row(std::min<Index>(results, kernels.rows_mr), result[2], planes.row(),
                                chunk * sets[0].taps, kernels.lanes);
  double cycles = kImage + kCopied * static_cast<double>(sources * planes.channel()) +
                  kRow * static_cast<double>(sources * source[0] * source[1] +
                                             (shared || apart ? 0 : results * result[0] * result[1]));
  bool holes = false;
  for (const PhaseSet& s : sets) {
    const Index depth = s.phase[0]->count, height = s.phase[1]->count, width = s.phase[2]->count;
    holes |= s.taps == 0;
    if (s.taps == 0 || depth * height * width == 0) continue;
    const Index flat = ceil_div((depth - 1) * planes.plane() + (height - 1) * planes.row() + width, kernels.lanes);
    const Index lines = apart ? depth * height : 1, vectors = apart ? ceil_div(width, kernels.lanes) : flat;
    const Index columns = s.columns(results), products = sources * s.taps,
                sums = chunks * ceil_div(chunk * s.taps, kStraight);
    cycles += kProduct * static_cast<double>(lines * products) * rows_cycles(vectors, columns, kernels) *
                  stacked(s, shared_rows(s, results, maps[1].src_step),
                          static_cast<double>(planes.row()) / static_cast<double>(width), kernels.lanes) +
              static_cast<double>(sums) * (kSum * static_cast<double>(lines * vectors * columns) +
                                           kCall * static_cast<double>(ceil_div(columns, kernels.rows_mr)));
  }
  if (p.stride[2] > 2 || (p.stride[2] == 2 && to_x && holes))
    cycles += (to_x ? kJoined : kSplit) * static_cast<double>((to_x ? results : sources) * p.x_plane());
  const RowsBatch batch = rows_batch(p, kernels.lanes, 1, chunks == 1);
  const Index sharing = chunks == 1 && !batch.image_by_image ? std::min(p.n, batch.images) : 1;
  const bool transposed = results > 1 && one_member(sets);
  const double packing =
      (results == 1 ? kListed
       : transposed ? kTransposed
                    : kWeight) *
          static_cast<double>(sources * results * p.taps()) +
      (transposed ? kTransposition * static_cast<double>(sources * ceil_div(results, kernels.rows_mr)) : 0);
  return static_cast<double>(p.n * p.groups) * (cycles + packing / static_cast<double>(sharing)) +
         far_cycles<T>(p, kElement);
}

constexpr double kBox = kBoxPixels;
constexpr double kTiles = 25, kRectangle = 72;  // of a vector of a tile's columns, and of pixels with the same taps

// f(pixels, taps) for the pixels of some images that read the same taps.
template <class F>
void each_rectangle(const PhaseSet& s, double images, F&& f) {
  for (const Phase::Run& d : s.phase[0]->runs)
    for (const Phase::Run& h : s.phase[1]->runs)
      for (const Phase::Run& w : s.phase[2]->runs)
        f(images * static_cast<double>((d.end - d.begin) * (h.end - h.begin) * (w.end - w.begin)),
          static_cast<double>(d.inside.size() * h.inside.size() * w.inside.size()));
}

// Cycles of a product of so many rows with some vectors of columns, in tiles of `tile` rows, of which the last takes
// `least` at least.
double tiles_cycles(double rows, double tile, double vectors, double least) {
  const double whole = std::floor(rows / tile), rest = rows - whole * tile;
  return whole * std::max(kLatency, tile * vectors / 2) + (rest > 0 ? std::max(least, rest * vectors / 2) : 0);
}

template <class T>
double gather_pass_cycles(const PassSpec& spec, const KernelSet<T>& kernels, bool by_taps) {
  constexpr double kTile = 8;  // pixels
  constexpr double kProduct = 1, kPixel = 8.4, kPacked = 0.46, kScattered = 2.7, kGroup = 790, kPass = 600,
                   kElement = 0.1;
  const Problem& p = spec.problem;
  const bool to_x = spec.unknown == Unknown::x;
  const Index sources = to_x ? p.co : p.ci, results = to_x ? p.ci : p.co;
  std::array<AxisMap, 3> maps = gather_maps(p, to_x, kernels.lanes);
  if (by_taps) run_by_taps(maps[2]);
  const std::vector<PhaseSet> sets = phase_sets(maps);
  double volume = 0;
  for (const PhaseSet& s : sets)
    volume += static_cast<double>(s.phase[0]->count * s.phase[1]->count * s.phase[2]->count);
  const auto images = static_cast<double>(p.n);
  const double together = std::clamp(kBox / volume, 1.0, images);  // images of a box, of which one may take several
  const double turns = static_cast<double>(p.groups) * std::ceil(images / together),
               boxes = std::max(1.0, volume / kBox);
  const double chunks = by_taps ? gather_chunks(spec, sets, true, kernels) : 1;
  double cycles = 0;
  for (const PhaseSet& s : sets) {
    if (s.taps == 0) continue;
    // Of members with several taps each, those of a column lie apart.
    cycles += boxes * (s.members > 1 && s.taps > 1 ? kScattered : kPacked) *
              static_cast<double>(sources * s.columns(results) * s.taps);
    const int lanes = half_vectors_serve(spec) ? filled_kernels(kernels, s.columns(results)).lanes : kernels.lanes;
    const double vectors = static_cast<double>(round_up(s.columns(results), lanes)) / kernels.lanes;
    each_rectangle(s, together, [&](double pixels, double taps) {
      cycles += kProduct * tiles_cycles(pixels, kTile, vectors, kLatency) * taps * static_cast<double>(sources) +
                boxes * (kRectangle + chunks * kTiles * std::ceil(pixels / boxes / kTile) * vectors);
    });
  }
  return kPass + kGroup * static_cast<double>(p.groups) + turns * cycles + far_cycles<T>(p, kElement) +
         kPixel * images * static_cast<double>(p.groups * (to_x ? p.x_plane() : p.y_plane()));
}

// Cycles of a pair of channels in the tiles of a Gather pass: of products, and if tiles were full, and to begin tiles
// that add to results.
struct Tiles {
  double products = 0, least = 0, beginning = 0;
};
// Tiles of a few rows wait for the panel: dx of valid windows of 5x5 and 7x7 on small planes takes up to 2.4 times as
// long as by columns (over 90 problems the choice costs 2.7 %, without this 7.1; Zen 5). Columns of fewer channels than
// lanes take a vector.
template <class T>
Tiles tiles(const PassSpec& spec, bool by_taps, const KernelSet<T>& kernels) {
  constexpr double kLoaded = 2;  // cycles that a vector of a panel takes from the second-level cache
  const Problem& p = spec.problem;
  const bool to_x = spec.unknown == Unknown::x;
  std::array<AxisMap, 3> maps = gather_maps(p, to_x, kernels.lanes);
  if (by_taps) run_by_taps(maps[2]);
  const std::vector<PhaseSet> sets = phase_sets(maps);
  const double chunks = gather_chunks(spec, sets, by_taps, kernels);
  const auto sources = static_cast<double>(to_x ? p.co : p.ci);
  Tiles all;
  for (const PhaseSet& s : sets) {
    if (s.taps == 0) continue;
    const Index columns = s.columns(to_x ? p.ci : p.co);
    const KernelSet<T>& k = half_vectors_serve(spec) ? filled_kernels(kernels, columns) : kernels;
    const int block = widest_block(k, columns);
    const double vectors = block, filled = static_cast<double>(columns) / k.lanes,
                 rows = std::min(k.gather[block - 1].mr, kPointers);
    const auto volume = static_cast<double>(s.phase[0]->count * s.phase[1]->count * s.phase[2]->count);
    const double images = std::clamp(std::floor(kBox / volume), 1.0, static_cast<double>(p.n));  // of a box
    each_rectangle(s, images, [&](double pixels, double taps) {
      all.products += taps * tiles_cycles(pixels, rows, vectors, std::max(kLatency, kLoaded * vectors));
      all.beginning += (kRectangle + chunks * kTiles * std::ceil(pixels / rows) * vectors) / sources;
      all.least += taps * pixels * (columns < k.lanes ? filled : vectors) / 2;
    });
  }
  return all;
}

// Cycles of a GatherWeights and of a Dots pass. The factors were fitted to 286 problems in one to three dimensions, of
// up to 128 channels on one side and few on the other (Zen 5, AVX-512 float32). The slower of the two is chosen for one
// in 15, which costs all of them 1.6 % on average.
template <class T>
double gather_weights_cycles(const Problem& p, const KernelSet<T>& kernels) {
  constexpr double kProduct = 1.01, kPacked = 0.41, kStored = 2.3, kPass = 600;
  struct Taps {
    Index together, outputs;  // taps of a class, outputs of all classes that have so many
  };
  std::array<std::vector<Taps>, 3> axes;
  for (std::size_t a = 0; a < 3; ++a)
    for (const TapClass& c : tap_classes(axis_sizes(p, a))) {
      const auto same =
          std::find_if(axes[a].begin(), axes[a].end(), [&](const Taps& t) { return t.together == c.taps.size(); });
      if (same != axes[a].end())
        same->outputs += c.outputs.size();
      else
        axes[a].push_back({c.taps.size(), c.outputs.size()});
    }
  const int widest = widest_block(kernels, p.co);
  double products = 0;
  for (const Taps& d : axes[0])
    for (const Taps& h : axes[1])
      for (const Taps& w : axes[2])
        for (Index n = p.co; n > 0; n -= widest * kernels.lanes) {
          const Index vectors = std::min<Index>(widest, ceil_div(n, kernels.lanes)),
                      mr = kernels.gather[vectors - 1].mr, rows = p.ci * d.together * h.together * w.together;
          products +=
              tiles_cycles(static_cast<double>(rows), static_cast<double>(mr), static_cast<double>(vectors), kLatency) *
              static_cast<double>(d.outputs * h.outputs * w.outputs);
        }
  const double image = kProduct * products + kPacked * static_cast<double>(p.co * p.y_plane());
  return kPass + static_cast<double>(p.n * p.groups) * image +
         kStored * static_cast<double>(p.groups * p.ci * p.co * p.taps());
}

template <class T>
double dots_cycles(const Problem& problem, const KernelSet<T>& kernels) {
  const Problem p = dots_exchange_roles(problem, kernels) ? exchanged(problem) : problem;
  const bool masked = masks_padding(p, kernels);
  constexpr double kProduct = 1.05, kSource = 0.29, kCopied = 0.56, kPlane = 42, kPass = 400;
  // Of a row that is copied (400 problems with rows of 5 to 64 elements: chosen wrongly they take 1.6 % longer, without
  // this 2.3 %; Zen 4).
  constexpr double kRow = 2;
  // Single taps share no row of sums: 8 to 256 channels, 8 images of 7x7, take 24 a sum (Zen 4).
  const double sum = p.pointwise() ? 24 : 7.5;
  const Planes flat(axis_maps(p, map_forward), p.y, Planes::Borders::shared);
  const auto pixels =
      static_cast<double>(masked ? p.x_plane() : (p.y[0] - 1) * flat.plane() + (p.y[1] - 1) * flat.row() + p.y[2]);
  // Rows of tiles are output channels, or taps along h where there is one, or copies of all of them are masked.
  const Index down = masked ? p.w[p.first_axis()] : p.co == 1 && p.stride[1] == 1 ? p.w[1] : 1;
  const Index rows = p.co * down, columns = p.taps() / down;
  // Few taps share tiles with those of other channels.
  const Index together = masked      ? std::min<Index>(kernels.dots_nt, p.ci)
                         : down == 1 ? std::clamp<Index>(kernels.dots_nt / columns, 1, p.ci)
                                     : 1,
              all = together * columns;
  double tiles = 0;
  for (Index m0 = 0; m0 < rows; m0 += kernels.dots_mr)
    for (Index n0 = 0; n0 < all; n0 += kernels.dots_nt)
      tiles += tile_cycles(std::min<Index>(kernels.dots_mr, rows - m0), std::min<Index>(kernels.dots_nt, all - n0),
                           kernels) /
               static_cast<double>(together);
  const auto copying = [](Index channels, const Index3& size, double element) {
    return static_cast<double>(channels * size[0] * size[1]) * (kRow + element * static_cast<double>(size[2]));
  };
  const double copied =
      p.pointwise() ? 0
                    : (masked ? 0 : copying(p.ci, p.x, kSource)) + copying(p.co * (masked ? columns : 1), p.y, kCopied);
  return kPass + static_cast<double>(p.n * p.groups) *
                     (static_cast<double>(p.ci) * (kPlane + kProduct * tiles * pixels / kernels.lanes +
                                                   sum * static_cast<double>(p.co * p.taps())) +
                      copied);
}

}  // namespace

// Vectors of rows and dots lie across cache lines, their rows have borders, and small planes are mostly overhead. Steps
// of two are split with shuffles, longer ones element by element. Planes from memory take 1.2 to 2.5 times as long,
// where those of lanes take 1 to 1.6 times (Zen 5; 70 problems of 16 to 144 channels, 17 of single rows).
double depthwise_nanoseconds(const PassSpec& spec, int lanes) {
  constexpr double kDirect = 0.91;  // results of single rows are formed in the image (Zen 5, 40 problems)
  const Problem& p = spec.problem;
  const double pixels = static_cast<double>(p.x_plane() + p.y_plane()), taps = static_cast<double>(p.taps());
  const double row = 1 + static_cast<double>((p.w[2] - 1) * p.dilation[2]) / static_cast<double>(p.y[2] * p.stride[2]);
  const bool line = p.x[0] * p.x[1] == 1;
  const double pixel = line ? 0.145 : 0.19;  // a single row has no other's borders
  const bool to_x = spec.unknown == Unknown::x, of_w = spec.unknown == Unknown::w;
  const double split = 90 + (to_x ? 0.004 : 0.012) * pixels * taps;
  const bool steps = p.stride[1] * p.stride[2] > 1;
  const double strided = p.stride[2] > 2 ? 0.68 * pixels : steps ? split : 0;
  const auto bytes = static_cast<double>(size_of(spec.operands.x.dtype));
  const bool far = static_cast<double>(p.n * p.groups) * pixels * bytes > kFromMemory;
  // Rows that are read one behind the other, and small planes: prefetchers follow. dots read some channels of an image.
  const bool fluent = of_w ? line && static_cast<double>(p.groups * p.x[2]) * bytes >= kRun
                           : line || (!steps && p.x_plane() <= kSmallPlane);
  const double element = !far || fluent ? 0 : of_w ? 0.5 : steps && !to_x ? 0.4 : 0.25;
  // Phases are interleaved by half as many elements at a time (40 problems with steps of 2, 24 to 192 channels: 0.7 to
  // 0.9 of the time by lanes, and none is slower; Zen 3).
  const bool narrow = lanes * (spec.operands.x.dtype == DType::float64 ? 8 : 4) <= 32;
  double quick = to_x && steps ? (narrow ? 1.2 : 0.95) : of_w && !steps && p.x[0] == 1 ? 0.75 : 1;
  if (line) quick = to_x && steps ? 0.65 : fluent && far ? 0.6 : 0.75;  // lanes take longer for those from memory
  const auto planes = static_cast<double>(p.n * p.groups);
  double products = planes * 0.4 / lanes * row * (line && !of_w ? 1 : quick);
  if (of_w) {
    products *= taps * static_cast<double>(p.y_plane());
  } else {
    const std::array<AxisMap, 3> maps = axis_maps(p, to_x ? map_transposed : map_forward);
    // Every result takes all of its taps: of x far more than there are pairs where windows are like the image.
    for (const AxisMap& map : maps) {
      double along = 0;
      for (const Phase& f : map.phases)
        along += static_cast<double>(f.count) * static_cast<double>(f.offset.size() * f.members.size());
      products *= along;
    }
    const PhaseSet first = phase_set(maps[0].phases[0], maps[1].phases[0], maps[2].phases[0]);  // of perhaps thousands
    const Index channels = to_x ? p.ci : p.co;
    const std::optional<Stack> shared = shared_rows(first, channels, maps[1].src_step);
    products *= stacked(first, shared, row, lanes);
    if (!steps && shared) products *= kDirect, quick *= kDirect;
  }
  return 2000 + products + quick * planes * (60 + pixel * pixels + 0.4 * taps + strided) +
         planes * element * static_cast<double>(p.x_plane());
}

// The better tiles, and whether they are those of sums of single taps.
template <class T>
std::pair<bool, Tiles> best_tiles(const PassSpec& spec, const KernelSet<T>& kernels) {
  // Over 550 problems of 3 to 9 taps along an axis, on planes of 4x4 to 28x28, the choice costs 0.5 %, one or the other
  // for all 4.3 and 10.4 %; over 200 from a few channels 1.3 % (Zen 4).
  constexpr double kWorthwhile = 0.95, kWriting = 0.5;  // instead of adding
  if (spec.sums[3] > 0) {
    const bool by_taps = GatherSums::of(spec.sums).by_taps;
    return {by_taps, tiles(spec, by_taps, kernels)};
  }
  const Tiles all = tiles(spec, false, kernels);
  if (!kernels.any_bstep || spec.problem.pointwise()) return {false, all};
  const Tiles one = tiles(spec, true, kernels);
  const bool by_taps = one.products + one.beginning < kWorthwhile * (all.products + kWriting * all.beginning);
  return {by_taps, by_taps ? one : all};
}

template <class T>
bool sums_by_taps(const PassSpec& spec, const KernelSet<T>& kernels) {
  return best_tiles(spec, kernels).first;
}

template <class T>
double tile_waste(const PassSpec& spec, const KernelSet<T>& kernels) {
  const auto [by_taps, all] = best_tiles(spec, kernels);
  return all.least > 0 ? (all.products + (by_taps ? all.beginning : 0)) / all.least : 1;
}

RowsBatch rows_batch(const Problem& p, Index lanes, Index boxes, bool whole) {
  constexpr Index kTaskProducts = 1 << 16;  // products worth a task of its own
  constexpr Index kPacking = 64;  // vectors that a packed weight is to meet: more images share a task until then
  // The same, where a channel has its own: 2048 rows of 256 pixels, 8 images, take 0.45 of the time (Zen 5).
  constexpr Index kPackingAlone = 8;
  const bool image_by_image = (p.depthwise() ? kPackingAlone : kPacking) * lanes * boxes <= p.y_plane();
  const Index products = std::max<Index>(1, p.y_plane() * p.taps() * p.ci * p.co / boxes);
  const Index sharing = whole && !image_by_image ? std::min(kPacking * lanes * boxes / p.y_plane(), p.n) : 0;
  return {std::clamp<Index>(std::max(kTaskProducts / products, sharing), 1,
                            std::max<Index>(1, p.n * p.groups * boxes / 16)),
          image_by_image};
}

Index least_rows_chunk(const Problem& p) { return std::max<Index>(4, kStraight / p.taps()); }

// Where a result is the sum of few products, gather transposes more than it multiplies. Along pixels take, of its time,
// x of pointwise problems with 16 to 128 channels from 1 to 8, 14x14 to 112x112 pixels, 0.55 to 0.95 (AVX2 0.3 to 0.9),
// up to 64 from 16 0.7 to 0.9, but of small images more of them up to twice as long; 96 and 256 channels from 1 to 4
// with windows of 3x3, and from 1 with 5x5, 96x96 pixels, 0.54 to 0.85, 96 channels 28x28 from 1 0.64 (7x7 1.6); rows
// of 1000 pixels from 1 to 6, with 3 taps, 0.35 to 0.79 (512 channels 1.4 to 1.75, Zen 4).
bool few_products(const Problem& p, Index lanes) {
  const Index products = p.co * p.taps();
  const bool large = p.y_plane() >= kSmallPlane, few = p.ci <= 2048 / lanes;
  if (p.pointwise()) return products <= 8 ? few || large : products <= 16 && p.ci <= 64 && large;
  if (p.stride != Index3{1, 1, 1}) return false;
  return large ? products <= 36 : few && p.y_plane() >= 128 && products <= (p.x[0] * p.x[1] == 1 ? 18 : 9);
}

template <class T>
bool along_pixels(const PassSpec& spec, Index width, const KernelSet<T>& kernels) {
  const Problem& p = spec.problem;
  const bool of_w = spec.unknown == Unknown::w;
  // Sums over a few pixels are sums over images, of which vectors along pixels hold one each.
  if (of_w && outer_product(p)) return std::max(p.ci, p.co) <= kFewChannels;
  const bool exchanges = of_w && exchanges_roles(p, kernels);
  const bool short_sums = spec.unknown == Unknown::x && few_products(p, kernels.lanes);
  if (p.pointwise() && short_sums) return true;
  // Pointwise problems may be read in place, depthwise ones are compared with lanes. Wider results of many sources, or
  // with steps, are hardly ever quicker so; of few sources gather transposes more than it multiplies (3 to 32 channels
  // 48x48, y, 0.8 of the time, Zen 5).
  constexpr Index kFewSources = 16;
  const bool few = p.stride == Index3{1, 1, 1} && (spec.unknown == Unknown::x ? p.co : p.ci) <= kFewSources;
  const Index most = p.depthwise() || (p.pointwise() && !of_w) ? 1
                     : p.pointwise()                           ? 3
                     : of_w || few                             ? 8
                     : spec.unknown == Unknown::x              ? 4
                                                               : 3;
  // Where one side of a pointwise problem has fewer channels than a vector has lanes, those of the other are not worth
  // their packing: 1 to 14 channels on one side and 32 to 160 on the other take 0.2 to 0.75 of the time by dots, but
  // from memory 1 to 1.2, with 8 lanes up to 2 (Zen 4).
  constexpr double kCached = 8 << 20;
  const auto bytes = [&](Index channels, Index plane) {
    return static_cast<double>(p.n * p.groups * channels) * static_cast<double>(plane) * sizeof(T);
  };
  const double of_x = bytes(p.ci, p.x_plane()), of_both = of_x + bytes(p.co, p.y_plane());
  const bool cached = of_both <= kCached;
  // From few input channels to more, images of more bytes: one to 64 channels 64x64 takes 0.2 to 0.55 of the time, two
  // to four 0.3 to 0.7 up to 24 MiB, but beyond up to 1.4, eight and twelve 0.55 to 0.9 up to 10 MiB (with AVX2 0.35 to
  // 1.07, 1; Zen 4).
  const double reach = p.ci >= p.co ? 1 : p.ci == 1 ? std::numeric_limits<double>::infinity() : p.ci <= 4 ? 3 : 1.5;
  const bool uneven = of_w && p.pointwise() && std::min(p.ci, p.co) < kernels.lanes && of_both <= reach * kCached;
  if (of_w && p.pointwise() && p.co < p.ci && !cached) {
    // Few output channels take 0.2 to 0.85 of the time by dots, but 5 to 8 from far more than the caches up to 1.2. Of
    // 8 lanes gather_weights leaves fewer idle: 1 to 3 take 0.3 to 1, 6 from more than 16 MB 1.5 to 2 (Zen 4; 16 to 512
    // input channels).
    constexpr Index kWide = 16;
    if (p.co <= (kernels.lanes < kWide ? 3 : of_x <= 4 * kCached ? kFewChannels : 4)) return true;
    if (kernels.lanes < kWide && of_x > 2 * kCached) return false;
  }
  if (width > most * kFewChannels && !uneven && !(of_w && dots_exchange_roles(p, kernels))) return short_sums;
  // Of as many output channels as lanes, packed columns are whole vectors: 256 to 8 channels, 8 images of 7x7, take 0.2
  // of the time of dots (AVX2).
  const Index few_columns = of_w ? std::min<Index>(kFewChannels, kernels.lanes - 1) : kFewChannels;
  if ((p.pointwise() && !exchanges && width <= few_columns) || p.depthwise()) return true;
  const Index columns = of_w ? columns_of_weights(p, kernels) : width;
  const bool half = 2 * columns <= kernels.lanes && &filled_kernels(kernels, columns) != &kernels;
  if (!of_w) {
    constexpr double kHalf = 0.85;  // 320 problems of 4 to 8 results: chosen wrongly they take 1.6 % longer (Zen 4)
    const double gather = std::min(gather_pass_cycles(spec, kernels, false), gather_pass_cycles(spec, kernels, true));
    return rows_pass_cycles(spec, kernels) < (half && half_vectors_serve(spec) ? kHalf : 1) * gather;
  }
  // Steps through an image from memory are fetched ahead by dots. gather_weights waits, and is no quicker than this
  // where results leave lanes idle (Zen 5: groups of 8 and 12 channels, 56x56 and 112x112 pixels).
  constexpr double kSteps = 1.25;
  if (p.pointwise()) {
    // Where packed columns fill vectors, or so many rows come from beyond the caches, gather_weights takes 0.6 to 0.9
    // of the time of dots, whatever the estimates say (Zen 5, 160 problems of 16 to 192 channels).
    constexpr Index kManyRows = 64;
    const bool fills = (exchanges ? p.ci : p.co) % kernels.lanes == 0 && std::max(p.ci, p.co) > kernels.lanes;
    if ((fills && !uneven) || (p.ci > kManyRows && of_x > kCached)) return false;
  }
  // Half vectors take twice as many products (Zen 4, groups of 8 channels: 0.66 to 0.85 of the time).
  constexpr double kHalf = 0.76;
  const double waits = p.stride != Index3{1, 1, 1} && of_x > kFromMemory && p.co < kernels.lanes ? kSteps : 1;
  return dots_cycles(p, kernels) <
         (half ? kHalf : waits) * gather_weights_cycles(exchanges ? exchanged(p) : p, kernels);
}

template <class T>
bool masks_padding(const Problem& p, const KernelSet<T>& kernels) {
  const std::size_t a = p.first_axis();
  const Index length = p.w[a];
  if (p.stride != Index3{1, 1, 1} || length == 1) return false;
  // Taps along one axis need one copy: one output channel takes 0.35 to 0.8 of the time, up to 4 take 0.75 to 0.9 with
  // many input channels, but not with few (2 to 2, 1.3; 8 to 4, 0.9 to 1.1; all of a Zen 5).
  if (p.taps() == length) return p.co <= 4 && p.ci >= (p.co == 1 ? 2 : 3 * p.co);
  // Tiles of fewer than three rows load more than they multiply: 5x5 windows, whose rows need two tiles, take 1.05 to
  // 1.3 times as long as with a border around x, 7x7 windows 0.86, 3x3 and 4x4 windows 0.6 to 0.8, to 3 and 4 output
  // channels 1.2, without padding 1 to 1.1; volumes, which need a copy for each of 9 taps, 0.8 to 1.2.
  const bool full = length >= 3 * ceil_div(length, kernels.dots_mr);
  return a == 1 && full && p.pad_before != Index3{} && p.co <= 2 && p.ci >= kernels.dots_nt;
}

template <class T>
bool dots_exchange_roles(const Problem& p, const KernelSet<T>& kernels) {
  // 1 to 64 channels 128x128, 3x3, takes 0.6 of the time, 2 to 64 0.75; 2 to 4 channels along one axis 0.9 to 1.15, and
  // nine copies of x for windows of 9x9 1.1 (Zen 5).
  const Index copies = p.taps() / p.w[p.first_axis()];
  return p.groups == 1 && p.ci < p.co && p.ci <= (copies == 1 ? 1 : 2) && copies <= 4 &&
         masks_padding(exchanged(p), kernels);
}

template <class T>
double along_nanoseconds(const PassSpec& spec, const KernelSet<T>& kernels) {
  constexpr double kRows = 0.4, kDots = 0.5;  // a cycle, too long by as much as other passes are on a Zen 5
  const Problem& p = spec.problem;
  const bool of_w = spec.unknown == Unknown::w;
  if (p.depthwise() || p.pointwise() || (of_w && outer_product(p))) return direct_nanoseconds(spec, kernels);
  return 2000 + (of_w ? kDots * dots_cycles(p, kernels) : kRows * rows_pass_cycles(spec, kernels));
}

template <class T>
double in_rows_nanoseconds(const PassSpec& spec, const KernelSet<T>& kernels) {
  const Problem& p = spec.problem;
  const int lanes = kernels.lanes;
  const bool to_x = spec.unknown == Unknown::x;
  const Index source = to_x ? p.co : p.ci, results = to_x ? p.ci : p.co;
  if (!p.pointwise() || spec.unknown == Unknown::w || results > 2 * source || source >= 24 || p.y_plane() < 32 * lanes)
    return 0;
  const double images = static_cast<double>(p.n * p.groups * p.y_plane());
  const double rows = static_cast<double>(round_up(results, kernels.rows_mr));
  return 2000 + images * (0.235 * rows * static_cast<double>(source) / lanes + 0.15 * static_cast<double>(results));
}

template bool sums_by_taps(const PassSpec&, const KernelSet<float>&);
template bool sums_by_taps(const PassSpec&, const KernelSet<double>&);
template double tile_waste(const PassSpec&, const KernelSet<float>&);
template double tile_waste(const PassSpec&, const KernelSet<double>&);
template double along_nanoseconds(const PassSpec&, const KernelSet<float>&);
template double along_nanoseconds(const PassSpec&, const KernelSet<double>&);
template double in_rows_nanoseconds(const PassSpec&, const KernelSet<float>&);
template double in_rows_nanoseconds(const PassSpec&, const KernelSet<double>&);
template bool along_pixels(const PassSpec&, Index, const KernelSet<float>&);
template bool along_pixels(const PassSpec&, Index, const KernelSet<double>&);
template bool masks_padding(const Problem&, const KernelSet<float>&);
template bool masks_padding(const Problem&, const KernelSet<double>&);
template bool dots_exchange_roles(const Problem&, const KernelSet<float>&);
template bool dots_exchange_roles(const Problem&, const KernelSet<double>&);

}  // namespace convbwd

// Layer engine: what direct passes are expected to cost, and what follows: which of them serve, with which kernel, and
// how many images share packed weights.
#pragma once

#include "base/cpu.h"
#include "engine/pass.h"

namespace convbwd {

/// Of a box of a Gather pass: flat optimum from 240 to 960 (Zen 4 and Sapphire Rapids).
constexpr Index kBoxPixels = 480;

/// Axes as a Gather pass with vectors of so many lanes sees them. Phases that read the same are members of one, which
/// fill its columns, and are stored in pieces where all positions along w are such members; else results would be put
/// together row by row, which takes several times as long as transposing phases of one member each.
std::array<AxisMap, 3> gather_maps(const Problem& p, bool to_x, int lanes);

/// Products of a pair of channels of an image. Those in the padding are left out; where they are few they count, as
/// pixels near the ends of rows make tiles of their own, which are not full.
double products_inside(const Problem& p);

/// Elements of whole vectors for each of `count`.
inline double whole_vectors(Index count, Index lanes) {
  return static_cast<double>(round_up(count, lanes)) / static_cast<double>(count);
}

/// Time that a direct pass takes on one thread, good to 30 %: fitted to the 129 shapes of the benchmark on a Sapphire
/// Rapids, AVX-512 float32, where a vector's products take 0.18 ns. `tiles`: with those that pixels do not fill, which
/// other passes do not have.
template <class T>
double direct_nanoseconds(const PassSpec& spec, const KernelSet<T>& kernels, bool tiles = true);

/// The same of one with vectors along pixels: by the model of its kernel, good to 20 % for x and y, 30 % for w, where
/// windows have several taps (Zen 5, 136 results).
template <class T>
double along_nanoseconds(const PassSpec& spec, const KernelSet<T>& kernels);

/// Time that rows and dots take for depthwise problems, fitted like direct_nanoseconds.
double depthwise_nanoseconds(const PassSpec& spec, int lanes);

/// Whether a Gather pass is expected to take less time where tiles of pixels are those that one tap along w is inside
/// for, whatever the others are: windows nearly as large as the image.
template <class T>
bool sums_by_taps(const PassSpec& spec, const KernelSet<T>& kernels);

/// Taps whose products a Gather pass sums before it adds them to a result.
inline Index taps_of_sum(const PhaseSet& s, bool by_taps) {
  return by_taps ? s.taps / static_cast<Index>(s.phase[2]->offset.size()) : s.taps;
}
/// Source channels of a chunk of a Gather pass with so many taps at most, and of a sum, of as many as are affordable:
/// flat optimum from 400 to 1152 products (Zen 4 and Sapphire Rapids). Longer ones for sums of fewer taps leave another
/// task room.
inline Index longest_chunk(Index taps, Index of_sum, Index affordable) {
  const auto most = [](Index count) { return std::max<Index>(16, 768 / count); };
  return std::max(most(taps), std::min(affordable / 2, most(of_sum)));
}
/// Bytes of its panels: by taps longer chunks add to results less often.
inline Index bytes_of_panels(Index budget, bool by_taps) { return budget / (by_taps ? 2 : 4); }

/// About how many chunks it takes.
template <class T>
double gather_chunks(const PassSpec& spec, const std::vector<PhaseSet>& sets, bool by_taps,
                     const KernelSet<T>& kernels);

/// How much longer a Gather pass takes than if the pixels that read the same taps filled its tiles.
template <class T>
double tile_waste(const PassSpec& spec, const KernelSet<T>& kernels);

/// Time of a pointwise pass whose vectors run along pixels in place, fitted as that of direct passes is, and to 20 %; 0
/// where it is never the quickest: many results of few sums are written slowly, many sources are better packed.
template <class T>
double in_rows_nanoseconds(const PassSpec& spec, const KernelSet<T>& kernels);

/// Images that a task of rows takes, of one group after the other, a box of the `boxes` of each: so packed weights
/// serve several, as long as chunks hold the `whole` of their source channels. Where weights serve enough pixels
/// anyway, images are taken as they lie in memory, group by group.
struct RowsBatch {
  Index images;
  bool image_by_image;
};
RowsBatch rows_batch(const Problem& p, Index lanes, Index boxes, bool whole);
/// Source channels that make a straight sum of rows: chunks hold no fewer while boxes have rows to lose.
Index least_rows_chunk(const Problem& p);

/// The sums for unknown w with x for y and y for x, both of which step by one: taps go backwards.
Problem exchanged(const Problem& p);
/// Results that a pixel has in a group, those of all taps of a patch together; up to kFewChannels are few.
Index width_of_results(const PassSpec& spec);
constexpr Index kFewChannels = 8;

/// Whether vectors along pixels (rows, dots) are expected to take less time than vectors along channels (gather): for
/// `width` results of a pixel that are not many, as long as planes are large enough for their borders and for sums
/// across lanes.
template <class T>
bool along_pixels(const PassSpec& spec, Index width, const KernelSet<T>& kernels);

/// Whether dots form the weights' gradient from copies of y that have zeros where a tap meets padding, and x without a
/// border, which is read where it is: for a few output channels of more input channels.
template <class T>
bool masks_padding(const Problem& p, const KernelSet<T>& kernels);

/// Whether dots do so with x and y in each other's roles: for a few input channels of more output channels.
template <class T>
bool dots_exchange_roles(const Problem& p, const KernelSet<T>& kernels);

/// Whether the gathering kernel is expected to form the weights' gradient sooner with x and y in each other's roles, so
/// that columns are input channels.
template <class T>
bool exchanges_roles(const Problem& p, const KernelSet<T>& kernels);

/// Whether the gathering kernel is expected to form the weights' gradient sooner with all taps of the input channels as
/// columns, which are rows of w: packing them, and products with padding, have to take less time than transposing the
/// results, or than reading in place what one tap reads in steps.
template <class T>
bool unrolls_windows(const Problem& p, const KernelSet<T>& kernels);
/// Whether they are packed piece by piece of their rows, rather than a vector of positions at a time, which leaves out
/// those between the windows.
inline constexpr Index kMostStride = 16;
inline bool packs_pieces(const Problem& p) { return p.w[2] >= 8 || p.stride[2] > kMostStride; }

/// Columns of the gathering kernel for the weights' gradient of a group.
template <class T>
Index columns_of_weights(const Problem& p, const KernelSet<T>& kernels) {
  return unrolls_windows(p, kernels) ? p.ci * p.taps() : exchanges_roles(p, kernels) ? p.ci : p.co;
}

/// Input channels that so many columns, pairs of a channel and a tap, belong to at most: the first and the last column
/// may lie anywhere in one.
inline Index channels_of(const Problem& p, Index columns) { return std::min(p.ci, (columns - 2) / p.taps() + 2); }

/// The taps of a single position of y that do not lie in the padding, along each axis.
std::array<Range, 3> taps_inside(const Problem& p);
/// Whether images have a single position of y, and are so few that the weights' gradient is formed row by row, zeros
/// for taps in the padding included: 48 make a straight sum, and 64 images of 1280 channels to 1000 would take as long
/// either way (Zen 4).
bool one_output(const Problem& p);
constexpr Index kMostImages = 48;

/// Whether the weights' gradient is little more than the products of channels: writing it is most of the work.
inline bool outer_product(const Problem& p) { return p.pointwise() && p.n * p.y_plane() <= 16; }

/// What a pixel of so many columns costs by the gathering kernel of v vectors, in eighths of a full vector. The weights
/// are ratios of measured speeds (6x4 : 8x3 : 8x2 : 8x1 vectors, AVX-512).
template <class T>
Index column_cost(const KernelSet<T>& k, Index columns, int v) {
  Index cost = 0;
  for (Index n = columns; n > 0; n -= v * k.lanes) {
    const Index used = std::min<Index>(v, ceil_div(n, k.lanes));
    cost += used * 8 + (used == 1 ? 3 : used == 2 ? 1 : 0);
  }
  return cost;
}

/// Vectors of the gathering kernel that serves so many columns best: wide ones load less for each product, as long as
/// few of their lanes are idle. No more than there are columns for: panels take room.
template <class T>
int widest_block(const KernelSet<T>& k, Index columns) {
  int widest = 1;
  for (int v = 2; v <= k.gather_count && (v - 1) * k.lanes < columns; ++v)
    if (column_cost(k, columns, v) <= column_cost(k, columns, widest)) widest = v;
  return widest;
}

/// The kernels of a gathering pass with so many columns: of half vectors, where these take half as long and one or
/// three are enough. Five instead of three whole ones gain too little.
template <class T>
const KernelSet<T>& filled_kernels(const KernelSet<T>& k, Index columns) {
  const Index halves = ceil_div(2 * columns, k.lanes);
  return k.half && 4 * columns >= k.lanes && (halves == 1 || halves == 3) && halves_vectors() ? *k.half : k;
}

/// Whether a Gather pass may take them. Phases of a step are put together from results that lie apart, which takes half
/// vectors longer.
inline bool half_vectors_serve(const PassSpec& spec) {
  return spec.problem.stride == Index3{1, 1, 1} || spec.unknown == Unknown::y;
}

/// The gathering kernel for so many columns. Long sums are formed of short ones, blocked: straight, they would have
/// several times the error of other libraries'.
template <class T>
const GatherKernel<T>& gathering_kernel(const KernelSet<T>& k, Index columns, bool blocked) {
  return (blocked ? k.blocked : k.gather)[ceil_div(columns, k.lanes) - 1];
}

/// Most rows of a call of the gathering kernel where a list of them is on the stack.
constexpr Index kMaxTileRows = 480;
constexpr int kMaxColumns = 64;  // of any of its kernels

}  // namespace convbwd

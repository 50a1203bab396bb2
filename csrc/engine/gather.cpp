// Planning and walking: see gather.h.
#include "engine/gather.h"

#include <numeric>
#include <sstream>

namespace convbwd {
namespace {

constexpr Index kBoxPixels = 480;  // flat optimum from 240 to 960 pixels and
constexpr Index kReduction = 768;  // 400 to 1152 products a chunk (Zen 4 and Sapphire Rapids)
// Of a single vector of columns: groups of 16 channels, 28x28 to 14x14, take 0.87 of the time of 480 pixels (Zen 5).
constexpr Index kNarrowBoxPixels = 1920;
constexpr Index kFarReduction = 256;  // the same of weights in rows that may meet in one set of the caches
// The same of channels whose planes meet: their lines of a pixel share few sets of an L2, too (16 ways; 1x1 with stride
// 2, 32x32 and 64x64 results: chunks of 512 took 1.3 to 1.7 times as long, Emerald Rapids). Pointwise passes pack them.
constexpr Index kMeetingReduction = 128;
constexpr Index kTileBytes = 256 << 10;   // results of a task: stay in L2 beside panels and images
constexpr Index kOwnTileBytes = 1 << 20;  // where each task packs its own panels: larger boxes pack less
constexpr Index kLeastShared = 64;        // pixels of a box that shares its panels
constexpr Index kLongPiece = 8;           // elements of a result side by side that are stored by themselves
constexpr Index kLeastPixels = 8;         // one tile of the tallest register kernel
constexpr Index kLeastChunk = 16;         // below, a narrower block of channels is better than a shorter sum
// Too few to pay for packing weights that lie dense along columns.
constexpr Index kFewPixels = 128, kFewPixelsNarrow = 64;
constexpr Index kFewPatches = 256;  // the same: 64 of 3x3 take 0.8 of the time, 1568 of 16x16 1.03 (Zen 5)
constexpr double kProduct = 0.18, kPacked = 0.25;  // ns of a vector's products, of an element of a panel
// Of products with rows of weights far apart: from 0.95 to 1.5 (Sapphire Rapids). Of vectors of 32 bytes they need a
// line for half as many products, and packing pays for fewer pixels: 768 to 1536 channels, patches of 2x2, 98 pixels
// 0.65 of the time, 1024 to 512 channels 14x14 0.65, 512 to 2048 7x7, 8 images, 0.55; 49 pixels 1 to 1.3 (Zen 3).
constexpr double kInPlace = 1.2, kInPlaceNarrow = 1.5;
// Rows of weights from memory are fetched ahead while they are packed: 2048 to 512 channels 7x7 take 0.65 of the time,
// 1000 to 1000 0.8; 768 to 768, 2.4 MB, as long (Zen 3).
constexpr Index kWeightsFromMemory = 3 << 20;
constexpr Index kFewVectors = 4;    // of columns: more have products enough while they wait for the image
constexpr Index kLeastMeeting = 9;  // source channels whose lines do not stay in one set of the first-level cache
// Of a pixel: the rows of odd length of two images make pairs for the kernel (16 channels 7x7, 3x3, 16 images, take
// 0.87 of the time, 13x13 0.96; with 64 products as long, Zen 5).
constexpr Index kPairProducts = 96;
constexpr Index kMinTasks = 8;
constexpr double kMuchWork = 1 << 24;  // products: 0.15 ms

}  // namespace

template <class T>
Gather<T>::Gather(const PassSpec& spec, const KernelSet<T>& kernels)
    : SlottedPass(spec), kernels_(kernels), to_x_(spec.unknown == Unknown::x) {
  const Problem& p = spec_.problem;
  cs_ = to_x_ ? p.co : p.ci;
  cd_ = to_x_ ? p.ci : p.co;
  weight_n_ = to_x_ ? 1 : 0;
  weight_k_ = to_x_ ? 0 : 1;
  maps_ = axis_maps(p, to_x_ ? map_patches : map_forward);
  sets_ = phase_sets(maps_);
  count_ = most_pixels(maps_);
  one_member_ = one_member(sets_);
  for (const PhaseSet& s : sets_) {
    holes_ |= s.taps == 0;
    max_taps_ = std::max(max_taps_, s.taps);
  }
  for (int a = 0; a < 3; ++a) {
    std::size_t runs = 1;
    reach_[a] = {maps_[a].src, 0};
    for (const Phase& f : maps_[a].phases) {
      runs = std::max(runs, f.runs.size());
      for (const Index o : f.offset) reach_[a] = {std::min(reach_[a].begin, o), std::max(reach_[a].end, o + 1)};
    }
    max_rects_ *= static_cast<Index>(runs);
  }
  for (const Phase& f : maps_[2].phases) max_streams_ += static_cast<Index>(f.members.size());
}

// Whether the lines that a tile of the kernel reads of many channels push each other out of a cache, for each tap
// again.
template <class T>
bool Gather<T>::planes_meet(const View& x) const {
  return x.stride[1] != 0 && meet_in_cache(x.stride[1] * static_cast<Index>(sizeof(T)));
}

// Whether a copy of the image takes less time than reading planes that meet: in place 16 columns had 0.55 to 0.75 of
// the speed, 32 0.72 to 0.88, 64 0.9 to 0.96 with 3x3 windows. Elements are copied with the borders of a box, and read
// by each tap. (GEMMs gather the image themselves.)
template <class T>
bool Gather<T>::copies_pay() {
  Index columns = 0;
  for (const PhaseSet& s : sets_) columns = std::max(columns, s.columns(cd_));
  const Index vectors = ceil_div(columns, kernels_.lanes);
  set_box(kBoxPixels);
  return kernels_.any_bstep && vectors <= kFewVectors && cs_ >= kLeastMeeting &&
         8 * vectors * reached() <= 5 * max_taps_ * box_q_[0] * box_q_[1] * box_q_[2];
}

// What the formats of the operands allow to do in place.
template <class T>
void Gather<T>::lay_out(const Operands& o) {
  const View &d = destination(o), &x = image(o);
  copy_ = x.dtype != compute_dtype<T> || !x.plain() || (copies_meeting_ && planes_meet(x));
  patches_ = true;
  for (const Phase& f : maps_[2].phases) {
    const auto width = static_cast<Index>(f.members.size());
    const bool rows = maps_[2].phases.size() == 1 && width > 1 && (width == maps_[2].dst_step || f.count == 1);
    patches_ &= rows || (d.stride[4] == 1 && width >= kLongPiece);
    for (std::size_t m = 1; m < f.members.size(); ++m) patches_ &= f.members[m].first == f.members[m - 1].first + 1;
  }
  // A GEMM may sum a column otherwise at another place of its panel.
  member_major_ = d.stride[1] == 1 && (one_member_ || kernels_.any_bstep);
  patches_ &= !member_major_;
  direct_ = one_member_ && !member_major_ && !patches_ && d.plain() && d.stride[4] == 1;
  converts_ = direct_ && d.dtype != compute_dtype<T>;
  // Columns are rows of w, or pieces of them: channels, or few patches.
  const PhaseSet& set = sets_.front();
  const bool unrolled = sets_.size() == 1 && set.taps == 1 && set.members == spec_.problem.taps() && patches_ &&
                        dense_planes(o.w) && o.w.stride[1] == set.members && set.columns(cd_) % kernels_.lanes == 0 &&
                        spec_.problem.n * count_[0] * count_[1] * count_[2] <= kFewPatches;
  weights_may_stay_ = kernels_.any_bstep && o.w.dtype == compute_dtype<T> && o.w.plain() &&
                      (one_member_ ? o.w.stride[weight_n_] == 1 && cd_ >= kernels_.lanes : unrolled);
}

template <class T>
typename Gather<T>::Box Gather<T>::box(Index i) const {
  const Index boxes = pixel_boxes(count_, box_q_), n0 = i / boxes * box_n_;
  Box b{pixel_box(i % boxes, count_, box_q_), n0, std::min(box_n_, spec_.problem.n - n0), holes_};
  for (const PhaseSet& s : sets_) b.pixels += set_pixels(s, b);
  return b;
}

template <class T>
typename Gather<T>::Slot Gather<T>::carve(Carver& carver) const {
  Slot s{};
  const Box largest = box(0);
  Index tiles = 0, rects = 0, rows = 0, widest = 0, members = 1;
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const PhaseSet& set = sets_[i];
    if (i % maps_[2].phases.size() == 0) rows = 0;
    if (set.taps == 0) continue;
    tiles += set_pixels(set, largest) * round_up(set.columns(channels_), kernels_.lanes);
    rects += max_rects_;
    members = std::max(members, set.taps * set.members);
    widest = std::max(widest, rows += set.members);
  }
  s.tiles = carver.take<T>(direct_ ? largest.pixels * round_up(channels_, kernels_.lanes) : tiles);
  s.row = carver.take<std::ptrdiff_t>(largest.pixels);
  Index3 span;  // positions of a box inside the destination; the first one may have fewer
  for (std::size_t a = 0; a < 3; ++a) span[a] = std::min(box_q_[a] * maps_[a].dst_step, maps_[a].dst);
  s.pos = carver.take<std::ptrdiff_t>(direct_ ? box_n_ * span[0] * span[1] * span[2] : largest.pixels);
  s.rects = carver.take<Rect>(rects);
  s.rect_counts = carver.take<Index>(static_cast<Index>(sets_.size()));
  s.segments = carver.take<Segment>(max_taps_);
  s.bias = carver.take<T>(channels_);
  // Of the last block, where weights stay.
  const Index packed = weights_in_place_ ? packed_columns(cd_ - (blocks_ - 1) * channels_) : channels_;
  s.table = carver.take<T*>(packed ? spec_.problem.taps() : 0);
  s.member = carver.take<Index>(packed ? members : 0);
  s.taps = carver.take<T>(packed && !one_member_ ? packed * spec_.problem.taps() : 0);
  if (!prepack_) s.panels = carver.take<T>(chunk_ * panel_columns(packed));
  if (copy_) s.copy = carver.take<T>(box_n_ * chunk_ * copy_plane_);
  if (patches_) {
    s.line = carver.take<T>(std::max<Index>(kMaxColumns, span[2]));
  } else if (!member_major_) {
    s.rows = carver.take<T>(kernels_.lanes * (converts_ ? line()
                                              : direct_ ? 0
                                                        : widest * round_up(box_q_[2], kernels_.lanes)));
    s.line = carver.take<T>(direct_ ? 0 : maps_[2].positions(0, box_q_[2]).end);
    s.streams = carver.take<Stream<T>>(max_streams_);
  }
  return s;
}

// -------------------------------------------------------------------------------------------------------- a task

// Orders the pixels of a set by the taps that they read; returns the number of rectangles. The one of a place is at
// row[place] in the image and at first + place among the tiles; pos has the latter by its number among those of the
// set, or among all positions where these are transposed into place together.
template <class T>
Index Gather<T>::list_pixels(const PhaseSet& s, const Box& b, const Source& x, Index first, std::ptrdiff_t* row,
                             std::ptrdiff_t* pos, Rect* rects) const {
  const Index3 extent = b.extent(s);
  Index3 step, e = extent, member{}, apart{1, 1, 1};
  for (std::size_t a = 0; a < 3; ++a) {
    step[a] = maps_[a].src_step * x.stride[a + 2];
    if (direct_)
      e[a] = b.positions(maps_)[a].size(), member[a] = s.phase[a]->members[0].first, apart[a] = maps_[a].dst_step;
  }
  const GatherKernel<T>& tile = kernel(vectors_ * kernels_.lanes);
  const bool pairs = tile.mr > kPointers && b.n > 1;
  Index place = 0, rect_count = 0;
  for (const auto& rd : s.phase[0]->runs)
    for (const auto& rh : s.phase[1]->runs)
      for (const auto& rw : s.phase[2]->runs) {
        Index3 from, to;
        const std::array<const Phase::Run*, 3> run{&rd, &rh, &rw};
        for (int a = 0; a < 3; ++a) {
          from[a] = std::max(run[a]->begin, b.q0[a]);
          to[a] = std::min(run[a]->end, b.q0[a] + extent[a]);
        }
        if (from[0] >= to[0] || from[1] >= to[1] || from[2] >= to[2]) continue;
        const Index width = to[2] - from[2];
        const auto products = static_cast<Index>(rd.inside.size() * rh.inside.size() * rw.inside.size()) * chunk_;
        const Index together = pairs && width % 2 == 1 && width < tile.mr && products >= kPairProducts ? 2 : 1;
        const Index plane = (to[0] - from[0]) * (to[1] - from[1]) * width;
        for (Index n = 0; n < b.n; ++n) {
          // Images of a pair take turns, pixel by pixel.
          const Index turn = n % together, images = std::min(together, b.n - (n - turn));
          Index m = place + (n - turn) * plane + turn;
          for (Index d = from[0]; d < to[0]; ++d)
            for (Index h = from[1]; h < to[1]; ++h) {
              Index number =
                  ((n * e[0] + member[0] + (d - b.q0[0]) * apart[0]) * e[1] + member[1] + (h - b.q0[1]) * apart[1]) *
                      e[2] +
                  member[2] + (from[2] - b.q0[2]) * apart[2];
              const Index at = x.shift + n * x.stride[0] + d * step[0] + h * step[1];
              for (Index w = from[2]; w < to[2]; ++w, m += images, number += apart[2]) {
                row[m] = at + w * step[2];
                pos[number] = first + m;
              }
            }
        }
        rects[rect_count++] = {place, b.n * plane, run};
        place += b.n * plane;
      }
  return rect_count;
}

template <class T>
typename Gather<T>::Source Gather<T>::source(const Operands& o, Index g, const Box& b, Index k0, Index k,
                                             T* copy) const {
  const View& x = image(o);
  if (!copy_) {
    const Index5 at{b.n0, g * cs_ + k0, 0, 0, 0};
    return {static_cast<const T*>(x.data) + x.offset(at), x.stride, 0};
  }
  Index5 at{b.n0, g * cs_ + k0, 0, 0, 0}, extent{b.n, k, 0, 0, 0};
  for (int a = 0; a < 3; ++a) {
    const Index lo = std::max<Index>(0, b.q0[a] * maps_[a].src_step + reach_[a].begin);
    const Index hi = std::min(maps_[a].src, (b.q1[a] - 1) * maps_[a].src_step + reach_[a].end);
    at[a + 2] = std::min(lo, maps_[a].src);
    extent[a + 2] = std::max<Index>(0, hi - lo);
  }
  Source s{copy, {}, 0};
  if (x.stride[1] == 1)
    s.stride = {k * extent[2] * extent[3] * extent[4], 1, k * extent[3] * extent[4], k * extent[4], k};
  else
    s.stride = {k * copy_plane_, copy_plane_, extent[3] * extent[4], extent[4], 1};
  for (int a = 2; a < 5; ++a) s.shift -= at[a] * s.stride[a];
  copy_in(kernels_, copy, s.stride, x.at(at, extent));
  return s;
}

template <class T>
void Gather<T>::multiply(const PhaseSet& s, Index channels, const Rect* rects, Index rect_count, const Source& x,
                         const std::ptrdiff_t* row, const T* panels, const T* packed, const View& w, Index k,
                         const Tiles& tiles, Segment* segments, bool accumulate) const {
  const auto& [fd, fh, fw] = s.phase;
  const Index nh = static_cast<Index>(fh->offset.size()), nw = static_cast<Index>(fw->offset.size());
  each_block(s.columns(channels), [&](Index n0, Index n, const GatherKernel<T>& kernel) {
    std::ptrdiff_t crow[kMaxTileRows];
    for (Index i = 0; i < std::min(kMaxTileRows, tiles.pitch); ++i) crow[i] = i * kernel.nr;
    const bool in_place = weights_in_place_ && n % kernels_.lanes == 0;
    const T* panel = in_place ? panels + n0 : weights_in_place_ ? packed : panels + n0 * s.taps * k;
    const Index panel_step = in_place ? w.stride[weight_k_] : kernel.nr;
    for (const Rect* r = rects; r != rects + rect_count; ++r) {
      Index count = 0;
      for (const int td : r->run[0]->inside)
        for (const int th : r->run[1]->inside)
          for (const int tw : r->run[2]->inside) {
            const auto d = static_cast<std::size_t>(td), h = static_cast<std::size_t>(th),
                       v = static_cast<std::size_t>(tw);
            const Index at = fd->offset[d] * x.stride[2] + fh->offset[h] * x.stride[3] + fw->offset[v] * x.stride[4];
            const Index b = in_place ? fd->members[0].tap[d] * w.stride[2] + fh->members[0].tap[h] * w.stride[3] +
                                           fw->members[0].tap[v] * w.stride[4]
                                     : ((td * nh + th) * nw + tw) * k * kernel.nr;
            segments[count++] = {at, b, k};
          }
      for (Index m = r->start; m < r->start + r->count; m += kMaxTileRows)
        kernel.run(static_cast<int>(std::min(kMaxTileRows, r->start + r->count - m)), x.data, row + m, x.stride[1],
                   segments, count, panel, panel_step, tiles.data + tiles.pitch * n0 + (tiles.first + m) * kernel.nr,
                   crow, accumulate);
    }
  });
}

template <class T>
void Gather<T>::task(const Operands& o, Index number, const T* packed, std::byte* scratch) const {
  const Box b = box(number % boxes_);
  const Index block = number / boxes_ % blocks_, g = number / boxes_ / blocks_;
  const Index c0 = block * channels_, channels = std::min(channels_, cd_ - c0);
  Carver carver(scratch);
  const Slot s = carve(carver);
  const Index columns = panel_columns(channels);
  if (direct_ && holes_) {
    std::fill_n(s.pos, b.n * positions(b), b.pixels - 1);
    each_block(channels, [&](Index n0, Index, const GatherKernel<T>& kernel) {
      std::fill_n(s.tiles + b.pixels * n0 + (b.pixels - 1) * kernel.nr, kernel.nr, T{});
    });
  }
  for (Index k0 = 0; k0 < cs_; k0 += chunk_) {
    const Index k = std::min(chunk_, cs_ - k0);
    const Source x = source(o, g, b, k0, k, s.copy);
    const T* panels = s.panels;
    View w = o.w;
    if (weights_in_place_) {
      Index5 at{};
      at[0] = g * spec_.problem.co;
      at[weight_n_] += c0;
      at[weight_k_] += k0;
      panels = static_cast<const T*>(w.data) + w.offset(at);
      if (const Index last = packed_columns(channels)) pack(o, g, c0 + channels - last, last, k0, k, s, s.panels);
    } else if (prepack_) {
      panels = packed + (g * group_panels_ + block * panel_columns(channels_)) * cs_ + k0 * columns;
    } else {
      pack(o, g, c0, channels, k0, k, s, s.panels);
    }
    Tiles tiles{s.tiles, 0, b.pixels};
    const T* tail = s.panels;
    std::ptrdiff_t *row = s.row, *pos = s.pos;
    Rect* rects = s.rects;
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      const PhaseSet& set = sets_[i];
      const Index pixels = set_pixels(set, b);
      if (!direct_) tiles.pitch = pixels;
      if (pixels) {
        if (k0 == 0 || copy_) s.rect_counts[i] = list_pixels(set, b, x, tiles.first, row, pos, rects);
        multiply(set, channels, rects, s.rect_counts[i], x, row, panels, tail, w, k, tiles, s.segments, k0 > 0);
      }
      if (weights_in_place_)
        tail += set.taps * round_up(packed_columns(channels), kernels_.lanes) * k;
      else
        panels += set.taps * round_up(set.columns(channels), kernels_.lanes) * k;
      if (direct_)
        tiles.first += pixels;
      else
        tiles.data += pixels * round_up(set.columns(channels), kernels_.lanes), pos += pixels;
      row += pixels, rects += set.taps ? max_rects_ : 0;
    }
  }
  store(o, g, c0, channels, b, s);
}

// ------------------------------------------------------------------------------------------------------- planning

template <class T>
void Gather<T>::set_box(Index pixels) {
  const Index n = spec_.problem.n, plane = count_[1] * count_[2], volume = count_[0] * plane;
  box_n_ = 1;
  box_q_ = count_;
  if (volume <= pixels) {
    box_n_ = std::min(n, pixels / volume);
  } else if (plane <= pixels) {
    box_q_[0] = pixels / plane;
  } else {
    box_q_[0] = 1;
    const Index parts = std::max<Index>(1, (plane + pixels / 2) / pixels);
    box_q_[1] = ceil_div(count_[1], parts);
    if (box_q_[1] == 1) box_q_[2] = std::min(count_[2], ceil_div(count_[2], std::max<Index>(1, count_[2] / pixels)));
  }
  boxes_ = ceil_div(n, box_n_) * pixel_boxes(count_, box_q_);
}

// Pixels of the image that a box reads, or could.
template <class T>
Index Gather<T>::reached() const {
  Index plane = 1;
  for (int a = 0; a < 3; ++a)
    plane *= std::min(maps_[a].src,
                      (box_q_[a] - 1) * maps_[a].src_step + std::max<Index>(1, reach_[a].end - reach_[a].begin));
  return plane;
}

template <class T>
bool Gather<T>::configure(const Tiling& tiling) {
  vectors_ = tiling.vectors;
  channels_ = std::min(tiling.channels, cd_);
  blocks_ = ceil_div(cd_, channels_);
  set_box(tiling.pixels);
  prepack_ = tiling.weights == Weights::packed_once;
  weights_in_place_ = tiling.weights == Weights::in_place;
  // Odd numbers of cache lines, so that planes do not fall on the same cache sets.
  if (copy_) copy_plane_ = (ceil_div(reached(), kernels_.lanes) | 1) * kernels_.lanes;
  Carver slot;
  carve(slot);
  group_panels_ = (blocks_ - 1) * panel_columns(channels_) + panel_columns(cd_ - (blocks_ - 1) * channels_);
  const Index panels = prepack_ ? spec_.problem.groups * group_panels_ * cs_ * static_cast<Index>(sizeof(T)) : 0;
  return share(boxes_ * blocks_ * spec_.problem.groups, round_up(panels, 64), static_cast<Index>(slot.used()),
               tiling.slots);
}

template <class T>
bool Gather<T>::plan() {
  const Operands dense = densely(spec_.operands);
  copies_meeting_ = planes_meet(image(dense)) && copies_pay();
  lay_out(dense);
  // Room for two threads where it costs little more. Sums of GEMMs may depend on their shapes, and those on tiles.
  const Index most = kernels_.any_bstep ? std::min<Index>(spec_.threads, 2) : 2;
  Tiling tiling = search(most);
  if (copies_meeting_ && tiling.weights != Weights::packed_once) {  // what a copy saves is less than its room costs
    copies_meeting_ = false;
    lay_out(dense);
    tiling = search(most);
  }
  if (most > 1 && (tiling.time == 0 || tiling.weights == Weights::packed_by_tasks))
    if (const Tiling one = search(1); tiling.time == 0 || tiling.time >= (tasks_are_shared() ? 1 : 1.5) * one.time)
      tiling = one;
  if (tiling.time == 0) return false;
  lay_out(spec_.operands);
  if (tiling.weights == Weights::in_place && !weights_may_stay_) tiling.weights = Weights::packed_by_tasks;
  configure(tiling);
  return true;
}

template <class T>
bool Gather<T>::tasks_are_shared() const {
  return kernels_.any_bstep && spec_.problem.products() >= kMuchWork;
}

// Of the tilings that leave room for so many slots, blocks of the best width with shared panels, else the one that is
// expected to take least time; its time is 0 where nothing fits.
template <class T>
typename Gather<T>::Tiling Gather<T>::search(Index slots) {
  const Problem& p = spec_.problem;
  const Index lanes = kernels_.lanes, budget = static_cast<Index>(spec_.budget);
  const Index item = static_cast<Index>(sizeof(T));
  Index members = 1, live_sets = 0;
  for (const PhaseSet& s : sets_)
    if (s.taps) members = std::max(members, s.members), ++live_sets;
  const int widest = widest_block(kernels_, cd_ * members);
  // Channels of a block of so many vectors, and bytes that its results take for each pixel.
  const auto unit = [&](int vectors) { return std::max<Index>(1, vectors * lanes / members); };
  const auto unit_bytes = [&](int vectors) {
    return round_up(unit(vectors) * members, lanes) * item * std::max<Index>(1, live_sets);
  };
  // The chunk fixes the order of sums: it depends on the shape alone.
  const auto affordable = [&](Index channels) {
    return budget / 4 / item / std::max<Index>(1, panel_columns(channels));
  };
  Index chunk = weights_may_stay_ && !one_member_ ? kFarReduction : affordable(unit(widest));
  if (chunk < kLeastChunk) chunk = std::min(kLeastChunk, affordable(1));
  chunk = std::clamp<Index>(chunk, 1, std::min(cs_, std::max<Index>(16, kReduction / max_taps_)));
  if (!p.pointwise() && meet_in_cache((to_x_ ? p.y_plane() : p.x_plane()) * item))
    chunk = std::min(chunk, kMeetingReduction);
  const Index kept = spec_.sums[3];
  chunk_ = kept > 0 ? std::min(cs_, kept / 2) : ceil_div(cs_, ceil_div(cs_, chunk));
  blocked_ = kept > 0 ? kept % 2 == 1 : chunk_ * max_taps_ > kStraight;
  const Index image = count_[0] * count_[1] * count_[2], volume = p.n * image;
  const Index most = widest == 1 ? kNarrowBoxPixels : kBoxPixels;
  const Index pixels = std::max<Index>(kLeastShared, most / std::max<Index>(1, live_sets / 2));
  // Time of a product with every column, and of packing that often, for all pixels.
  const Index columns = cd_ * members;
  const auto time = [&](int vectors, Index packs) {
    return static_cast<double>(volume * column_cost(kernels_, columns, vectors)) * kProduct / 8 +
           static_cast<double>(packs * columns) * kPacked;
  };
  const bool far_weights = p.groups * cs_ * cd_ * p.taps() * item > kWeightsFromMemory;
  const auto [few, far] = narrow(kernels_) ? std::pair{far_weights ? 0 : kFewPixelsNarrow, kInPlaceNarrow}
                                           : std::pair{kFewPixels, kInPlace};
  const double in_place = volume <= few ? 1 : far;
  Tiling best;
  const auto offer = [&](int v, Index channels, Index px, Weights weights) {
    Tiling tiling{slots, v, channels, px, weights, 0};
    if (!configure(tiling)) return false;
    // Rows of weights lie far apart, which matters where many pixels read them.
    tiling.time =
        weights == Weights::in_place ? in_place * time(v, 0) : time(v, weights == Weights::packed_once ? 1 : boxes_);
    if (tasks_are_shared()) tiling.time *= waits(this->slots()) / this->slots();
    if (best.time == 0 || tiling.time < best.time) best = tiling;
    return true;
  };
  for (int v = widest; v >= 1; --v) {
    // Much work is cut into tasks enough.
    const Index cut = p.products() < kMuchWork ? 1 : ceil_div(kMinTasks / 2, p.groups * ceil_div(cd_, unit(v)));
    for (Index px = std::clamp<Index>(ceil_div(volume, cut), kLeastShared, pixels); px >= kLeastShared && px < volume;
         px /= 2) {
      set_box(px);
      Index channels = std::max<Index>(1, kTileBytes / (unit_bytes(v) * px)) * unit(v);
      if (boxes_ * p.groups * ceil_div(cd_, channels) < kMinTasks) channels = unit(v);
      if (!offer(v, channels, px, Weights::packed_once) && !offer(v, unit(v), px, Weights::packed_once)) continue;
      if (v == widest) return best;
      break;
    }
  }
  // Few boxes, each with its own panels: the larger the box, the less packing, the wider the block, the faster the
  // kernel.
  for (Index parts = 1, last = 0; last != kLeastPixels; parts += ceil_div(parts, 2)) {
    const Index px =
        std::max(kLeastPixels, parts <= p.n ? ceil_div(p.n, parts) * image : ceil_div(image, ceil_div(parts, p.n)));
    if (px == last) continue;
    last = px;
    for (int v = widest; v >= 1; --v) {
      if (px <= std::max(pixels, kOwnTileBytes / unit_bytes(v))) offer(v, unit(v), px, Weights::packed_by_tasks);
      if (px <= pixels && weights_may_stay_)
        offer(v, one_member_ ? unit(v) : round_up(unit(v), lanes / std::gcd(members, lanes)), px, Weights::in_place);
    }
  }
  return best;
}

template <class T>
void Gather<T>::run(const Operands& o, std::byte* workspace) const {
  T* packed = reinterpret_cast<T*>(workspace);
  if (prepack_) {
    const Index chunks = ceil_div(cs_, chunk_);
    parallel_for(spec_.problem.groups * blocks_ * chunks, slots(), [&](Index i, int number) {
      Carver carver(slot(workspace, number));
      const Slot s = carve(carver);
      const Index k0 = i % chunks * chunk_, block = i / chunks % blocks_, g = i / chunks / blocks_;
      const Index c0 = block * channels_, channels = std::min(channels_, cd_ - c0);
      pack(o, g, c0, channels, k0, std::min(chunk_, cs_ - k0), s,
           packed + (g * group_panels_ + block * panel_columns(channels_)) * cs_ + k0 * panel_columns(channels));
    });
  }
  parallel_for(tasks_, slots(), [&](Index i, int number) { task(o, i, packed, slot(workspace, number)); });
}

template <class T>
std::string Gather<T>::explain() const {
  std::ostringstream s;
  s << "gather " << (to_x_ ? "x" : "y") << " (" << kernels_.name << ' ' << kernel(vectors_ * kernels_.lanes).name
    << "): " << sets_.size() << " phase sets, boxes of " << box_n_ << 'x' << box_q_[0] << 'x' << box_q_[1] << 'x'
    << box_q_[2] << " pixels, " << channels_ << " of " << cd_ << " channels a task, chunks of " << chunk_ << " of "
    << cs_ << " source channels; image " << (copy_ ? "copied" : "in place") << ", weights "
    << (weights_in_place_ ? "in place"
        : prepack_        ? "packed once"
                          : "packed by tasks")
    << "; " << effort();
  return s.str();
}

template <class T>
std::unique_ptr<Pass> make_gather(const PassSpec& spec, const KernelSet<T>& kernels) {
  auto pass = make_planned<Gather<T>>(spec, kernels);
  if (pass)
    if (auto in_place = pass->in_place()) return in_place;
  return pass;
}
template std::unique_ptr<Pass> make_gather(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_gather(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd

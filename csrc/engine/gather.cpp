// Walking the tasks: see gather.h.
#include "engine/gather.h"

#include <sstream>

namespace convbwd {

// Of a pixel: the rows of odd length of two images make pairs for the kernel (16 channels 7x7, 3x3, 16 images, take
// 0.87 of the time, 13x13 0.96; with 64 products as long, Zen 5).
constexpr Index kPairProducts = 96;

// Of an image of a box those that lie on all of these runs, an axis.
static std::array<Range, 3> pixels_on(const std::array<const Phase::Run*, 3>& run, const PixelBox& b, const Index3& e) {
  std::array<Range, 3> pixels;
  for (std::size_t a = 0; a < 3; ++a)
    pixels[a] = {std::clamp<Index>(run[a]->begin - b.q0[a], 0, e[a]),
                 std::clamp<Index>(run[a]->end - b.q0[a], 0, e[a])};
  return pixels;
}

template <class T>
typename Gather<T>::Box Gather<T>::box(Index i) const {
  const Index boxes = boxes_of_image(), n0 = i / boxes * box_n_;
  Box b{pixel_box(i % boxes, count_, box_q_), n0, std::min(box_n_, spec_.problem.n - n0), holes_};
  for (const PhaseSet& s : sets_) b.pixels += set_pixels(s, b);
  return b;
}

template <class T>
typename Gather<T>::Slot Gather<T>::carve(Carver carver) const {
  Slot s{};
  const Box largest = box(0);
  Index tiles = 0, most_pixels = 0, rects = 0, rows = 0, widest = 0, members = 1;
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const PhaseSet& set = sets_[i];
    if (i % maps_[2].phases.size() == 0) rows = 0;
    if (set.taps == 0) continue;
    most_pixels = std::max(most_pixels, set_pixels(set, largest));
    tiles += set_pixels(set, largest) * round_up(set.columns(channels_), kernels_.lanes);
    rects += max_rects_;
    members = std::max(members, set.taps * set.members);
    widest = std::max(widest, rows += set.members);
  }
  s.tiles = carver.take<T>(direct_ ? largest.pixels * round_up(channels_, kernels_.lanes) : tiles);
  s.row = carver.take<std::ptrdiff_t>(largest.pixels);
  s.pick = carver.take<std::ptrdiff_t>(by_taps_ ? most_pixels : 0);
  s.place = carver.take<std::ptrdiff_t>(by_taps_ ? most_pixels : 0);
  Index3 span;  // positions of a box inside the destination; the first one may have fewer
  for (std::size_t a = 0; a < 3; ++a) span[a] = std::min(box_q_[a] * maps_[a].dst_step, maps_[a].dst);
  s.pos = carver.take<std::ptrdiff_t>(direct_ ? box_n_ * span[0] * span[1] * span[2] : largest.pixels);
  s.rects = carver.take<Rect>(rects);
  s.rect_counts = carver.take<Index>(static_cast<Index>(sets_.size()));
  s.listed = carver.take<Listed>(1);
  s.segments = carver.take<Segment>(max_taps_);
  s.bias = carver.take<T>(channels_);
  // Of the last block, where weights stay.
  const Index packed = weights_in_place_ ? packed_columns(cd_ - (blocks_ - 1) * channels_) : channels_;
  s.table = carver.take<T*>(packed ? spec_.problem.taps() : 0);
  s.member = carver.take<Index>(packed ? members : 0);
  s.taps = carver.take<T>(packed && !one_member_ ? packed * spec_.problem.taps() : 0);
  if (!prepack_) s.panels = carver.take<T>(chunk_ * panel_columns(packed));
  if (copy_ == Copy::by_tasks) s.copy = carver.take<T>(box_n_ * chunk_ * copy_plane_);
  if (patches_ || member_major_) {
    s.line = carver.take<T>(std::max<Index>(kMaxColumns, span[2]));
  } else {
    s.rows = carver.take<T>(kernels_.lanes * (converts_ ? line()
                                              : direct_ ? 0
                                                        : widest * round_up(box_q_[2], kernels_.lanes)));
    s.line = carver.take<T>(direct_ ? 0 : maps_[2].positions(0, box_q_[2]).end);
    s.streams = carver.take<Stream<T>>(max_streams_);
  }
  s.bytes = carver.used();
  return s;
}

// Orders the pixels of a set by the taps that they read, or leaves their order, by taps; returns the number of
// rectangles. The one of a place is at row[place] in the image and at first + place among the tiles; pos has the latter
// by its number among those of the set, or among all positions where these are transposed into place together.
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
  const auto list = [&, step, apart, first, row, pos](const std::array<Range, 3>& pixels, Index products) {
    const auto [pd, ph, pw] = pixels;  // copies, as those in the captures: stores to the lists might change others
    const Index plane = pd.size() * ph.size() * pw.size();
    const Index together = pairs && pw.size() % 2 == 1 && pw.size() < tile.mr && products >= kPairProducts ? 2 : 1;
    for (Index n = 0; n < b.n; ++n) {
      // Images of a pair take turns, pixel by pixel.
      const Index turn = n % together, images = std::min(together, b.n - (n - turn));
      Index m = place + (n - turn) * plane + turn;
      for (Index d = pd.begin; d < pd.end; ++d)
        for (Index h = ph.begin; h < ph.end; ++h) {
          Index number = ((n * e[0] + member[0] + d * apart[0]) * e[1] + member[1] + h * apart[1]) * e[2] + member[2] +
                         pw.begin * apart[2];
          const Index at =
              x.shift + n * x.stride[0] + (b.q0[0] + d) * step[0] + (b.q0[1] + h) * step[1] + b.q0[2] * step[2];
          for (Index w = pw.begin; w < pw.end; ++w, m += images, number += apart[2]) {
            row[m] = at + w * step[2];
            pos[number] = first + m;
          }
        }
    }
    place += b.n * plane;
  };
  if (by_taps_) list({Range{0, extent[0]}, {0, extent[1]}, {0, extent[2]}}, 0);
  for (const auto& rd : s.phase[0]->runs)
    for (const auto& rh : s.phase[1]->runs)
      for (const auto& rw : s.phase[2]->runs) {
        const std::array<const Phase::Run*, 3> run{&rd, &rh, &rw};
        const std::array<Range, 3> pixels = pixels_on(run, b, extent);
        const Index count = b.n * pixels[0].size() * pixels[1].size() * pixels[2].size();
        if (count == 0) continue;
        rects[rect_count++] = {by_taps_ ? 0 : place, count, run};
        if (!by_taps_) list(pixels, rd.inside.size() * rh.inside.size() * rw.inside.size() * chunk_);
      }
  return rect_count;
}

template <class T>
void Gather<T>::multiply(const PhaseSet& s, Index channels, const Box& b, const Rect* rects, Index rect_count,
                         const Source& x, const std::ptrdiff_t* row, const T* panels, const T* packed, const View& w,
                         Index k, const Tiles& tiles, const Slot& slot, bool accumulate) const {
  const Index3 e = b.extent(s);
  const Index most = std::min(kMaxTileRows, set_pixels(s, b));
  const auto& [fd, fh, fw] = s.phase;
  const Index nh = static_cast<Index>(fh->offset.size()), nw = static_cast<Index>(fw->offset.size());
  each_block(s.columns(channels), [&](Index n0, Index n, const GatherKernel<T>& kernel) {
    std::ptrdiff_t crow[kMaxTileRows];
    for (Index i = 0; i < most; ++i) crow[i] = i * kernel.nr;
    const bool in_place = weights_in_place_ && n % kernels_.lanes == 0;
    const T* panel = in_place ? panels + n0 : weights_in_place_ ? packed : panels + n0 * s.taps * k;
    const Index panel_step = in_place ? w.stride[weight_k_] : kernel.nr;
    T* const results = tiles.data + tiles.pitch * n0 + tiles.first * kernel.nr;
    if (by_taps_ && !accumulate) std::fill_n(results, set_pixels(s, b) * kernel.nr, T{});
    for (const Rect* r = rects; r != rects + rect_count; ++r) {
      Index count = 0;
      for (Index td = r->run[0]->inside.begin; td < r->run[0]->inside.end; ++td)
        for (Index th = r->run[1]->inside.begin; th < r->run[1]->inside.end; ++th)
          for (Index tw = r->run[2]->inside.begin; tw < r->run[2]->inside.end; ++tw) {
            const auto d = static_cast<std::size_t>(td), h = static_cast<std::size_t>(th),
                       v = static_cast<std::size_t>(tw);
            const Index at = fd->offset[d] * x.stride[2] + fh->offset[h] * x.stride[3] + fw->offset[v] * x.stride[4];
            const Index at_w = in_place ? fd->members[0].tap[d] * w.stride[2] + fh->members[0].tap[h] * w.stride[3] +
                                              fw->members[0].tap[v] * w.stride[4]
                                        : ((td * nh + th) * nw + tw) * k * kernel.nr;
            const auto continues = [&](const Segment& last) {
              return at == last.x + last.len * x.stride[1] && at_w == last.b + last.len * panel_step;
            };
            if (count > 0 && k <= kShortSegment && continues(slot.segments[count - 1]))
              slot.segments[count - 1].len += k;
            else
              slot.segments[count++] = {at, at_w, k};
          }
      const auto run = [&](Index rows, const std::ptrdiff_t* at, T* c, const std::ptrdiff_t* place, bool add) {
        kernel.run(static_cast<int>(rows), x.data, at, x.stride[1], slot.segments, count, panel, panel_step, c, place,
                   add);
      };
      const auto [pd, ph, pw] = by_taps_ ? pixels_on(r->run, b, e) : std::array<Range, 3>{};
      if (!by_taps_ || r->count == pw.size()) {  // neighbours in the list
        const Index start = by_taps_ ? (pd.begin * e[1] + ph.begin) * e[2] + pw.begin : r->start;
        for (Index m = start, end = m + r->count; m < end; m += kMaxTileRows)
          run(std::min(kMaxTileRows, end - m), row + m, results + m * kernel.nr, crow, accumulate || by_taps_);
        continue;
      }
      Index rows = 0;
      for (Index i = 0; i < b.n; ++i)
        for (Index d = pd.begin; d < pd.end; ++d)
          for (Index h = ph.begin; h < ph.end; ++h) {
            const Index line = ((i * e[0] + d) * e[1] + h) * e[2];
            for (Index m = line + pw.begin; m < line + pw.end; ++m, ++rows)
              slot.pick[rows] = row[m], slot.place[rows] = m * kernel.nr;
          }
      run(rows, slot.pick, results, slot.place, true);
    }
  });
}

template <class T>
void Gather<T>::task(const Operands& o, Index box, Index block, const T* packed, const Part& once, const T* copies,
                     std::byte* scratch) const {
  const Box b = this->box(box);
  const Index g = block / blocks_;
  block %= blocks_;
  const Index c0 = block * channels_, channels = std::min(channels_, cd_ - c0);
  const Slot s = carve(scratch);
  const Index columns = panel_columns(channels);
  if (direct_ && holes_)
    each_block(channels, [&](Index n0, Index, const GatherKernel<T>& kernel) {
      std::fill_n(s.tiles + b.pixels * n0 + (b.pixels - 1) * kernel.nr, kernel.nr, T{});
    });
  for (Index k0 = 0; k0 < cs_; k0 += chunk_) {
    const Index k = std::min(chunk_, cs_ - k0);
    const Source x = source(o, g, b, k0, k, s.copy, once, copies);
    const Listed now{b.q0, b.q1, b.n, x.shift, x.stride};
    const bool lists = !(*s.listed == now);
    if (lists && direct_ && holes_) std::fill_n(s.pos, b.n * positions(b), b.pixels - 1);
    *s.listed = now;
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
        if (lists) s.rect_counts[i] = list_pixels(set, b, x, tiles.first, row, pos, rects);
        multiply(set, channels, b, rects, s.rect_counts[i], x, row, panels, tail, w, k, tiles, s, k0 > 0);
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

template <class T>
void Gather<T>::run(const Operands& o, std::byte* workspace) const {
  T* packed = reinterpret_cast<T*>(workspace);
  for (int number = 0; number < slots(); ++number) *carve(slot(workspace, number)).listed = {};
  if (prepack_) {
    const Index chunks = ceil_div(cs_, chunk_);
    parallel_for(spec_.problem.groups * blocks_ * chunks, slots(), [&](Index i, int number) {
      const Slot s = carve(slot(workspace, number));
      const Index k0 = i % chunks * chunk_, block = i / chunks % blocks_, g = i / chunks / blocks_;
      const Index c0 = block * channels_, channels = std::min(channels_, cd_ - c0);
      pack(o, g, c0, channels, k0, std::min(chunk_, cs_ - k0), s,
           packed + (g * group_panels_ + block * panel_columns(channels_)) * cs_ + k0 * panel_columns(channels));
    });
  }
  T* const copies = reinterpret_cast<T*>(workspace + panel_bytes());
  const Index of_image = boxes_of_image(), line = boxes_of_line();
  for (Index first = 0, count; first < boxes_; first += count) {
    count = std::min(at_once_, (at_once_ < of_image ? first / line * line + line : boxes_) - first);
    Part once{};
    if (copy_ == Copy::once) copy_once(o, once = part(box(first), box(first + count - 1)), copies);
    parallel_for(count * blocks_ * spec_.problem.groups, slots(), [&](Index i, int number) {
      task(o, first + i % count, i / count, packed, once, copies, slot(workspace, number));
    });
  }
}

template <class T>
std::string Gather<T>::explain() const {
  constexpr const char* kCopy[] = {"in place", "copied", "copied once"};
  std::ostringstream s;
  s << "gather " << (to_x_ ? "x" : "y") << " (" << kernels_.name << ' ' << kernel(vectors_ * kernels_.lanes).name
    << "): " << sets_.size() << " phase sets, boxes of " << box_n_ << 'x' << box_q_[0] << 'x' << box_q_[1] << 'x'
    << box_q_[2] << " pixels, " << channels_ << " of " << cd_ << " channels a task, chunks of " << chunk_ << " of "
    << cs_ << " source channels" << (by_taps_ ? ", taps along w one by one" : "") << "; image "
    << kCopy[static_cast<int>(copy_)];
  if (at_once_ < boxes_) s << ", " << at_once_ << " of " << boxes_ << " boxes at a time";
  s << ", weights "
    << (weights_in_place_ ? "in place"
        : prepack_        ? "packed once"
                          : "packed by tasks")
    << "; " << effort();
  return s.str();
}

template <class T>
std::unique_ptr<Pass> make_gather(const PassSpec& spec, const KernelSet<T>& kernels) {
  auto pass = make_planned<Gather<T>>(spec, kernels);
  if (!pass) return pass;
  if (auto in_place = pass->in_place()) return in_place;
  const KernelSet<T>& filled = filled_kernels(kernels, spec.unknown == Unknown::x ? spec.problem.ci : spec.problem.co);
  if (half_vectors_serve(spec) && &filled != &kernels) {
    PassSpec like = spec;
    if (spec.problem.pointwise()) like.sums = pass->summation();  // that of layouts which are read in place
    if (auto half = make_planned<Gather<T>>(like, filled)) return half;
  }
  return pass;
}
template std::unique_ptr<Pass> make_gather(const PassSpec&, const KernelSet<float>&);
template std::unique_ptr<Pass> make_gather(const PassSpec&, const KernelSet<double>&);

}  // namespace convbwd

// Planning: see gather.h.
#include <numeric>

#include "engine/gather.h"

namespace convbwd {
namespace {

// Of a single vector of columns: groups of 16 channels, 28x28 to 14x14, take 0.87 of the time of 480 pixels (Zen 5).
constexpr Index kNarrowBoxPixels = 1920;
constexpr Index kFarReduction = 256;  // channels of a chunk of weights in rows that may meet in one set of the caches
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
constexpr Index kFewThreads = 8;    // whose shares are counted task by task
// ns of a vector's products, of an element of a panel, and of one that is packed again and comes from memory
constexpr double kProduct = 0.18, kPacked = 0.25, kPackedFromMemory = 0.6;
// Of products with rows of weights far apart: from 0.95 to 1.5 (Sapphire Rapids). Of vectors of 32 bytes they need a
// line for half as many products, and packing pays for fewer pixels: 768 to 1536 channels, patches of 2x2, 98 pixels
// 0.65 of the time, 1024 to 512 channels 14x14 0.65, 512 to 2048 7x7, 8 images, 0.55; 49 pixels 1 to 1.3 (Zen 3).
constexpr double kInPlace = 1.2, kInPlaceNarrow = 1.5;
// Rows of weights from memory are fetched ahead while they are packed: 2048 to 512 channels 7x7 take 0.65 of the time,
// 1000 to 1000 0.8; 768 to 768, 2.4 MB, as long (Zen 3).
constexpr Index kWeightsFromMemory = 3 << 20;
constexpr Index kFewVectors = 4;    // of columns: more have products enough while they wait for the image
constexpr Index kLeastMeeting = 9;  // source channels whose lines do not stay in one set of the first-level cache
// ns of an element of an image that is copied once, and times as long that products with one in place take if its
// planes meet, if segments are short and could be merged, and else. For vectors of 32 bytes (Zen 3, strict): 512 to 512
// channels 32x32 0.68 to 0.78, 64 to 64 80x128 0.78, 128 to 256 75x75 and 512 40x40 0.9, 64 to 96 35x35 1.03.
constexpr double kCopied = 1.6, kCopiedFromMemory = 3.2, kMeetingInPlace = 1.25, kShortInPlace = 1.15,
                 kImageInPlace = 1.08;
// The same of planes that meet and are read in steps, up to so many bytes of an image, and of larger ones: patches of
// 2x2, 256 to 512 channels 32x32 results 0.85, 128 to 256 64x64 0.57, 64 to 128 128x128 0.55, 256x256 0.65 (Zen 3).
constexpr double kSteppedInPlace = 1.3, kFarSteppedInPlace = 2.3;
constexpr Index kSteppedBytes = 6 << 20;
constexpr Index kCopiedBytes = 8 << 20;  // of images that are copied at once, if more than one
constexpr double kMuchWork = 1 << 24;    // products: 0.15 ms

}  // namespace

template <class T>
Gather<T>::Gather(const PassSpec& spec, const KernelSet<T>& kernels)
    : SlottedPass(spec), Roles(spec), kernels_(kernels), by_taps_(sums_by_taps(spec, kernels)) {
  const Problem& p = spec_.problem;
  maps_ = gather_maps(p, to_x_, kernels.lanes);
  if (by_taps_) run_by_taps(maps_[2]);
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
         8 * vectors * reached(box_q_) <= 5 * max_taps_ * box_q_[0] * box_q_[1] * box_q_[2];
}

// What the formats of the operands allow to do in place.
template <class T>
void Gather<T>::lay_out(const Operands& o) {
  const View &d = destination(o), &x = image(o);
  const bool readable = x.dtype == compute_dtype<T> && x.plain();
  if (copy_readable_ == Copy::once)
    copy_ = readable && x.stride[1] == 1 ? Copy::none : Copy::once;
  else
    copy_ = readable && (copy_readable_ == Copy::none || !planes_meet(x)) ? Copy::none : Copy::by_tasks;
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

// Pixels of the image that so many side by side read, or could.
template <class T>
Index Gather<T>::reached(const Index3& pixels) const {
  Index plane = 1;
  for (int a = 0; a < 3; ++a)
    plane *= std::min(maps_[a].src,
                      (pixels[a] - 1) * maps_[a].src_step + std::max<Index>(1, reach_[a].end - reach_[a].begin));
  return plane;
}

// Those of which what they read is copied in this room: of whole images, else of one, in turns of the same size.
template <class T>
Index Gather<T>::boxes_at_once(Index room) const {
  const Index images = room / image_bytes() / box_n_, of_image = boxes_of_image(),
              n = ceil_div(spec_.problem.n, box_n_);
  if (images > 0) return even_part(n, std::min(kCopiedBytes / image_bytes() / box_n_, images)) * of_image;
  Index most = boxes_of_line();
  while (most > 1 && reached(side_by_side(most)) * pixel_bytes() > room) most = even_part(most, most - 1);
  return most;
}

// Pixels of a turn's copy.
template <class T>
Index Gather<T>::copied_volume() const {
  const Index of_image = boxes_of_image();
  return at_once_ < of_image ? reached(side_by_side(at_once_))
                             : std::min(spec_.problem.n, at_once_ / of_image * box_n_) * image_volume();
}

template <class T>
bool Gather<T>::configure(const Tiling& tiling) {
  vectors_ = tiling.vectors;
  channels_ = std::min(tiling.channels, cd_);
  blocks_ = ceil_div(cd_, channels_);
  set_box(tiling.pixels);
  prepack_ = tiling.weights == Weights::packed_once;
  weights_in_place_ = tiling.weights == Weights::in_place;
  if (copy_ == Copy::by_tasks) copy_plane_ = odd_multiple(reached(box_q_), kernels_.lanes);
  group_panels_ = (blocks_ - 1) * panel_columns(channels_) + panel_columns(cd_ - (blocks_ - 1) * channels_);
  const Index bytes = carve({}).bytes, slots = std::max<Index>(tiling.slots, spec_.threads);
  Index copies = 0;
  at_once_ = boxes_;
  if (copy_ == Copy::once) {
    at_once_ = boxes_at_once(static_cast<Index>(spec_.budget) - panel_bytes() - slots * bytes);
    copies = round_up(copied_volume() * pixel_bytes(), 64);
  }
  return share(boxes_ * blocks_ * spec_.problem.groups, panel_bytes() + copies, bytes, tiling.slots);
}

// With a copy of the image, where that is expected to take less time.
template <class T>
typename Gather<T>::Tiling Gather<T>::search_copies(const Operands& dense, Index slots) {
  const auto search_with = [&](Copy copy) {
    copy_readable_ = copy;
    lay_out(dense);
    return search(slots);
  };
  const bool meet = planes_meet(image(dense));
  Tiling best = search_with(meet && copies_pay() ? Copy::by_tasks : Copy::none);
  if (copy_readable_ == Copy::by_tasks && best.weights != Weights::packed_once)
    best = search_with(Copy::none);  // what a copy saves is less than its room costs
  if (!narrow(kernels_) || !kernels_.any_bstep || spec_.problem.pointwise()) return best;
  const Copy other = copy_readable_;
  const Tiling once = search_with(Copy::once);
  const bool steps = maps_[0].src_step * maps_[1].src_step * maps_[2].src_step > 1;
  const double meeting = !steps                          ? kMeetingInPlace
                         : image_bytes() > kSteppedBytes ? kFarSteppedInPlace
                                                         : kSteppedInPlace;
  const double in_place = meet ? meeting : chunk_ <= kShortSegment ? kShortInPlace : kImageInPlace;
  if (once.time > 0 && (best.time == 0 || once.time < in_place * best.time)) return once;
  copy_readable_ = other;
  lay_out(dense);
  return best;
}

template <class T>
bool Gather<T>::plan() {
  const Operands dense = densely(spec_.operands);
  // Room for two threads where it costs little more. Sums of GEMMs may depend on their shapes, and those on tiles.
  const Index most = kernels_.any_bstep ? std::min<Index>(spec_.threads, 2) : 2;
  Tiling tiling = search_copies(dense, most);
  if (most > 1 && (tiling.time == 0 || tiling.weights == Weights::packed_by_tasks))
    if (const Tiling one = search(1); tiling.time == 0 || tiling.time >= (tasks_are_shared() ? 1 : 1.5) * one.time)
      tiling = one;
  for (Index slots = sharers(); slots > 2 && tiling.time > 0 && tasks_are_shared(); slots /= 2) {
    const Copy copy = copy_readable_;
    if (const Tiling more = search_copies(dense, slots); more.time > 0 && more.time < tiling.time) {
      tiling = more;
    } else {
      copy_readable_ = copy;
      lay_out(dense);
    }
  }
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

// Of the channels of all boxes that of the thread with most of them: the last block may be narrow.
template <class T>
double Gather<T>::largest_share() const {
  const Index threads = slots();
  if (threads > kFewThreads || tasks_ >= kMinTasks * threads) return waits(threads) / static_cast<double>(threads);
  const Index last = cd_ - (blocks_ - 1) * channels_;
  std::vector<Index> next, channels(static_cast<std::size_t>(threads));
  for (Index t = 0; t <= threads; ++t) next.push_back(tasks_ * t / threads);
  const std::vector<Index> first = next;
  for (Index n = 0; n < tasks_; ++n) {  // as the pool deals them out
    const auto least = std::ranges::min_element(channels);
    std::size_t run = static_cast<std::size_t>(least - channels.begin());
    while (next[run] == first[run + 1]) run = (run + 1) % channels.size();
    *least += next[run]++ / boxes_ % blocks_ == blocks_ - 1 ? last : channels_;
  }
  return static_cast<double>(std::ranges::max(channels)) / static_cast<double>(boxes_ * spec_.problem.groups * cd_);
}

// Of the tilings that leave room for so many slots, blocks of the best width with shared panels, else the one that is
// expected to take least time; its time is 0 where nothing fits.
template <class T>
typename Gather<T>::Tiling Gather<T>::search(Index slots) {
  const Problem& p = spec_.problem;
  const Index lanes = kernels_.lanes, budget = static_cast<Index>(spec_.budget);
  const Index item = static_cast<Index>(sizeof(T));
  Index members = 1, live_sets = 0, all_taps = 0, together = 1;  // taps of a sum
  for (const PhaseSet& s : sets_) {
    if (s.taps == 0) continue;
    members = std::max(members, s.members), ++live_sets, all_taps += s.taps;
    together = std::max(together, taps_of_sum(s, by_taps_));
  }
  const int widest = widest_block(kernels_, cd_ * members);
  // Channels of a block of so many vectors, and bytes that its results take for each pixel.
  const auto unit = [&](int vectors) { return std::max<Index>(1, vectors * lanes / members); };
  const auto unit_bytes = [&](int vectors) {
    return round_up(unit(vectors) * members, lanes) * item * std::max<Index>(1, live_sets);
  };
  // The chunk fixes the order of sums: it depends on the shape alone.
  const auto affordable = [&](Index channels) {
    return bytes_of_panels(budget, by_taps_) / item / std::max<Index>(1, panel_columns(channels));
  };
  Index chunk = weights_may_stay_ && !one_member_ ? kFarReduction : affordable(unit(widest));
  if (chunk < kLeastChunk) chunk = std::min(kLeastChunk, affordable(1));
  chunk = std::clamp<Index>(chunk, 1, std::min(cs_, longest_chunk(max_taps_, together, chunk)));
  const bool meet = meet_in_cache((to_x_ ? p.y_plane() : p.x_plane()) * item);  // planes of a dense image
  if (!p.pointwise() && meet) chunk = std::min(chunk, kMeetingReduction);
  const GatherSums kept = GatherSums::of(spec_.sums);
  chunk_ = kept.chunk > 0 ? std::min(cs_, kept.chunk) : even_part(cs_, chunk);
  blocked_ = kept.chunk > 0 ? kept.blocked : chunk_ * together > kStraight;
  const Index image = count_[0] * count_[1] * count_[2], volume = p.n * image;
  const Index most = widest == 1 ? kNarrowBoxPixels : kBoxPixels;
  const Index pixels = std::max<Index>(kLeastShared, most / std::max<Index>(1, live_sets / 2));
  const bool far_weights = p.groups * cs_ * cd_ * p.taps() * item > kWeightsFromMemory;
  // Time of a product with every column, and of packing that often, for all pixels.
  const Index columns = cd_ * members;
  const auto time = [&](int vectors, Index packs) {
    const double again = far_weights && packs > 1 ? static_cast<double>(packs - 1) * (kPackedFromMemory - kPacked) : 0;
    return static_cast<double>(volume * column_cost(kernels_, columns, vectors)) * kProduct / 8 +
           static_cast<double>(columns) * (static_cast<double>(packs) * kPacked + again);
  };
  const double copying = (image_bytes() > kFromMemory ? kCopiedFromMemory : kCopied) / static_cast<double>(all_taps);
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
    if (copy_ == Copy::once) {
      const bool parts = at_once_ < boxes_of_image();  // which overlap, and read weights again
      if (parts && !meet) return false;
      tiling.time +=
          copying * static_cast<double>(parts ? ceil_div(boxes_, at_once_) * copied_volume() : p.n * image_volume());
    }
    if (tasks_are_shared()) tiling.time *= largest_share();
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
  // As many channels a thread.
  const Index even = slots > 1 && tasks_are_shared() ? round_up(ceil_div(cd_, spec_.threads), lanes) : 0;
  // Few boxes, each with its own panels: the larger the box, the less packing, the wider the block, the faster the
  // kernel.
  for (Index parts = 1, last = 0; last != kLeastPixels; parts += ceil_div(parts, 2)) {
    const Index px =
        std::max(kLeastPixels, parts <= p.n ? ceil_div(p.n, parts) * image : ceil_div(image, ceil_div(parts, p.n)));
    if (px == last) continue;
    last = px;
    for (int v = widest; v >= 1; --v) {
      if (px <= std::max(pixels, kOwnTileBytes / unit_bytes(v))) offer(v, unit(v), px, Weights::packed_by_tasks);
      if (one_member_ && even > unit(v) && px <= pixels) offer(v, even, px, Weights::packed_by_tasks);
      if (px <= pixels && weights_may_stay_)
        offer(v, one_member_ ? unit(v) : round_up(unit(v), lanes / std::gcd(members, lanes)), px, Weights::in_place);
    }
  }
  return best;
}

#define CONVBWD_INSTANTIATE(T)                                      \
  template Gather<T>::Gather(const PassSpec&, const KernelSet<T>&); \
  template bool Gather<T>::plan();
CONVBWD_INSTANTIATE(float)
CONVBWD_INSTANTIATE(double)

}  // namespace convbwd

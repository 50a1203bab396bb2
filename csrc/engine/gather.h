// Unknown x and unknown y by the gathering kernel: no im2col, no inserted zeros, no scatter.
//
// The destination is cut into boxes of pixels. The pixels of a box that read the same taps form tiles of a kernel, so
// that a tap in padding is left out and never multiplied. Columns are destination channels (times the members of a
// phase), the reduction runs over taps (segments) and source channels, in chunks whose sums are added in order. Where
// windows are as large as the image hardly two pixels of a row read the same taps: there the sums of the taps at one
// place along w are added, place by place, so that tiles are what each is inside for.
//
// gather_plan.cpp plans, gather.cpp walks the tasks, gather_pack.cpp makes panels of weights and copies of the image,
// gather_store.cpp writes results.
#pragma once

#include <vector>

#include "engine/estimate.h"
#include "engine/rows_out.h"

namespace convbwd {

// Products of a segment that takes noticeably longer than as a part of another: 64 channels 60x80, 7x7, in chunks of 16
// take 0.93 of the time, chunks of 64 as long or up to 1.04 (Zen 3).
constexpr Index kShortSegment = 32;

template <class T>
std::unique_ptr<Pass> make_pointwise(const PassSpec& spec, const KernelSet<T>& kernels, Index chunk, bool blocked);

template <class T>
class Gather final : public SlottedPass, Roles {
 public:
  Gather(const PassSpec& spec, const KernelSet<T>& kernels);
  bool plan();
  /// A pass that forms the same sums where they belong; null where there is none. The shapes of GEMMs would be others.
  std::unique_ptr<Pass> in_place() const {
    const bool may = spec_.problem.pointwise() && kernels_.any_bstep;
    return may ? make_pointwise(spec_, kernels_, chunk_, blocked_) : nullptr;
  }

  std::string explain() const override;
  Index3 tile() const override { return positions_of(maps_, box_q_); }
  Sums summation() const override { return GatherSums{chunk_, blocked_, by_taps_}.sums(); }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  struct Box : PixelBox {
    Index n0, n;
    Index pixels;  // of all sets; one more, zeros, where there are positions without taps
  };
  // Pixels of a box that read the taps of these runs: [start, start + count) of its list, or, by taps, some of it.
  struct Rect {
    Index start, count;
    std::array<const Phase::Run*, 3> run;
  };
  // Of the image: what some boxes read, without channels.
  struct Part {
    Index5 at, extent;
    Index volume() const { return extent[0] * extent[2] * extent[3] * extent[4]; }
  };
  // Where a task finds its chunk of source channels.
  struct Source {
    const T* data;
    Index5 stride;
    Index shift;  // offset of source position 0
  };
  // What the lists of a slot's pixels are for: the next task, of another image or group, may find them.
  struct Listed {
    Index3 q0, q1;
    Index n, shift;
    Index5 stride;
    bool operator==(const Listed&) const = default;
  };
  // Sums of a set's pixel m and columns n0 on (of a block of nr) begin at data[pitch * n0 + (first + m) * nr]. Sets
  // have tiles one behind the other, but share them where all positions of a box are transposed into place together.
  struct Tiles {
    T* data;
    Index first, pitch;
  };
  struct Slot {
    T *tiles, *panels, *copy, *rows, *line, *bias, *taps;
    T** table;
    Index* member;
    std::ptrdiff_t *row, *pick, *place, *pos;
    Segment* segments;
    Rect* rects;
    Index* rect_counts;
    Listed* listed;
    Stream<T>* streams;
    Index bytes;
  };

  enum class Weights : std::uint8_t { in_place, packed_once, packed_by_tasks };
  enum class Copy : std::uint8_t { none, by_tasks, once };  // of the image operand
  // What fits so many slots, and how long it is expected to take: one thread, or all where tasks are shared.
  struct Tiling {
    Index slots = 1;
    int vectors = 1;  // of a block of columns
    Index channels = 1, pixels = 1;
    Weights weights = Weights::in_place;
    double time = 0;
  };

  Tiling search(Index slots);
  // Whether a tiling may follow the number of threads, and the work is worth it.
  bool tasks_are_shared() const;
  double largest_share() const;
  void lay_out(const Operands& o);
  bool configure(const Tiling& tiling);
  void set_box(Index pixels);
  Slot carve(Carver carver) const;
  Index set_pixels(const PhaseSet& s, const Box& b) const {
    const Index3 e = b.extent(s);
    return s.taps ? b.n * e[0] * e[1] * e[2] : 0;
  }
  // Destination positions of an image of a box.
  Index positions(const Box& b) const {
    const auto [d, h, w] = b.positions(maps_);
    return d.size() * h.size() * w.size();
  }
  Box box(Index i) const;
  Index panel_columns(Index channels) const {  // sum over sets of taps * padded columns
    Index sum = 0;
    for (const PhaseSet& s : sets_) sum += s.taps * round_up(s.columns(channels), kernels_.lanes);
    return sum;
  }
  // Columns of the last block of weights that stay in place: it is packed if its last vector reaches beyond them.
  Index packed_columns(Index channels) const {
    const Index last = one_member_ ? channels % (vectors_ * kernels_.lanes) : 0;
    return last % kernels_.lanes ? last : 0;
  }
  Index image_volume() const { return maps_[0].src * maps_[1].src * maps_[2].src; }
  Index panel_bytes() const {  // of weights that are packed once
    return prepack_ ? round_up(spec_.problem.groups * group_panels_ * cs_ * static_cast<Index>(sizeof(T)), 64) : 0;
  }
  Index image_bytes() const { return pixel_bytes() * image_volume(); }
  Index pixel_bytes() const { return spec_.problem.groups * cs_ * static_cast<Index>(sizeof(T)); }
  bool planes_meet(const View& x) const;
  bool copies_pay();
  Tiling search_copies(const Operands& dense, Index slots);
  Index reached(const Index3& pixels) const;
  Index boxes_of_image() const { return pixel_boxes(count_, box_q_); }
  // The axis along which boxes follow each other by number.
  std::size_t cut_axis() const {
    std::size_t a = 2;
    while (a > 0 && box_q_[a] == count_[a]) --a;
    return a;
  }
  Index boxes_of_line() const { return ceil_div(count_[cut_axis()], box_q_[cut_axis()]); }
  // Pixels that such boxes have together, at most.
  Index3 side_by_side(Index boxes) const {
    Index3 q = box_q_;
    const std::size_t a = cut_axis();
    q[a] = std::min(count_[a], boxes * q[a]);
    return q;
  }
  Index boxes_at_once(Index room) const;
  Index copied_volume() const;
  const GatherKernel<T>& kernel(Index columns) const { return gathering_kernel(kernels_, columns, blocked_); }
  template <class F>
  void each_block(Index columns, F&& f) const;  // f(first column, columns, kernel)

  void pack(const Operands& o, Index g, Index c0, Index channels, Index k0, Index k, const Slot& slot, T* panels) const;
  void list_members(const View& w, const PhaseSet& s, Index* member) const;
  void pack_block(const View& w, const PhaseSet& s, Index channels, Index n0, Index n, Index nr, Index k,
                  const Slot& slot, T* panel) const;
  Index list_pixels(const PhaseSet& s, const Box& b, const Source& x, Index first, std::ptrdiff_t* row,
                    std::ptrdiff_t* pos, Rect* rects) const;
  Part part(const Box& first, const Box& last) const;
  void copy_once(const Operands& o, const Part& part, T* copies) const;
  Source source(const Operands& o, Index g, const Box& b, Index k0, Index k, T* copy, const Part& once,
                const T* copies) const;
  void multiply(const PhaseSet& s, Index channels, const Box& b, const Rect* rects, Index rect_count, const Source& x,
                const std::ptrdiff_t* row, const T* panels, const T* packed, const View& w, Index k, const Tiles& tiles,
                const Slot& slot, bool accumulate) const;
  void store(const Operands& o, Index g, Index c0, Index channels, const Box& b, const Slot& s) const;
  void store_pieces(const View& d, Index channels, const PhaseSet& s, const Box& b, const T* tiles,
                    const std::ptrdiff_t* pos, const Slot& slot) const;
  void store_direct(const View& d, Index channels, const Box& b, const Slot& slot) const;
  void store_phases(const View& d, Index channels, std::size_t first, const Box& b, const T* tiles,
                    const std::ptrdiff_t* pos, bool cleared, const Slot& slot) const;
  void task(const Operands& o, Index box, Index block, const T* packed, const Part& once, const T* copies,
            std::byte* scratch) const;
  // Pixels of a line that is converted; not a power of two, so that lines do not share places of the cache.
  Index line() const { return std::min<Index>(240, round_up(positions(box(0)), kernels_.lanes)); }

  const KernelSet<T>& kernels_;
  const bool by_taps_;  // runs along w are those of a tap, and sums of a call those of a place along w
  std::array<AxisMap, 3> maps_;
  std::vector<PhaseSet> sets_;
  bool blocked_ = false;
  Index max_taps_ = 1, max_rects_ = 1, max_streams_ = 0;
  Index3 count_{1, 1, 1};            // most pixels of any phase, an axis
  std::array<Range, 3> reach_{};     // smallest and one past the largest source offset, an axis
  bool one_member_;                  // columns are channels
  bool holes_ = false;               // there are positions without taps
  Copy copy_ = Copy::none;           // of the image operand at hand
  Copy copy_readable_ = Copy::none;  // of an image that could be read in place: by tasks, if its planes meet
  bool member_major_ = false;        // columns ordered [member][channel] rather than [channel][member]
  bool patches_ = false;             // columns of a channel lie side by side along w
  bool direct_ = false;              // positions are dense in the destination: transpose all of them into place
  bool converts_ = false;            // by way of short lines, which are then rounded to the destination's type
  bool weights_may_stay_ = false, weights_in_place_ = false, prepack_ = false;
  Index copy_plane_ = 0, group_panels_ = 0;
  Index chunk_ = 1, channels_ = 1, blocks_ = 1, vectors_ = 1;
  Index box_n_ = 1, boxes_ = 1;
  Index at_once_ = 1;  // boxes: where the image is copied once they take turns, all of some images or a few of one
  Index3 box_q_{1, 1, 1};
};

template <class T>
template <class F>
void Gather<T>::each_block(Index columns, F&& f) const {
  const Index step = vectors_ * kernels_.lanes;
  for (Index n0 = 0; n0 < columns; n0 += step) {
    const Index n = std::min(step, columns - n0);
    f(n0, n, kernel(n));
  }
}

}  // namespace convbwd

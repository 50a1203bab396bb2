// Unknown x and y on a matrix unit: rows of a product are destination channels (times the members of a phase), columns
// the pixels of a zero-bordered flat copy of the source, as in rows.cpp; the sum runs over taps and source channels.
// matrix_images_plan.cpp plans, matrix_images.cpp computes; see matrix.h.
#pragma once

#include "engine/matrix.h"
#include "engine/rows_out.h"

namespace convbwd::matrix {

class Matrix final : public GuardedPass, Roles {
 public:
  Matrix(const PassSpec& spec, const KernelSet<float>& kernels, const MatrixKernels& unit);
  bool plan();
  double nanoseconds() const override { return nanoseconds_; }
  std::string explain() const override;
  Index3 tile() const override { return positions_of(maps_, layout_.box); }
  Sums summation() const override {
    return sums_of(SumKind::matrix, layout_.chunk, layout_.part, direct_->summation()[3]);
  }
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  // Who brings in what. Tasks may each split the source of their own box, and find the weights packed once for all of
  // them (packed) or pack them too (own). Or all tasks work on one box after the other, whose source is split once,
  // and each packs the weights of its own channels (shared).
  enum class Mode { packed, own, shared };
  static constexpr Mode kModes[] = {Mode::packed, Mode::shared, Mode::own};
  struct Layout {
    Mode mode = Mode::own;
    Index3 box{1, 1, 1};
    Index batch = 1;            // images of a box
    Index chunk = 1, part = 1;  // blocks of source channels that are split, and whose weights are packed, at a time
    Index panels = 1;           // of a task
  };
  // How the rows and steps of a phase set find their weights and pixels.
  struct Steps {
    Index taps, rows;                  // rows of weights at a tap: channels of a panel times members
    Index results;                     // rows of results before those of this set, a channel
    std::vector<std::ptrdiff_t> a, b;  // [block of source channels][tap]
  };
  struct Slot {
    std::uint32_t* pairs;
    std::uint16_t* panel;
    float *plane, *weights, *results, *line;
    Stream<float>* streams;
    Planes::Part* parts;
    Index bytes;
  };
  // Images [n, n + images) of a group at the pixels of a box.
  struct Work {
    PixelBox box;
    Index g, n, images;
  };
  // Blocks of source channels.
  struct Blocks {
    Index first, count;
  };

  double search_modes(Index slots, Layout& best);
  bool search(Mode mode, Index least);
  bool configure(const Layout& layout, Index least);
  double estimate() const;
  double moved() const;
  void list_steps();
  Slot carve(Carver carver) const;
  Work work(Index i) const;
  void split(const View& image, const Work& work, Index n, const Blocks& blocks, const Slot& s, std::uint32_t* pairs,
             Fit& fit) const;
  void pack(const View& w, Index g, Index panel, const Blocks& blocks, float* scratch, std::uint16_t* to,
            Fit& fit) const;
  void add(const Operands& o, const Work& work, Index panel, Index first_panel, Index channels, const Blocks& chunk,
           const std::uint32_t* pairs, const std::uint16_t* packed, const Slot& s, Fit& fit) const;
  void multiply(const PixelBox& box, const Blocks& part, const std::uint16_t* panel, const std::uint32_t* pairs,
                Index channel, Index live, Index channels, float* results, const View* in_place) const;
  View target(const Operands& o, const Work& work, Index n, Index first_panel) const;
  bool in_place(const Operands& o) const;
  void store(const Operands& o, const Work& work, Index first_panel, Index channels, const Slot& s) const;

  Index panel_live(Index panel) const { return std::min(panel_channels_, cd_ - panel * panel_channels_); }
  // In elements: a block of a panel, a block of source channels, and an image (the last columns of a call reach beyond
  // the last row).
  Index panel_block() const { return weight_terms_ * panel_channels_ * panel_taps_ * kDepth; }
  Index pair_block() const { return image_terms_ * pair_term(); }
  Index pair_term() const { return kDepth / 2 * planes_.channel(); }
  Index image_pairs() const { return layout_.chunk * pair_block() + 2 * planes_.slack(); }
  Index image_results(Index channels) const { return channels * rows_ * pitch_; }
  Index rounds() const { return spec_.problem.groups * boxes_ * batches_; }

  const KernelSet<float>& kernels_;
  const MatrixKernels& unit_;
  std::array<AxisMap, 3> maps_;
  std::vector<PhaseSet> sets_;
  std::vector<Steps> steps_;          // of each set with taps
  std::vector<std::ptrdiff_t> from_;  // where the split finds weights: [set][tap][channel][member]
  Index blocks_;                      // of source channels
  int image_terms_, weight_terms_;
  bool plain_ = true;             // every pixel reads the source at its own place only
  Index rows_ = 0, streams_ = 0;  // results of a channel; phases along w
  Index panel_channels_ = 1, panels_ = 1, panel_taps_ = 0;
  Index3 count_;
  Layout layout_;
  Index chunk_ = 0, part_ = 0;  // to be kept, which fix the order of sums; 0 while they may be chosen
  double nanoseconds_ = 0;
  Index copied_ = 2;  // source channels that are copied together
  Planes planes_;
  Index plane_ = 0, pitch_ = 0;  // of results
  Index boxes_ = 1, batches_ = 1;
};

}  // namespace convbwd::matrix

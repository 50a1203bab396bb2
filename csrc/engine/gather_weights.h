// Unknown w by the gathering kernel: a reduction over output pixels. Rows of a tile are (input channel, tap) pairs
// whose taps lie inside the image for the same outputs, so that one list of segments serves the tile and padding is
// never multiplied; columns are output channels, y being packed to [pixel][column]. Steps of one leave x and y free to
// exchange these roles, which fills the columns where there are few output channels; few windows are packed with their
// taps as columns, and results are rows of w. Long reductions run in chunks whose sums are added in order, and where
// there are few results in slabs that separate tasks sum and one adds up.
//
// gather_weights.cpp plans and walks the tasks, gather_weights_sum.cpp packs panels, multiplies and stores.
#pragma once

#include <vector>

#include "engine/estimate.h"
#include "engine/slabs.h"
#include "engine/weights_out.h"

namespace convbwd {

template <class T>
class GatherWeights final : public SlottedPass {
 public:
  GatherWeights(const PassSpec& spec, const KernelSet<T>& kernels, bool may_unroll = true);
  bool plan();
  std::size_t workspace_bytes() const override {
    return std::max(SlottedPass::workspace_bytes(), careful_ ? careful_->workspace_bytes() : 0);
  }
  std::string explain() const override;
  void run(const Operands& operands, std::byte* workspace) const override;

 private:
  // Where the rows of a tap are in the image and among the results, from the first of a channel.
  struct Tap {
    std::ptrdiff_t row, place;
  };
  struct Slot {
    T *tiles, *panel, *copy, *windows, *lines;
    Segment* segments;
    Tap* taps;
    Index bytes;
  };
  using Index4 = std::array<Index, 4>;  // in the order of order_

  bool search();
  bool fit();
  Index most_rows(int vectors) const;
  void divide_among(Index threads);
  bool configure(int vectors, Index rows, Index taps);
  Slot carve(Carver carver) const;
  // Results of a task: columns from n0 on, rows of channels from m0 on, taps from t0 on; rows of them lie `pitch`
  // apart.
  struct Block {
    Index g, n0, n, m0, m, t0, taps, pitch;
  };
  Block block_of(Index number) const;
  // Whether results are formed where they belong, which rows of whole vectors that are rows of w can be. Tasks have
  // more rows then: the shapes of GEMMs would depend on the layout.
  bool in_place() const {
    const View& w = spec_.operands.w;
    return kernels_.any_bstep && swap_ && problem_.pointwise() && !slabs_.several() && w.dtype == compute_dtype<T> &&
           (unrolls_ ? rows_of_taps(w) : w.plain() && w.stride[1] == 1);
  }
  bool in_place(const Block& b) const { return in_place() && b.n % kernels_.lanes == 0; }
  View weights(const Operands& o, const Block& b) const {
    if (unrolls_) {  // as a matrix
      View w = o.w.at({b.g * spec_.problem.co + b.m0, 0, 0, 0, 0}, {b.m, b.n, 1, 1, 1});
      w.data = advance(w.data, w.dtype, b.n0);
      w.stride[1] = 1;
      return w;
    }
    return o.w.at({b.g * spec_.problem.co + (swap_ ? b.m0 : b.n0), swap_ ? b.n0 : b.m0, 0, 0, 0}, o.w.size);
  }
  void sum(const Operands& o, const Block& b, const Range& chunks, const Slot& s, T* tiles) const;
  void pack_windows(const View& x, const Block& b, const Index5& at, const Index5& size, const Index5& step,
                    const Slot& s) const;
  // Positions of an image that the windows of so many positions of y cover.
  Index3 covered(const Index3& positions) const {
    const Problem& p = spec_.problem;
    Index3 c;
    for (std::size_t a = 0; a < 3; ++a) c[a] = (positions[a] - 1) * p.stride[a] + (p.w[a] - 1) * p.dilation[a] + 1;
    return c;
  }
  void chunk(const Operands& o, const Block& b, Index number, const Slot& s, T* tiles, bool accumulate) const;
  // Along axis i of the nest an output moves by move[i] elements, from `origin` on.
  struct Source {
    const T* data;
    Index5 stride;
    Index4 move;
    Index origin;
  };
  using Class = std::array<const TapClass*, 3>;
  Source source(const View& image, const Block& b, const Index4& begin, const Index4& extent, const Slot& s) const;
  Index list_segments(const Source& x, const Class& c, const Index4& begin, const Index4& extent, Index nr,
                      Segment* segments) const;
  Index list_taps(const Source& x, const Class& c, const Block& b, Tap* taps) const;
  // Adds the products of some rows of channels with the packed panel of a chunk.
  void multiply(const Operands& o, const Block& b, const Index4& begin, const Index4& extent, const Slot& s, T* tiles,
                bool accumulate) const;
  void store(const Operands& o, const Block& b, const T* tiles, T* lines) const;
  // A straight sum over a chunk has up to 3 times PyTorch's error, a blocked one takes 3 % longer (Sapphire Rapids).
  const GatherKernel<T>& kernel(Index columns) const {
    return gathering_kernel(kernels_, columns, chunk_pixels_ > kStraight);
  }
  Index width() const { return vectors_ * kernels_.lanes; }

  const KernelSet<T>& kernels_;
  const bool unrolls_;     // columns are the taps of input channels
  const bool padded_;      // and some of them lie in padding
  const bool swap_;        // x and y have exchanged their roles
  const Problem problem_;  // with these roles: y is packed, x the image
  const Index cm_, cn_;
  std::unique_ptr<GatherWeights> careful_;  // leaves padding out
  bool copy_ = false;                       // image operand through a tile copy
  std::array<std::vector<TapClass>, 3> classes_;
  // Nest of the reduction, axes 0 (n) and 1 to 3 (d, h, w) of an image; the innermost is the one with long rows.
  Index4 order_{0, 1, 2, 3}, size_, chunk_, chunks_;
  Index chunk_pixels_ = 1;
  Slabs slabs_;
  Index copy_plane_ = 0, copy_images_ = 1, copy_rows_ = 1;  // rows of channels that are multiplied at a time
  int vectors_ = 1;
  Index rows_ = 1, row_blocks_ = 1, column_blocks_ = 1;
  Index taps_ = 1, tap_blocks_ = 1;  // all taps, unless those of a single channel are too many for a task
  Index tile_elements_ = 0, least_slots_ = 1;
  // Of blocks that may be tried.
  int widest_ = 1;
  bool divides_rows_ = false;  // of few column blocks, so that two tasks share them unless slabs do
};

}  // namespace convbwd

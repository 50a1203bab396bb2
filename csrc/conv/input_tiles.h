// Layer conv: Conv3DBackpropInput of Ascend C, the gradient of an input computed tile by tile.
#pragma once

#include <optional>
#include <vector>

#include "base/view.h"
#include "conv/input_tiling.h"

namespace convbwd {

/// The tiles of one share of the work at a time (a SingleShape: rows of one plane, a range of channels). gradOutput is
/// in NDC1HWC0, the weight in FRACTAL_Z_3D, the gradient in NDC1HWC0 or NCDHW. A tile is a part of the gradient, and
/// every part is an input gradient of its own: of fewer rows, columns and channels, with other padding. That is what is
/// planned and computed, over views of the memory that was given, and summed in float32.
///
/// All functions throw Error(value) for what does not fit, and then leave the walk where it was.
class CONVBWD_API InputTiles {
 public:
  using Memory = ConvbwdAscendcMemory;

  /// Where a tile is: `count[0]` positions of a plane from `first[0]` on, row by row, and `count[1]` channels; of the
  /// SingleShape.
  struct Place {
    Index first[2], count[2];
  };

  InputTiles(const InputTiling& tiling, DType dtype, DType output_dtype, bool channels_first);

  void set_single_shape(std::uint64_t m, std::uint64_t k, std::uint32_t n);
  void set_start_position(std::uint32_t din, std::int32_t ho);
  void set_grad_output(const Memory& memory);
  void set_weight(const Memory& memory);

  /// Computes the next tile, or the first of the SingleShape. False: there is none.
  bool iterate(bool partial_sum, bool first);
  /// Of the tile that was computed last.
  const Place& place() const;
  void get_tensor_c(const Memory& output, unsigned atomic, bool sequential) const;

 private:
  // Rows and columns of the plane that are a rectangle.
  struct Box {
    Index first[2], count[2];
  };

  struct Start {
    Index din, row, skipped;  // plane; first row; rows of gradOutput before what it was given from
  };
  struct Tile {
    Place place{};
    Index din = 0;
    bool reached = false;     // by any tap
    std::vector<float> sums;  // positions x channels, the latter in whole blocks
  };

  void compute(const Start& from, Index m0, Index n0);  // the next tile
  void multiply(const Start& from, Index kd, Index dout, const Box& box, Index channel, float* sums) const;

  const InputTiling t_;
  const DType dtype_, output_dtype_;
  const Index c0_, plane_, cell_;  // c0, positions of a plane, weights of a tap of c0 input channels
  const bool channels_first_;

  Index m_ = 0, n_ = 0, blocks_ = 0;  // of the SingleShape; of channels of gradOutput
  std::optional<Start> start_;        // of the next walk from the first tile on
  Start at_{};                        // of this one
  Memory grad_output_{}, weight_{};

  bool has_tile_ = false, exhausted_ = false;
  Index tile_m_ = 0, tile_n_ = 0;  // number of the tile
  Tile tile_, next_;               // which replaces it once it is whole
};

}  // namespace convbwd

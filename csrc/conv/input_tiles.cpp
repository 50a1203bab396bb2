// Layer conv: tiles of an input's gradient, each a plan of its own.
#include "conv/input_tiles.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/cpu.h"
#include "convbwd/convbwd.hpp"
#include "engine/axis.h"
#include "format/add.h"
#include "format/copy.h"
#include "format/layouts.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  text << "Conv3DBackpropInput: ";
  (text << ... << parts);
  throw Error(ErrorKind::value, text.str());
}

// Along one axis, the windows that touch some positions, as a convolution of those positions alone. `skip` positions at
// the beginning are not touched, so that the first window does not begin behind the first position.
struct Part {
  Index skip, positions, first, count, before, after;

  Part(Index position, Index all, Index windows, Index kernel, Index stride, Index dilation, Index pad) {
    const Index reach = (kernel - 1) * dilation, begin = position + pad;
    first = ceil_div(std::max<Index>(begin - reach, 0), stride);
    count = std::min(windows - 1, (begin + all - 1) / stride) - first + 1;
    skip = std::max<Index>(0, first * stride - begin);
    positions = all - skip;
    before = begin + skip - first * stride;
    after = std::max<Index>(0, (count - 1) * stride + reach + 1 - before - positions);
  }
};

// The last element that is touched must be there, where the end is known.
void need(const ConvbwdAscendcMemory& memory, Index last, DType dtype, const char* what) {
  if (memory.end == nullptr) return;
  const auto* const begin = static_cast<const std::byte*>(memory.begin);
  const Index bytes = static_cast<const std::byte*>(memory.end) - begin, size = static_cast<Index>(size_of(dtype));
  if (last >= bytes / size)
    fail(what, " must reach at least ", last + 1, " elements from the given one on, got ",
         std::max<Index>(0, bytes / size));
}

void check(const InputTiling& t, Index c0) {
  for (const auto& [name, value] : {std::pair{"batch", t.batch},
                                    {"cin", t.cin},
                                    {"cout", t.cout},
                                    {"dout", t.dout},
                                    {"ho", t.ho},
                                    {"wo", t.wo},
                                    {"di", t.di},
                                    {"hi", t.hi},
                                    {"wi", t.wi},
                                    {"dk", t.dk},
                                    {"hk", t.hk},
                                    {"wk", t.wk},
                                    {"strideD", t.strideD},
                                    {"strideH", t.strideH},
                                    {"strideW", t.strideW},
                                    {"dilationD", t.dilationD},
                                    {"baseM", t.baseM},
                                    {"baseN", t.baseN},
                                    {"dilationH", t.dilationH},
                                    {"dilationW", t.dilationW}})
    if (value == 0) fail("the tiling must be one that GetTiling filled in, got ", name, " = 0");
  if (t.c0 != c0) fail("the tiling must be for elements of ", 32 / c0, " bytes, c0 = ", c0, ", got c0 = ", t.c0);
  if (t.group != 1) fail("the tiling must be for one group, got ", t.group);
  if (t.iterateOrder > 1) fail("iterateOrder must be 0 or 1, got ", t.iterateOrder);
  if (t.cin1 != ceil_div(t.cin, c0) || t.cout1 != ceil_div(t.cout, c0) || t.baseN % c0 != 0)
    fail("cin1, cout1 and baseN must be whole blocks of c0 = ", c0, " channels, got ", t.cin1, ", ", t.cout1, " and ",
         t.baseN);
  const auto axis = [](const char* name, Index in, Index out, Index kernel, Index stride, Index dilation, Index before,
                       Index after, Index backprop) {
    const double reach = static_cast<double>(kernel - 1) * static_cast<double>(dilation);
    const double spare = static_cast<double>(in + before + after) - reach - 1;
    if (reach > 0x1p32 || spare < 0 || static_cast<Index>(spare) / stride + 1 != out ||
        backprop != static_cast<Index>(reach) - before)
      fail("sizes, strides, dilations and paddings of the tiling must belong together along the ", name);
  };
  axis("depth", t.di, t.dout, t.dk, t.strideD, t.dilationD, t.padFront, t.padBack,
       (static_cast<Index>(t.dk) - 1) * t.dilationD - t.padFront);
  axis("height", t.hi, t.ho, t.hk, t.strideH, t.dilationH, t.padUp, t.padDown, t.backpropPadUp);
  axis("width", t.wi, t.wo, t.wk, t.strideW, t.dilationW, t.padLeft, t.padRight, t.backpropPadLeft);
  const auto elements = [](std::initializer_list<double> sizes) {
    double product = 1;
    for (const double size : sizes) product *= size;
    return product;
  };
  const double channels = static_cast<double>(c0);
  if (std::max({elements({1.0 * t.batch, 1.0 * t.di, 1.0 * t.cin1, 1.0 * t.hi, 1.0 * t.wi, channels}),
                elements({1.0 * t.batch, 1.0 * t.dout, 1.0 * t.cout1, 1.0 * t.ho, 1.0 * t.wo, channels}),
                elements({1.0 * t.dk, 1.0 * t.cin1, 1.0 * t.hk, 1.0 * t.wk, t.cout + 15.0, channels})}) > 0x1p60)
    fail("tensors of the tiling must have less than 2**60 elements");
}

}  // namespace

InputTiles::InputTiles(const InputTiling& tiling, DType dtype, DType output_dtype, bool channels_first)
    : t_(tiling),
      dtype_(dtype),
      output_dtype_(output_dtype),
      c0_(c0_of({}, dtype)),
      plane_(static_cast<Index>(std::uint64_t{tiling.hi} * tiling.wi)),
      cell_(ceil_div(tiling.cout, kN0) * kN0 * c0_),
      channels_first_(channels_first) {
  check(t_, c0_);
}

void InputTiles::set_single_shape(std::uint64_t m, std::uint64_t k, std::uint32_t n) {
  const auto taps = static_cast<std::uint64_t>(t_.dk) * t_.hk * t_.wk * static_cast<std::uint64_t>(c0_);
  if (m < 1 || m > static_cast<std::uint64_t>(plane_))
    fail("SetSingleShape: M must be from 1 to the positions of a plane = ", plane_, ", got ", m);
  if (k < 1 || k % taps != 0 || k / taps > t_.cout1)
    fail("SetSingleShape: K must be Dk * Hk * Wk * C0 = ", taps, " times 1 to ", t_.cout1, ", got ", k);
  if (n < 1 || n > static_cast<std::uint64_t>(t_.cin1) * static_cast<std::uint64_t>(c0_))
    fail("SetSingleShape: N must be from 1 to the input channels in whole blocks = ", t_.cin1 * c0_, ", got ", n);
  m_ = static_cast<Index>(m);
  n_ = n;
  blocks_ = static_cast<Index>(k / taps);
}

void InputTiles::set_start_position(std::uint32_t din, std::int32_t ho) {
  const Index row = ho + static_cast<Index>(t_.backpropPadUp);
  if (din >= t_.di) fail("SetStartPosition: the plane must be below di = ", t_.di, ", got ", din);
  if (row < 0 || row >= t_.hi)
    fail("SetStartPosition: the row, curHoStartIdx + backpropPadUp, must be from 0 to ", t_.hi - 1, ", got ", row);
  start_ = {din, row, ceil_div(std::max(ho, 0), t_.strideH)};
}

void InputTiles::set_grad_output(const Memory& memory) {
  if (memory.begin == nullptr) fail("SetGradOutput: gradOutput must not be null");
  grad_output_ = memory;
}

void InputTiles::set_weight(const Memory& memory) {
  if (memory.begin == nullptr) fail("SetWeight: the weight must not be null");
  weight_ = memory;
}

bool InputTiles::iterate(bool partial_sum, bool first) {
  if (partial_sum) fail("Iterate: enPartialSum is reserved and must be false");
  for (const auto& [name, missing] : {std::pair{"SetSingleShape", m_ == 0},
                                      {"SetStartPosition", !start_},
                                      {"SetGradOutput", grad_output_.begin == nullptr},
                                      {"SetWeight", weight_.begin == nullptr}})
    if (missing) fail("Iterate: ", name, " must come first");
  const Start at = first ? *start_ : at_;
  if (at.row * t_.wi + m_ > plane_)
    fail("Iterate: the M = ", m_, " positions from row ", at.row, " on must end in the plane of ", plane_);
  const Index tiles_m = ceil_div(m_, t_.baseM), tiles_n = ceil_div(n_, t_.baseN);
  const bool along_m = t_.iterateOrder == 1;
  Index m = first ? 0 : tile_m_, n = first ? 0 : tile_n_;
  if (!first) {
    if (exhausted_) return false;
    Index &fast = along_m ? m : n, &slow = along_m ? n : m;
    if (++fast >= (along_m ? tiles_m : tiles_n)) {
      fast = 0;
      ++slow;
    }
  }
  const bool tile_is_left = m < tiles_m && n < tiles_n;
  if (tile_is_left) {
    compute(at, m * t_.baseM, n * t_.baseN);
    std::swap(tile_, next_);
    tile_m_ = m;
    tile_n_ = n;
  }
  at_ = at;
  has_tile_ = tile_is_left;
  exhausted_ = !tile_is_left;
  return tile_is_left;
}

const InputTiles::Place& InputTiles::place() const { return tile_.place; }

void InputTiles::compute(const Start& from, Index m0, Index n0) {
  next_.place = {{m0, n0}, {std::min<Index>(t_.baseM, m_ - m0), std::min<Index>(t_.baseN, n_ - n0)}};
  const Place& place = next_.place;
  const Index columns = round_up(place.count[1], c0_);
  next_.sums.assign(static_cast<std::size_t>(place.count[0] * columns), 0.0f);
  next_.din = from.din;
  next_.reached = false;
  for (Index kd = 0; kd < t_.dk; ++kd) {
    const Index d = from.din + t_.padFront - kd * t_.dilationD;
    if (d < 0 || d % t_.strideD != 0 || d / t_.strideD >= t_.dout) continue;
    next_.reached = true;
    for (Index done = 0, positions = 0; done < place.count[0]; done += positions) {
      // The rest of a row, or all the whole rows there are.
      const Index at = from.row * t_.wi + m0 + done, rest = place.count[0] - done, column = at % t_.wi;
      const Index rows = column == 0 ? std::max<Index>(1, rest / t_.wi) : 1;
      const Index wide = std::min<Index>(t_.wi - column, rest);
      positions = rows * wide;
      for (Index c = 0; c < columns; c += c0_)
        multiply(from, kd, d / t_.strideD, {{at / t_.wi, column}, {rows, wide}}, c,
                 next_.sums.data() + done * columns + c);
    }
  }
}

// Adds what one tap of the depth contributes to a block of channels. The blocks of gradOutput's channels take the place
// of the depth: block b meets the weights of block b alone, which is a convolution along the blocks whose kernel, read
// backwards, is as long as they are and of whose results only the middle one is wanted.
void InputTiles::multiply(const Start& from, Index kd, Index dout, const Box& box, Index channel, float* sums) const {
  const Part h(box.first[0], box.count[0], t_.ho, t_.hk, t_.strideH, t_.dilationH, t_.padUp);
  const Part w(box.first[1], box.count[1], t_.wo, t_.wk, t_.strideW, t_.dilationW, t_.padLeft);
  if (h.count <= 0 || w.count <= 0) return;
  const Index columns = round_up(next_.place.count[1], c0_);
  const Index image = static_cast<Index>(t_.ho) * t_.wo * c0_, row = static_cast<Index>(t_.wo) * c0_;
  const Index tap_row = t_.wk * cell_, taps = t_.hk * tap_row;

  const Index first_y = dout * t_.cout1 * image + (h.first - from.skipped) * row + w.first * c0_;
  const Index last_y = first_y + (blocks_ - 1) * image + (h.count - 1) * row + w.count * c0_ - 1;
  need(grad_output_, last_y, dtype_, "Iterate: gradOutput");
  const Index last_block = (blocks_ - 1) * c0_ * c0_;
  const Index first_w = (kd * t_.cin1 + (next_.place.first[1] + channel) / c0_) * taps;
  need(weight_, first_w + taps - cell_ + last_block + c0_ * c0_ - 1, dtype_, "Iterate: the weight");

  Request r;
  r.function = "Conv3DBackpropInput";
  r.grad_output = Tensor{nullptr, dtype_, {1, c0_, blocks_, h.count, w.count}, {image, 1, image, row, c0_}};
  r.input = {nullptr, dtype_, {1, c0_, 1, h.positions, w.positions}, {}};
  r.weight = {nullptr, dtype_, {c0_, c0_, blocks_, t_.hk, t_.wk}, {c0_, 1, -c0_ * c0_, tap_row, cell_}};
  r.stride = {1, t_.strideH, t_.strideW};
  r.dilation = {1, t_.dilationH, t_.dilationW};
  r.padding = {blocks_ - 1, blocks_ - 1, h.before, h.after, w.before, w.after};
  r.output_mask = {true, false, false};
  r.result_strides[0] = {1, 1, 1, box.count[1] * columns, columns};
  r.result_dtypes[0] = DType::float32;
  r.precision = Precision::strict;
  r.cube_math_type = t_.hf32Flag != 0 ? CubeMathType::use_hf32 : CubeMathType::keep_dtype;
  r.accumulate = true;
  Plan::make(r).backward(
      {advance(grad_output_.begin, dtype_, first_y), nullptr, advance(weight_.begin, dtype_, first_w + last_block)},
      {sums + (h.skip * box.count[1] + w.skip) * columns, nullptr, nullptr});
}

void InputTiles::get_tensor_c(const Memory& output, unsigned atomic, bool sequential) const {
  if (!has_tile_) fail("GetTensorC: Iterate must have returned true before");
  if (output.begin == nullptr) fail("GetTensorC: the output must not be null");
  if (atomic > 1) fail("GetTensorC: enAtomic must be 0 or 1, got ", atomic);
  if (sequential) fail("GetTensorC: enSequentialWrite is reserved and must be false");
  if (!tile_.reached) return;
  const Place& part = tile_.place;
  const Index columns = round_up(part.count[1], c0_), positions = part.count[0];
  const Index all = plane_ * (channels_first_ ? t_.di : 1);  // of a channel, of a block of channels
  const Index m_stride = channels_first_ ? 1 : c0_, c_stride = channels_first_ ? all : 1;
  // Blocks have room for channels that the input does not have.
  const Index block_stride = all * c0_,
              channels = channels_first_ ? std::min(part.count[1], t_.cin - part.first[1]) : columns;
  if (channels <= 0) return;
  const Index first = tile_.din * plane_ * (channels_first_ ? 1 : t_.cin1 * c0_) + part.first[1] / c0_ * block_stride +
                      part.first[0] * m_stride;
  const Index last_lane = (channels - 1) % c0_;
  need(output, first + (channels - 1) / c0_ * block_stride + last_lane * c_stride + (positions - 1) * m_stride,
       output_dtype_, "GetTensorC: the output");

  const KernelSet<float>& kernels = kernel_set<float>(active_isa());
  std::vector<std::byte> rounded(atomic != 0 ? static_cast<std::size_t>(positions * c0_) * size_of(output_dtype_) : 0);
  for (Index c = 0; c < channels; c += c0_) {
    const Index lanes = std::min(c0_, channels - c);
    void* const to = advance(output.begin, output_dtype_, first + c / c0_ * block_stride);
    View place{to, output_dtype_, {1, lanes, 1, 1, positions}, {0, c_stride, 0, 0, m_stride}};
    View tile = place;  // where it is written: rounded first, then added
    if (atomic != 0) {
      tile.data = rounded.data();
      tile.stride = {0, 1, 0, 0, lanes};
      for (View* v : {&place, &tile}) v->settle_strides();  // of axes of one element: rows join
    }
    for (Index m = 0; m < positions; ++m)
      store_row(kernels, advance(tile.data, output_dtype_, m * tile.stride[4]), output_dtype_, tile.stride[1],
                tile_.sums.data() + m * columns + c, lanes);
    if (atomic != 0) add(place, tile, 1);
  }
}

}  // namespace convbwd

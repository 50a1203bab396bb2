// Layer conv: the host tiling of Conv3DBackpropInput, number for number as CANN's. M counts positions of a plane of the
// input, N its channels, K the products of a sum (channels of the output times taps of h and w). A is gradOutput, B the
// weight, C the tile. L1 holds stepKa and stepKb times baseK of A and B; L0A, L0B and L0C what is multiplied at a time.
#include "conv/input_tiling.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/axis.h"

namespace convbwd {
namespace {

constexpr Index kBlockBytes = 32;      // of c0 channels
constexpr Index kL1Reserved = 128;     // bytes that CANN leaves free
constexpr Index kL2Bytes = 150994944;  // 144 MiB: what CANN's tiling counts on
constexpr Index kMostInL0 = 65535;     // of K in one load
constexpr Index kWideRow = 64;         // rows longer than that are merged only where they divide the tile
constexpr Index kMostPad = 255, kMostStride = 63, kMostDepthStride = 255;

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  text << "GetTiling: ";
  (text << ... << parts);
  throw Error(ErrorKind::value, text.str());
}

Index divisor_up_to(Index a, Index b) {  // the greatest divisor of a that is at most b
  while (a % b != 0) --b;
  return b;
}

constexpr const char* kAxes[] = {"depth", "height", "width"};

// What the device refuses, and the size of the result of a Conv3DTranspose.
void check(ConvbwdAscendcProblem& p) {
  if (p.group != 1) fail("group must be 1, got ", p.group);
  if (p.cores < 1 || p.cores > 65535) fail("cores must be from 1 to 65535, got ", p.cores);
  if (p.l1_bytes <= kL1Reserved || p.l0_bytes < 2 * kBlockBytes || p.l0c_bytes < 4 * kBlockBytes)
    fail("the platform must have buffers");
  if (p.batch < 1 || p.cin < 1 || p.cout < 1)
    fail("batch and channels must be at least 1, got ", p.batch, ", ", p.cin, " and ", p.cout);
  constexpr Index kMost = 0xffffffff;
  if (std::max({p.batch, p.cin, p.cout}) > kMost - kBlockBytes)  // channels in whole blocks are
    fail("batch and channels must be at most 2**32 - 33");
  for (int a = 0; a < 3; ++a) {
    const Index stride = p.stride[a], dilation = p.dilation[a], kernel = p.kernel[a], out = p.grad_output[a];
    const Index before = p.padding[2 * a], after = p.padding[2 * a + 1];
    const Index extra = p.transpose ? p.output_padding[a] : 0;
    const char* const axis = kAxes[a];
    const auto in_range = [&](const char* name, Index value, Index least, Index most) {
      if (value < least || value > most)
        fail(name, " of the ", axis, " must be from ", least, " to ", most, ", got ", value);
    };
    in_range("the stride", stride, 1, a == 0 ? kMostDepthStride : kMostStride);
    in_range("the dilation", dilation, 1, kMost);
    in_range("the kernel", kernel, 1, kMost);
    in_range("gradOutput", out, 1, kMost);
    for (const Index pad : {before, after}) in_range("the padding", pad, 0, std::min(kMostPad, kernel - 1));
    if (extra != 0) in_range("the output padding", extra, 0, std::max(stride, dilation) - 1);
    Index reach = 0;  // of the dilated kernel
    if (__builtin_mul_overflow(dilation, kernel - 1, &reach) || reach > kMost)
      fail("the dilated kernel must be shorter than 2**32 along the ", axis);
    ++reach;
    if (p.transpose) p.input[a] = (out - 1) * stride - before - after + reach + extra;
    const Index in = p.input[a];
    in_range("the input", in, 1, kMost);
    const Index windows = in + before + after - reach - extra;
    if (windows < 0) fail("the dilated kernel must fit the padded input along the ", axis);
    if (windows / stride + 1 != out)
      fail("gradOutput of the ", axis, " must be ", windows / stride + 1, ", got ", out, " (input ", in, ", kernel ",
           kernel, ", stride ", stride, ", dilation ", dilation, ", padding ", before, " and ", after, ")");
    if (a == 0 && stride > kernel)
      fail("the stride of the depth must be at most the kernel = ", kernel, ", got ", stride);
    if (a > 0) in_range("(kernel - 1) * dilation - padding", reach - 1 - before, 0, kMostPad);
    in_range("input - gradOutput * stride + padding", in - out * stride + before, -kMostPad, kMostPad);
  }
  if (p.input[1] > kMost / p.input[2]) fail("a plane of the input must have less than 2**32 positions");
  const double planes = static_cast<double>(p.batch) * static_cast<double>(p.input[0]);
  if (planes * static_cast<double>(p.input[1] * p.input[2]) * static_cast<double>(p.cin) > 0x1p60)
    fail("the input must have less than 2**60 elements");
}

// The zeros around gradOutput, spread by the stride, of which the gradient is a plain convolution.
Index pad_after(const ConvbwdAscendcProblem& p, int a, Index before) {
  const Index in = p.input[a], out = p.grad_output[a], stride = p.stride[a];
  const Index exact = in - ((out - 1) * stride + 1) + (p.kernel[a] - 1) * p.dilation[a] - before;
  return exact >= 0 && exact <= kMostPad ? exact : std::max<Index>(0, in - out * stride + p.padding[2 * a]);
}

class Tiler {
 public:
  explicit Tiler(const ConvbwdAscendcProblem& problem)
      : p_(problem),
        bytes_(problem.type == CONVBWD_FLOAT32 ? 4 : 2),
        c0_(kBlockBytes / bytes_),
        cin1_(ceil_div(p_.cin, c0_)),
        cout1_(ceil_div(p_.cout, c0_)),
        plane_(p_.input[1] * p_.input[2]),
        most_m_(round_up(plane_, c0_)),
        most_n_(cin1_ * c0_),
        block_k_(p_.kernel[1] * p_.kernel[2] * c0_),
        most_k_(block_k_ * cout1_),
        l1_(p_.l1_bytes - kL1Reserved) {}

  InputTiling run() {
    const bool tall = most_m_ >= most_n_;
    m_ = tall ? 256 : 128;
    n_ = tall ? 128 : 256;
    k_ = 128 / bytes_;
    fill_l0();
    fill_l1();
    make_legal();
    if (!fits_l1(ka_, kb_)) fail("no tile fits in the buffer L1");
    InputTiling t;
    t.singleCoreM = static_cast<std::uint64_t>(rows_of_a_core());
    write(t);
    return t;
  }

 private:
  bool whole_taps(Index k) const { return k % block_k_ == 0 || block_k_ % k == 0; }

  // Rows of gradOutput, spread by the stride, that so many positions read.
  Index rows_read(Index m) const {
    const Index wide = p_.input[2];
    const Index rows = m % wide == 0 || wide % m == 0 ? ceil_div(m, wide) : m > wide ? m / wide + 2 : 2;
    return std::min(rows + (p_.kernel[1] - 1) * p_.dilation[1], (p_.grad_output[1] - 1) * p_.stride[1] + 1);
  }

  bool fits_l1(Index ka, Index kb) const {
    const Index a = ka * k_, b = kb * k_;
    if (b == 0 || a % block_k_ != 0 || b % block_k_ != 0) return false;
    const Index channels = std::max<Index>(ka * k_ / (p_.kernel[1] * p_.kernel[2]), 1);
    const Index a_bytes = rows_read(m_) * p_.grad_output[2] * p_.stride[2] * channels * bytes_ * al1_;
    return a_bytes + bl1_ * bytes_ * n_ * b <= l1_;
  }

  // The greatest multiple of c0 up to `most` that goes into whole taps, or c0.
  Index whole_k(Index most) const {
    while (most > c0_ && !whole_taps(most)) most = std::max(most - c0_, c0_);
    return most;
  }

  // The first choice, cut to the problem; then grown where the buffers of a multiplication have room.
  void fill_l0() {
    const Index half = p_.l0_bytes / 2 / bytes_, sums = p_.l0c_bytes / 4, first_k = 128 / bytes_;
    k_ = whole_k(std::min(k_, most_k_));
    n_ = std::min(n_, most_n_);
    m_ = std::min(m_, most_m_);
    const auto blocks = [this](Index count) { return std::max<Index>(count / c0_, 1) * c0_; };
    const Index side = blocks(half / k_);
    if (n_ < 256 && k_ < first_k) m_ = std::min({side, blocks(sums / n_), most_m_});
    if (m_ < 256 && k_ < first_k) n_ = std::min({side, blocks(sums / m_), most_n_});
    Index k = std::min(blocks(half / std::max(m_, n_)), most_k_);
    for (; k > c0_; k = std::max(k - c0_, c0_))
      if (whole_taps(k)) {
        k_ = k;
        break;
      }
  }

  // Steps of A and B alike, down from the taps of one block of channels.
  std::pair<Index, Index> like_steps() const {
    Index k = std::min(ceil_div(most_k_, k_), p_.kernel[1] * p_.kernel[2]);
    while (k > 1 && !fits_l1(k, k)) --k;
    return {k, k};
  }

  // Half of L1 for A, half for B, one a multiple of the other.
  std::pair<Index, Index> half_steps() const {
    const Index b_bytes = block_k_ * n_ * bytes_;
    const Index a_bytes = bytes_ * rows_read(m_) * p_.grad_output[2] * p_.stride[2] * c0_;
    Index b = std::min(std::max<Index>(1, l1_ / 2 / bl1_ / b_bytes), cout1_);
    Index a = std::min(std::max<Index>(1, l1_ / 2 / al1_ / a_bytes), cout1_);
    if (b > a) a = divisor_up_to(b, a);
    if (a > b) b = divisor_up_to(a, b);
    Index ka = std::min(std::max<Index>(1, ceil_div(a * block_k_, k_)), std::max<Index>(1, kMostInL0 / k_));
    Index kb = std::max<Index>(1, ceil_div(b * block_k_, k_));
    if (ka > kb)
      ka = ka / kb * kb;
    else
      kb = kb / ka * ka;
    return {ka, kb};
  }

  void fill_l1() {
    al1_ = 2;
    bl1_ = 1;
    const Index all = ceil_div(most_k_, k_);
    if (p_.kernel[0] == 1 && fits_l1(1, all)) {  // all weights stay in L1
      ka_ = all;
      kb_ = all;
      while (ka_ > 1 && !(fits_l1(ka_, kb_) && all % ka_ == 0)) --ka_;
      if (fits_l1(ka_, kb_)) return;
    }
    bl1_ = 2;
    const auto half = half_steps(), like = like_steps();
    const bool halves = fits_l1(half.first, half.second) && half.first + half.second > like.first + like.second;
    std::tie(ka_, kb_) = halves ? half : like;
  }

  bool fit_steps() {
    std::tie(ka_, kb_) = like_steps();
    if (fits_l1(ka_, kb_)) return true;
    std::tie(ka_, kb_) = half_steps();
    return fits_l1(ka_, kb_);
  }

  // Smaller M and N, then smaller K; where nothing fits they stay as they were.
  void shrink() {
    const Index m0 = m_, n0 = n_, k0 = k_, least_m = std::max(p_.input[2], c0_);
    while (m_ > least_m || n_ > c0_) {
      Index& larger = m_ > least_m && m_ > n_ ? m_ : n_;
      larger = std::max(larger - c0_, c0_);
      if (fit_steps()) break;
    }
    Index k = std::min(std::max<Index>(p_.l0_bytes / 2 / bytes_ / std::max(m_, n_) / c0_, 1) * c0_, most_k_);
    while (k > c0_) {
      k_ = k = std::max(k - c0_, c0_);
      if (whole_taps(k) && fit_steps()) return;
    }
    m_ = m0;
    n_ = n0;
    k_ = k0;
  }

  // Gives up double buffers where smaller tiles alone do not help.
  void make_legal() {
    if (fits_l1(ka_, kb_)) return;
    shrink();
    if (fits_l1(ka_, kb_)) return;
    if (al1_ == 2 && bl1_ == 2) {
      bl1_ = 1;
      make_legal();
    }
    if (al1_ == 2 && bl1_ == 1) {
      al1_ = 1;
      bl1_ = 2;
      make_legal();
    }
    if (al1_ == 1 && bl1_ == 2) {
      bl1_ = 1;
      make_legal();
    }
  }

  bool fits_l2(Index m) const {
    const Index depths = std::max<Index>(p_.kernel[0] / p_.stride[0], 1);
    const Index rows = std::max<Index>(rows_read(m) / p_.stride[1], 1);
    const double elements =
        count_of(rows, p_.grad_output[2], depths, cout1_ * c0_) + count_of(n_, most_k_, depths) + count_of(m + m_, n_);
    return elements * count_of(bytes_, p_.cores) <= kL2Bytes;
  }

  // Positions that a core computes at a time: whole rows, as many as share out evenly.
  Index rows_of_a_core() const {
    const Index wide = p_.input[2], planes = p_.batch * p_.input[0];
    Index result = std::max<Index>(m_ / wide, 1) * wide;
    if (wide > kWideRow && m_ % wide != 0 && wide % m_ != 0) {
      for (Index parts = 1; parts <= ceil_div(plane_, m_); ++parts) {
        const Index m = ceil_div(p_.input[1], parts) * wide;
        const Index shares = ceil_div(plane_, m) * planes * ceil_div(p_.cin, n_);
        if ((shares % p_.cores == 0 || shares >= p_.cores * p_.cores) && fits_l2(m)) return m;
      }
      return result;
    }
    for (Index tiles = m_, m = result; m < plane_ && planes % p_.cores == 0;) {
      tiles += m_;
      m = std::min(std::max<Index>(tiles / wide, 1) * wide, plane_);
      if (plane_ % m == 0 && fits_l2(m)) result = m;
    }
    return result;
  }

  void write(InputTiling& t) const {
    const auto set = [](auto& field, Index value) {
      field = static_cast<std::remove_reference_t<decltype(field)>>(value);
    };
    const auto uncovered = [this](int a) {
      return (p_.input[a] + p_.padding[2 * a] + p_.padding[2 * a + 1] - (p_.kernel[a] - 1) * p_.dilation[a] - 1) %
             p_.stride[a];
    };
    const auto backprop_before = [this](int a) { return (p_.kernel[a] - 1) * p_.dilation[a] - p_.padding[2 * a]; };
    set(t.batch, p_.batch), set(t.cin, p_.cin), set(t.cout, p_.cout);
    set(t.cin1, cin1_), set(t.cout1, cout1_), set(t.cin1G, cin1_), set(t.cout1G, cout1_);
    set(t.c0, c0_), set(t.c0Bits, c0_ == 16 ? 4 : 3);
    set(t.dout, p_.grad_output[0]), set(t.ho, p_.grad_output[1]), set(t.wo, p_.grad_output[2]);
    set(t.di, p_.input[0]), set(t.hi, p_.input[1]), set(t.wi, p_.input[2]);
    set(t.dk, p_.kernel[0]), set(t.hk, p_.kernel[1]), set(t.wk, p_.kernel[2]);
    set(t.strideD, p_.stride[0]), set(t.strideH, p_.stride[1]), set(t.strideW, p_.stride[2]);
    set(t.dilationD, p_.dilation[0]), set(t.dilationH, p_.dilation[1]), set(t.dilationW, p_.dilation[2]);
    set(t.padFront, p_.padding[0]), set(t.padBack, p_.padding[1]), set(t.padUp, p_.padding[2]);
    set(t.padDown, p_.padding[3]), set(t.padLeft, p_.padding[4]), set(t.padRight, p_.padding[5]);
    set(t.backpropPadTail, pad_after(p_, 0, backprop_before(0)));
    set(t.backpropPadUp, backprop_before(1)), set(t.backpropPadDown, pad_after(p_, 1, backprop_before(1)));
    set(t.backpropPadLeft, backprop_before(2)), set(t.backpropPadRight, pad_after(p_, 2, backprop_before(2)));
    set(t.al0Pbuffer, 2), set(t.bl0Pbuffer, 2), set(t.cl0Pbuffer, 1), set(t.al1Pbuffer, al1_), set(t.bl1Pbuffer, bl1_);
    set(t.singleCoreCout, cout1_ * c0_), set(t.singleCoreCout1, cout1_);
    set(t.singleCoreCin, n_), set(t.singleCoreCin1, ceil_div(n_, c0_));
    set(t.baseM, m_), set(t.baseK, k_), set(t.baseN, n_), set(t.stepKa, ka_), set(t.stepKb, kb_);
    for (std::uint32_t* const one : {&t.group, &t.singleCoreGroup, &t.singleCoreDin, &t.singleCoreHo, &t.baseD,
                                     &t.baseBatch, &t.baseGroup, &t.stepM, &t.stepN, &t.stepBatch, &t.stepGroup})
      *one = 1;
    t.singleCoreBatch = 1;
    t.iterateOrder = 1;
    t.hf32Flag = p_.hf32;
    t.initOutputFlag = uncovered(0) > p_.padding[1] || uncovered(1) > p_.padding[3] || p_.stride[1] > p_.kernel[1] ||
                       (p_.transpose && (t.backpropPadDown > 0 || backprop_before(0) > 0)) || p_.dilation[0] > 1;
  }

  const ConvbwdAscendcProblem p_;
  const Index bytes_, c0_, cin1_, cout1_, plane_, most_m_, most_n_;
  const Index block_k_, most_k_;  // of one block of channels, of all
  const Index l1_;
  Index m_ = 0, n_ = 0, k_ = 0, ka_ = 1, kb_ = 1, al1_ = 2, bl1_ = 1;
};

}  // namespace

InputTiling make_input_tiling(const ConvbwdAscendcProblem& problem) {
  ConvbwdAscendcProblem p = problem;
  check(p);
  return Tiler(p).run();
}

}  // namespace convbwd

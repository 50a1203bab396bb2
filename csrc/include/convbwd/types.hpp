// The vocabulary of the library: element types, errors, views. Included by everything, includes only the standard
// library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

/// What a shared library shows; a static one leaves it to who links it.
#if defined(CONVBWD_SHARED)
#define CONVBWD_API __attribute__((visibility("default")))
#else
#define CONVBWD_API
#endif

namespace convbwd {

/// Element types. Those of tensors are the first six. The others are how the engine reads operands whose precision a
/// mode lowers (CubeMathType): memory of one type, each value rounded to another when it is brought in. The conversion
/// of arrays (convert) takes them too, a request does not.
enum class DType : std::uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,  ///< OCP E4M3: no infinities; up to 448, beyond 464 NaN
  hifloat8,       ///< HiFloat8 of Ascend: tapered precision, rounds half away from zero

  hf32,                 ///< float32 with 11 bits of the mantissa
  hf32_10,              ///< float32 with 10 bits of the mantissa
  float32_as_float16,   ///< float32 with the values of float16
  bfloat16_as_float16,  ///< bfloat16 with the values of float16
};

/// The type in memory.
constexpr DType storage_of(DType t) noexcept {
  return t < DType::hf32 ? t : t == DType::bfloat16_as_float16 ? DType::bfloat16 : DType::float32;
}
constexpr std::size_t size_of(DType t) noexcept {
  constexpr std::size_t sizes[] = {8, 4, 2, 2, 1, 1, 4, 4, 4, 2};
  return sizes[static_cast<int>(t)];
}
/// Bits that hold the significand of any value, the leading one included.
constexpr int significand_bits(DType t) noexcept {
  constexpr int bits[] = {53, 24, 11, 8, 4, 4, 12, 11, 11, 8};
  return bits[static_cast<int>(t)];
}
constexpr const char* name_of(DType t) noexcept {
  constexpr const char* names[] = {"float64",  "float32", "float16", "bfloat16",           "float8_e4m3fn",
                                   "hifloat8", "hf32",    "hf32_10", "float32_as_float16", "bfloat16_as_float16"};
  const auto i = static_cast<std::size_t>(t);
  return i < sizeof names / sizeof *names ? names[i] : "no type";
}

/// What `Algorithm::automatic` may choose from. `strict`: sums of products alone, whose error is bounded element by
/// element. `default_`: also what is, for a result as a whole, no less accurate than straight sums and keeps small
/// integers exact. `fast`: also what has a few times their error.
enum class Precision : std::uint8_t { default_, strict, fast };

/// What went wrong, and whose mistake it is. Every face translates the kind into its own codes.
enum class ErrorKind : std::uint8_t {
  value,     ///< a shape or parameter breaks a rule (Python: ValueError)
  type,      ///< an element type or argument type is not accepted (Python: TypeError)
  memory,    ///< an allocation failed (Python: MemoryError)
  internal,  ///< a bug of this library (Python: RuntimeError)
};

class CONVBWD_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ~Error() override;  ///< out of line, so that there is one type of it whatever library throws or catches
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

using Shape = std::vector<std::int64_t>;

/// In which order the products of an element of an image are summed, as far as the extents of the image decide it: the
/// kind of pass, its blocking and, last, the height and width of tiles. PassInfo tells that of a plan. A Request for a
/// part of an image that is given that of the whole one gets the same bits, if the part holds whole tiles, and a value
/// that a pass leaves to the direct ones is in no part or in all. All zeros: as suits the request.
using Sums = std::array<std::int64_t, 6>;

/// Memory formats of images and weights with two ("NCHW", ...) or three spatial dimensions. The letters are axes, from
/// the slowest to the fastest; of weights N counts output channels and C the input channels of a group.
///
/// In the formats with C0 the channel axis is split: channel c is number c % c0 of block c / c0, and lanes that no
/// channel has are zero. FRACTAL_Z is for weights: (C1 * H * W, N1, 16, C0) with N1 = ceil(N / 16), FRACTAL_Z_3D has
/// D * C1 * H * W. With groups, E = min(lcm(lcm(C, c0) / C, lcm(N / groups, 16) / (N / groups)), groups) of them share
/// blocks, each in a part of its own of both channel axes: C1 = ceil(E * C / c0), N1 = ceil(E * N / groups / 16), and
/// there are ceil(groups / E) such blocks, the slowest axis. (The TransData formats of Ascend's operators.)
enum class MemoryFormat : std::uint8_t {
  nchw,
  nhwc,
  hwcn,
  nc1hwc0,
  fractal_z,
  ncdhw,
  ndhwc,
  dhwcn,
  ndc1hwc0,
  fractal_z_3d,
};

/// Dense memory in a format whose channel axis may be split.
struct Packing {
  MemoryFormat format = MemoryFormat::nchw;
  std::int64_t c0 = 0;      ///< channels of a block; 0: 32 bytes of them, by Ascend's rule
  std::int64_t groups = 0;  ///< that weights were packed with, which must be those of the call; 0: that they are
};

/// A tensor that somebody else owns. Axes are in channels-first order whatever the memory order is:
/// strides, in elements, may be negative, zero (inputs only) or permuted; empty strides mean C-contiguous.
/// Images are (N, C, *spatial), weights (C_out, C_in / groups, *kernel), transposed (C_in, C_out / groups, *kernel).
/// With a packing strides are empty and the elements lie as it says.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::float32;
  Shape shape{};
  Shape strides{};
  std::optional<Packing> packing{};
};

}  // namespace convbwd

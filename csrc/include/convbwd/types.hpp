// The vocabulary of the library: element types, errors, views. Included by everything, includes only the standard
// library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace convbwd {

/// Element types of tensors.
enum class DType : std::uint8_t { float64, float32, float16, bfloat16 };

constexpr std::size_t size_of(DType t) noexcept { return t == DType::float64 ? 8 : t == DType::float32 ? 4 : 2; }
constexpr const char* name_of(DType t) noexcept {
  constexpr const char* names[] = {"float64", "float32", "float16", "bfloat16"};
  return names[static_cast<int>(t)];
}

/// What went wrong, and whose mistake it is. Every face translates the kind into its own codes.
enum class ErrorKind : std::uint8_t {
  value,     ///< a shape or parameter breaks a rule (Python: ValueError)
  type,      ///< an element type or argument type is not accepted (Python: TypeError)
  memory,    ///< an allocation failed (Python: MemoryError)
  internal,  ///< a bug of this library (Python: RuntimeError)
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

using Shape = std::vector<std::int64_t>;

/// A tensor that somebody else owns. Axes are in channels-first order whatever the memory order is:
/// strides, in elements, may be negative, zero (inputs only) or permuted; empty strides mean C-contiguous.
/// Images are (N, C, *spatial), weights (C_out, C_in / groups, *kernel), transposed (C_in, C_out / groups, *kernel).
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::float32;
  Shape shape;
  Shape strides;
};

}  // namespace convbwd

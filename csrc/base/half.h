// Layer base: scalar conversions of the 16-bit floating-point types. Functions have internal linkage, so that kernel
// files compiled for newer instruction sets may include this header.
#pragma once

#include <cstdint>

namespace convbwd {

typedef std::uint16_t Bits16;
struct Half {
  Bits16 bits;
};
struct BFloat {
  Bits16 bits;
};

static inline std::uint32_t bits_of(float f) {
  std::uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
static inline float float_of(std::uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
static inline float widen(float f) { return f; }
static inline float widen(BFloat b) { return float_of(static_cast<std::uint32_t>(b.bits) << 16); }
static inline float widen(Half h) {
  const std::uint32_t magnitude = (h.bits & 0x7fffu) << 13, sign = (h.bits & 0x8000u) << 16;
  // Moves the exponent bias from 15 to 127 by a product that is exact, for subnormal numbers too.
  const std::uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
  return float_of(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
}
static inline void narrow(float f, float& r) { r = f; }
static inline void narrow(float f, BFloat& r) {
  const std::uint32_t u = bits_of(f), magnitude = u & 0x7fffffffu;
  r.bits = static_cast<Bits16>(magnitude > 0x7f800000u ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline void narrow(float f, Half& r) {
  const std::uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
  // Below 2^-14: adding 1/2 leaves the rounded subnormal in the low bits. Above: add half a unit, ties to even.
  const std::uint32_t small = bits_of(float_of(m) + 0.5f) - 0x3f000000u;
  const std::uint32_t large = ((m + 0xfffu + ((m >> 13) & 1u)) >> 13) - (112u << 10);
  const std::uint32_t special = m > 0x7f800000u ? 0x7e00u | ((m >> 13) & 0x3ffu) : 0x7c00u;
  r.bits = static_cast<Bits16>(sign | (m >= 0x477ff000u ? special : m < 0x38800000u ? small : large));
}
// double -> float with rounding to odd, so that a second rounding to 16 bits gives what one rounding would.
static inline float to_odd(double d) {
  const float f = static_cast<float>(d);
  const double back = f, error = d - back;
  std::uint32_t u = bits_of(f);
  if (error != 0 && error == error && !(u & 1u)) u += (error > 0) == (d > 0) ? 1u : ~0u;
  return float_of(u);
}

}  // namespace convbwd

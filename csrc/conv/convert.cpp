// Layer conv: the conversion of arrays, for those who prepare or check the numbers of a device.
#include <algorithm>

#include "base/cpu.h"
#include "convbwd/convbwd.hpp"
#include "format/copy.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

constexpr Index kBlock = 1024;  // elements widened at a time: stays in L1

template <class T>
void convert_through(void* to, DType to_type, const void* from, DType from_type, Index count, T largest) {
  const KernelSet<T>& kernels = kernel_set<T>(active_isa());
  alignas(64) T block[kBlock];
  for (Index i = 0; i < count; i += kBlock) {
    const Index n = std::min(kBlock, count - i);
    load_row(kernels, block, advance(from, from_type, i), from_type, 1, n);
    if (largest > 0)
      for (Index j = 0; j < n; ++j) block[j] = block[j] == block[j] ? std::clamp(block[j], -largest, largest) : T{};
    store_row(kernels, advance(to, to_type, i), to_type, 1, block, n);
  }
}

}  // namespace

void convert(void* to, DType to_type, const void* from, DType from_type, std::int64_t count, bool saturate) {
  for (const DType t : {to_type, from_type})
    if (t > DType::bfloat16_as_float16)
      throw Error(ErrorKind::value,
                  "convert: types must be those of DType, got number " + std::to_string(static_cast<int>(t)));
  if (count < 0) throw Error(ErrorKind::value, "convert: count must be at least 0, got " + std::to_string(count));
  const bool hifloat8 = to_type == DType::hifloat8;
  if (saturate && !hifloat8 && to_type != DType::float8_e4m3fn)
    throw Error(ErrorKind::value, std::string("convert: saturate must be false unless the type is float8_e4m3fn or "
                                              "hifloat8, got true for ") +
                                      name_of(to_type));
  const float largest = !saturate ? 0.f : hifloat8 ? 32768.f : 448.f;
  if (from_type == DType::float64)  // all others fit a float
    convert_through<double>(to, to_type, from, from_type, count, largest);
  else
    convert_through<float>(to, to_type, from, from_type, count, largest);
}

}  // namespace convbwd

// Face ascendc: the C functions below the headers of Ascend C.
#include <memory>

#include "base/c_face.h"
#include "base/formats.h"
#include "conv/input_tiles.h"
#include "convbwd_ascendc.h"

using namespace convbwd;

struct ConvbwdAscendcWalk : InputTiles {
  using InputTiles::InputTiles;
};

namespace {

template <class F>
int status_of(const char* function, F&& f) noexcept {
  return guarded(function, Codes{1, 1, 1, 1}, std::forward<F>(f));
}

DType dtype_of(std::int32_t type) {
  return type == CONVBWD_FLOAT16 ? DType::float16 : type == CONVBWD_BF16 ? DType::bfloat16 : DType::float32;
}

// A walk, which is there from Init to End.
template <class Walk>
Walk& begun(Walk* walk) {
  if (walk == nullptr) refuse(1, "Init must come first");
  return *walk;
}

template <class Format>
float decode(std::uint16_t bits) {
  return Format::template decode<float, std::uint32_t>(bits);
}
template <class Format>
std::uint16_t encode(float value) {
  return static_cast<std::uint16_t>(Format::template encode<std::uint32_t>(value));
}

}  // namespace

const char* convbwdAscendcMessage() { return RecentMessage::take(); }

int convbwdAscendcTiling(const ConvbwdAscendcProblem* problem, InputTiling* tiling) {
  return status_of("GetTiling", [&] { *tiling = make_input_tiling(*problem); });
}

int convbwdAscendcInit(ConvbwdAscendcWalk** walk, const InputTiling* tiling, std::int32_t type,
                       std::int32_t output_type, std::int32_t channels_first) {
  return status_of("Init", [&] {
    if (*walk != nullptr) refuse(1, "must be called once, before End");
    if (tiling == nullptr) refuse(1, "the tiling must not be null");
    *walk = new ConvbwdAscendcWalk(*tiling, dtype_of(type), dtype_of(output_type), channels_first != 0);
  });
}

int convbwdAscendcSetSingleShape(ConvbwdAscendcWalk* walk, std::uint64_t m, std::uint64_t k, std::uint32_t n) {
  return status_of("SetSingleShape", [&] { begun(walk).set_single_shape(m, k, n); });
}

int convbwdAscendcSetStartPosition(ConvbwdAscendcWalk* walk, std::uint32_t din, std::int32_t ho) {
  return status_of("SetStartPosition", [&] { begun(walk).set_start_position(din, ho); });
}

int convbwdAscendcSetGradOutput(ConvbwdAscendcWalk* walk, ConvbwdAscendcMemory memory) {
  return status_of("SetGradOutput", [&] { begun(walk).set_grad_output(memory); });
}

int convbwdAscendcSetWeight(ConvbwdAscendcWalk* walk, ConvbwdAscendcMemory memory) {
  return status_of("SetWeight", [&] { begun(walk).set_weight(memory); });
}

int convbwdAscendcIterate(ConvbwdAscendcWalk* walk, bool partial_sum, bool* first, bool* more) {
  return status_of("Iterate", [&] {
    *more = begun(walk).iterate(partial_sum, *first);
    *first = false;
  });
}

int convbwdAscendcGetTensorC(const ConvbwdAscendcWalk* walk, ConvbwdAscendcMemory output, std::uint8_t atomic,
                             bool sequential) {
  return status_of("GetTensorC", [&] { begun(walk).get_tensor_c(output, atomic, sequential); });
}

int convbwdAscendcEnd(ConvbwdAscendcWalk** walk) {
  return status_of("End", [&] {
    delete *walk;
    *walk = nullptr;
  });
}

float convbwdAscendcDecodeHalf(std::uint16_t bits) { return decode<Half>(bits); }
std::uint16_t convbwdAscendcEncodeHalf(float value) { return encode<Half>(value); }
float convbwdAscendcDecodeBf16(std::uint16_t bits) { return decode<BFloat>(bits); }
std::uint16_t convbwdAscendcEncodeBf16(float value) { return encode<BFloat>(value); }

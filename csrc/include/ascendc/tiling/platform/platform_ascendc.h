// The device that a tiling is for: by default the buffers of an Atlas A2, and one core, because a tile is computed by
// all threads of the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace platform_ascendc {

enum class SocVersion { ASCEND910, ASCEND910B, ASCEND310P, ASCEND310B, RESERVED_VERSION = 99999 };
enum class CoreMemType { L0_A, L0_B, L0_C, L1, L2, UB, HBM, FB, BT, RESERVED };

class PlatformAscendC {
 public:
  PlatformAscendC() = default;
  explicit PlatformAscendC(uint32_t cores) : cores_(cores) {}
  SocVersion GetSocVersion() const { return SocVersion::ASCEND910B; }
  uint32_t GetCoreNum() const { return cores_; }
  uint32_t GetCoreNumAic() const { return cores_; }
  uint32_t GetCoreNumAiv() const { return 2 * cores_; }
  /// Kernels here need no workspace of the system's.
  uint32_t GetLibApiWorkSpaceSize() const { return 0; }
  /// In bytes; 0 for what has no size here.
  void GetCoreMemSize(const CoreMemType& memory, uint64_t& size) const {
    constexpr uint64_t sizes[] = {65536, 65536, 131072, 524288, 201326592, 196608, 0, 2048, 1024};
    const auto i = static_cast<size_t>(memory);
    size = i < std::size(sizes) ? sizes[i] : 0;
  }

 private:
  uint32_t cores_ = 1;
};

class PlatformAscendCManager {
 public:
  static PlatformAscendC* GetInstance(const char* /*socVersion*/ = nullptr) {
    static PlatformAscendC platform;
    return &platform;
  }
};

}  // namespace platform_ascendc

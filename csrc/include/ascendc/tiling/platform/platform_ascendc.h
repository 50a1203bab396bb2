// The device that a tiling is for: by default the buffers of an Atlas A2, and one core, because a tile is computed by
// all threads of the processor.
#pragma once

#include <cstdint>

namespace platform_ascendc {

enum class SocVersion : uint32_t { ASCEND910B };

class PlatformAscendC {
 public:
  PlatformAscendC() = default;
  explicit PlatformAscendC(uint32_t cores) : cores_(cores) {}
  SocVersion GetSocVersion() const { return SocVersion::ASCEND910B; }
  uint32_t GetCoreNum() const { return cores_; }
  uint32_t GetCoreNumAic() const { return cores_; }

 private:
  uint32_t cores_ = 1;
};

class PlatformAscendCManager {
 public:
  static PlatformAscendC* GetInstance() {
    static PlatformAscendC platform;
    return &platform;
  }
};

}  // namespace platform_ascendc

// Memory for a test's operands and results: begins as NaN, and notices on destruction
// if something wrote outside of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace convbwd::test {

class GuardedBuffer {
 public:
  /// `offset` bytes past an address aligned to 64.
  explicit GuardedBuffer(std::size_t bytes, std::size_t offset = 0)
      : bytes_(bytes), memory_(bytes + 3 * kGuard + offset, kGuardByte) {
    const std::size_t address = reinterpret_cast<std::size_t>(memory_.data());
    begin_ = (address + kGuard + 63) / 64 * 64 - address + offset;
    std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(begin_), bytes_, kNanByte);
  }
  ~GuardedBuffer() { EXPECT_TRUE(intact()) << "written outside of a buffer of " << bytes_ << " bytes"; }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  void* data() { return memory_.data() + begin_; }
  template <class T>
  T* as() {
    return static_cast<T*>(data());
  }

  bool intact() const {
    const auto guarded = [](std::byte b) { return b == kGuardByte; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(memory_.begin(), begin, guarded) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), guarded);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kGuardByte{0xA5}, kNanByte{0xFF};  // all ones: NaN, but in hifloat8

  std::size_t bytes_, begin_ = 0;
  std::vector<std::byte> memory_;
};

}  // namespace convbwd::test

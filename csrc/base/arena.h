// Layer base: scratch memory of one call.
#pragma once

#include <cstddef>

namespace convbwd {

/// Scratch memory, aligned to 64 bytes and uninitialised. A thread keeps the last block that it gave back (up to
/// kKeepBytes) for its next arena; arenas may be nested. Throws Error(memory). Builds with assertions fill the memory
/// with 0xFF and abort if something wrote behind its end.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kKeepBytes = std::size_t{256} << 20;

  explicit Arena(std::size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_, capacity_ = 0;
};

}  // namespace convbwd

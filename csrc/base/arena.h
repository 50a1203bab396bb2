// Layer base: scratch memory of one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

/// Bytes that a caller must bring, who need not align them, for a workspace of `bytes`; and the workspace in them.
inline std::size_t to_bring(std::size_t bytes) { return bytes == 0 ? 0 : bytes + Arena::kAlignment - 1; }
inline std::span<std::byte> aligned(void* brought, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(brought);
  return {bytes == 0 ? nullptr : static_cast<std::byte*>(brought) + (-address & (Arena::kAlignment - 1)), bytes};
}

}  // namespace convbwd

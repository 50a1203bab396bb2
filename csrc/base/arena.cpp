#include "base/arena.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "convbwd/types.hpp"

namespace convbwd {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
#ifdef NDEBUG
constexpr std::size_t kGuard = 0;
#else
constexpr std::size_t kGuard = 64;
constexpr int kPoison = 0xFF;  // NaN in every floating-point format
#endif

struct Block {
  std::byte* data = nullptr;
  std::size_t capacity = 0;

  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { std::free(data); }
  void swap(std::byte*& other_data, std::size_t& other_capacity) noexcept {
    std::swap(data, other_data);
    std::swap(capacity, other_capacity);
  }
};
thread_local Block t_kept;

}  // namespace

Arena::Arena(std::size_t bytes) : bytes_(bytes) {
  // More than any address space has, and near enough to the type's end for the sums below to wrap.
  const bool absurd = bytes > std::numeric_limits<std::size_t>::max() / 2;
  const std::size_t needed = bytes + kGuard;
  t_kept.swap(data_, capacity_);
  if (absurd || capacity_ < needed || data_ == nullptr) {
    std::free(std::exchange(data_, nullptr));
    // Packed panels are walked in long strides, which huge pages spare many misses of the address translation.
    const std::size_t unit = needed >= kHugePage / 2 ? kHugePage : kAlignment;
    capacity_ = (std::max(needed, unit) + unit - 1) / unit * unit;
    if (!absurd) data_ = static_cast<std::byte*>(std::aligned_alloc(unit, capacity_));
    if (data_ == nullptr) {
      throw Error(ErrorKind::memory, "cannot allocate " + std::to_string(bytes) + " bytes of workspace");
    }
#ifdef __linux__
    if (unit == kHugePage) madvise(data_, capacity_, MADV_HUGEPAGE);  // only a hint
#endif
  }
#ifndef NDEBUG
  std::memset(data_, kPoison, needed);
#endif
}

Arena::~Arena() {
#ifndef NDEBUG
  const std::byte* const guard = data_ + bytes_;
  if (!std::all_of(guard, guard + kGuard, [](std::byte b) { return b == std::byte{kPoison}; })) {
    std::fprintf(stderr, "convbwd: something wrote behind the end of a workspace of %zu bytes\n", bytes_);
    std::abort();
  }
#endif
  if (capacity_ <= kKeepBytes && capacity_ > t_kept.capacity) t_kept.swap(data_, capacity_);
  std::free(data_);
}

}  // namespace convbwd

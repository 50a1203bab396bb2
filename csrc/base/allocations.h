// Layer base: memory that a C interface gives out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/arena.h"
#include "base/fork_safe.h"

namespace convbwd {

/// Knows what it allocated. Safe to use from many threads.
class Allocations {
 public:
  /// Null where there is no memory for the block; std::bad_alloc where there is none to remember it.
  void* allocate(std::size_t bytes) {
    const std::size_t rounded = (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
    std::unique_ptr<void, decltype(&std::free)> memory(
        rounded < bytes ? nullptr : std::aligned_alloc(Arena::kAlignment, rounded), &std::free);
    if (!memory) return nullptr;
    const std::lock_guard lock(g_tables_mutex);
    blocks_.emplace(reinterpret_cast<std::uintptr_t>(memory.get()), bytes);
    return memory.release();
  }

  /// False, and nothing is freed, for what was not allocated here or was freed before.
  bool release(void* memory) {
    {
      const std::lock_guard lock(g_tables_mutex);
      if (blocks_.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) return false;
    }
    std::free(memory);
    return true;
  }

  /// Bytes from `p` to the end of its block, if it is in one.
  std::optional<std::size_t> room(const void* p) const {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    const std::lock_guard lock(g_tables_mutex);
    auto block = blocks_.upper_bound(address);
    if (block == blocks_.begin()) return std::nullopt;
    const auto [begin, bytes] = *--block;
    return address - begin < bytes ? std::optional(bytes - (address - begin)) : std::nullopt;
  }

 private:
  std::map<std::uintptr_t, std::size_t> blocks_;  // address -> bytes
};

/// Of an interface's two kinds of memory.
inline Allocations &g_device_memory = *new Allocations, &g_host_memory = *new Allocations;

}  // namespace convbwd

// Layer base: what stands behind the opaque pointers of the C interfaces.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_safe.h"

namespace convbwd {

/// A number for all tables together, outside the addresses that x86-64 and aarch64 give to processes: who follows it
/// fails at once.
inline std::uintptr_t next_handle() {
  static std::atomic<std::uintptr_t> next{std::uintptr_t{1} << 62};
  return next += 16;
}

/// Objects of one kind. A handle is a number in the shape of a pointer that no table ever gives twice, so one that is
/// null, made up or destroyed is noticed and never followed. Safe to use from many threads: who found an object may use
/// it while another thread removes it.
template <class Object>
class HandleTable {
 public:
  void* insert(std::shared_ptr<Object> object) {
    const std::uintptr_t handle = next_handle();
    const std::lock_guard lock(g_tables_mutex);
    objects_.emplace(handle, std::move(object));
    return reinterpret_cast<void*>(handle);
  }

  /// Null where the handle is not one of this table's.
  std::shared_ptr<Object> find(const void* handle) const {
    const std::lock_guard lock(g_tables_mutex);
    const auto at = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    return at == objects_.end() ? nullptr : at->second;
  }

  std::shared_ptr<Object> remove(const void* handle) {
    const std::lock_guard lock(g_tables_mutex);
    const auto node = objects_.extract(reinterpret_cast<std::uintptr_t>(handle));
    return node.empty() ? nullptr : node.mapped();
  }

  std::vector<std::shared_ptr<Object>> all() const {
    const std::lock_guard lock(g_tables_mutex);
    std::vector<std::shared_ptr<Object>> objects;
    for (const auto& [handle, object] : objects_) objects.push_back(object);
    return objects;
  }
  void clear() {
    decltype(objects_) objects;  // destroyed behind the lock
    const std::lock_guard lock(g_tables_mutex);
    objects.swap(objects_);
  }

 private:
  std::unordered_map<std::uintptr_t, std::shared_ptr<Object>> objects_;
};

/// The table of a kind of object.
template <class Object>
inline HandleTable<Object>& g_table = *new HandleTable<Object>;

}  // namespace convbwd

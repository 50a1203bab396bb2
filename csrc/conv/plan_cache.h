// Layer conv: the plans of the most recent requests.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "convbwd/convbwd.hpp"

namespace convbwd {

/// All that a plan depends on, as a string of numbers.
class PlanKey {
 public:
  PlanKey(const Request& request, int threads, int isa);
  bool whole() const { return count_ <= numbers_.size(); }  ///< false: too long to be kept
  std::size_t hash() const { return hash_; }
  bool operator==(const PlanKey& other) const {
    return count_ == other.count_ &&
           std::memcmp(numbers_.data(), other.numbers_.data(), count_ * sizeof(std::int64_t)) == 0;
  }

 private:
  void add(std::int64_t number);
  void add(const Shape& shape);
  void add(const Tensor& tensor);
  void add(const std::optional<Packing>& packing);

  std::array<std::int64_t, 120> numbers_;  // three tensors of five axes with strides, results' strides and parameters
  std::size_t count_ = 0, hash_ = 14695981039346656037u;  // FNV-1a's start
};

/// A bounded map from keys to plans; the least recently used plan goes first. Safe to use from many threads. Nobody
/// waits for it: while another thread is in it, and for ever after a fork in such a moment, it neither finds nor keeps.
template <class Value>
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}

  std::shared_ptr<const Value> find(const PlanKey& key) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    const auto at = index_.find(&key);
    if (at == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, at->second);
    return at->second->plan;
  }

  void insert(const PlanKey& key, std::shared_ptr<const Value> plan) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || index_.contains(&key)) return;  // another thread may have been faster
    if (entries_.size() == capacity_) {
      index_.erase(&entries_.back().key);
      entries_.pop_back();
    }
    std::list<Entry> entry;  // which an index that finds no memory does not let in
    entry.push_front({key, std::move(plan)});
    index_.emplace(&entry.front().key, entry.begin());
    entries_.splice(entries_.begin(), entry);
  }

 private:
  struct Entry {
    PlanKey key;
    std::shared_ptr<const Value> plan;
  };
  struct Hash {
    std::size_t operator()(const PlanKey* key) const { return key->hash(); }
  };
  struct Equal {
    bool operator()(const PlanKey* a, const PlanKey* b) const { return *a == *b; }
  };

  const std::size_t capacity_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first; addresses of keys stay
  std::unordered_map<const PlanKey*, typename std::list<Entry>::iterator, Hash, Equal> index_;
};

}  // namespace convbwd

// Layer engine: reductions that tasks share.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "base/thread_pool.h"
#include "engine/axis.h"

namespace convbwd {

/// Where a pass has few results, the units of their reductions (chunks, boxes, images) are cut into slabs: each is a
/// task of its own, and the sums of all slabs of a result are added up in order. How many there are depends on sizes
/// alone, for it fixes the order of sums.
struct Slabs {
  struct Task {
    Index number, result, slab;
    Range units;
  };

  Index results = 1, units = 1, count = 1;
  bool by_slab = false;  // all results of a slab follow each other, or all slabs of a result

  bool several() const { return count > 1; }
  Index tasks() const { return results * count; }
  Task task(Index i) const {
    const Index result = by_slab ? i % results : i / count, slab = by_slab ? i / results : i % count;
    return {i, result, slab, piece_of(units, slab, count)};
  }

  /// Orders tasks so that halves of them, with which two threads begin, are most alike; `work` is that of a unit.
  template <class Work>
  void order(const Work& work) {
    const auto lead = [&](bool by) {
      by_slab = by;
      Index more = 0;
      for (Index i = 0; i < tasks() && several(); ++i) {
        const Task t = task(i);
        more += (i < tasks() / 2 ? 1 : -1) * work(t.result) * t.units.size();
      }
      return std::abs(more);
    };
    const Index of_results = lead(false), of_slabs = lead(true);
    by_slab = of_slabs <= of_results;
  }

  /// Of memory for the sums of all slabs, of so many elements each.
  template <class T>
  Index bytes(Index elements) const {
    return several() ? tasks() * pitch<T>(elements) * static_cast<Index>(sizeof(T)) : 0;
  }

  /// `sum(task, slot, to)` sums a task's units, to `to` where there are several slabs, and returns where the sums are,
  /// null if they need no storing. `store(result, slot, sums)` takes those of all units of a result. `shared` holds
  /// bytes(). Slabs are added by `sharers` where so many threads share what a slot does.
  template <class T, class Sum, class Store>
  void run(int slots, std::byte* shared, Index elements, const Sum& sum, const Store& store, int sharers = 1) const {
    const Index step = pitch<T>(elements);
    T* const parts = reinterpret_cast<T*>(shared);
    parallel_for(tasks(), slots, [&](Index i, int slot) {
      const Task t = task(i);
      const T* const sums = sum(t, slot, several() ? parts + (t.result * count + t.slab) * step : nullptr);
      if (sums && !several()) store(t.result, slot, sums);
    });
    if (!several()) return;
    const bool few = tasks() * elements < kFewAdditions;
    const int threads = std::max(slots, sharers);
    const Index pieces = few ? 1 : ceil_div(threads, results);
    parallel_for(results * pieces, few ? 1 : threads, [&](Index i, int) {
      T* const sums = parts + i / pieces * count * step;
      const Range piece = piece_of(elements, i % pieces, pieces);
      for (Index slab = 1; slab < count; ++slab)
        for (Index e = piece.begin; e < piece.end; ++e) sums[e] += sums[slab * step + e];
    });
    parallel_for(results, few ? 1 : slots, [&](Index i, int slot) { store(i, slot, parts + i * count * step); });
  }

 private:
  static constexpr Index kFewAdditions = 1 << 12;  // take less time than another thread to begin
  template <class T>
  static Index pitch(Index elements) {
    return round_up(elements, 64 / static_cast<Index>(sizeof(T)));
  }
};

}  // namespace convbwd

// Layer base: the library's own threads. Results must not depend on how tasks are dealt out: what a task computes
// depends on its number alone, and the slot only names scratch memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "convbwd/types.hpp"

namespace convbwd {

/// Also in convbwd/convbwd.hpp, where they are described.
CONVBWD_API void set_num_threads(int threads);
CONVBWD_API int get_num_threads();

/// What a call uses at most: a mistyped number must not use up the threads of the process.
inline constexpr int kMaxThreads = 256;

namespace detail {
using TaskFn = void (*)(void* context, std::int64_t task, int slot);
void run_tasks(std::int64_t tasks, int slots, TaskFn fn, void* context);
}  // namespace detail

/// Calls f(task, slot) for every task in [0, tasks), from at most `slots` threads, the caller's among them, and returns
/// when all are done. No two calls that run at the same time have the same slot in [0, slots). Nested calls, and calls
/// while another thread's is under way, run inline with slot 0. The first exception of f ends the loop and is rethrown.
template <class F>
void parallel_for(std::int64_t tasks, int slots, F&& f) {
  using Function = std::remove_reference_t<F>;
  detail::run_tasks(
      tasks, slots, [](void* context, std::int64_t task, int slot) { (*static_cast<Function*>(context))(task, slot); },
      const_cast<void*>(static_cast<const void*>(std::addressof(f))));
}

namespace detail {

/// CONVBWD_NUM_THREADS, else OMP_NUM_THREADS, else the CPUs that affinity and cgroup quota leave to this process.
int default_num_threads();

/// The cgroup's CPU quota in CPUs, rounded up; INT_MAX where there is none. `root` stands for "/" in tests.
int cgroup_cpus(const std::string& root);

}  // namespace detail
}  // namespace convbwd

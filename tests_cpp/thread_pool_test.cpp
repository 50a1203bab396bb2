#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "convbwd/types.hpp"

namespace convbwd {
namespace {

class ThreadPoolTest : public testing::Test {
 protected:
  void TearDown() override { set_num_threads(threads_); }

 private:
  int threads_ = get_num_threads();
};

// Runs every task and expects each of them once, and no slot taken twice at a time.
void expect_all_tasks(std::int64_t tasks, int slots) {
  std::vector<int> runs(static_cast<std::size_t>(tasks), 0);  // not atomic: every task has its own
  std::vector<std::atomic<int>> in_slot(static_cast<std::size_t>(slots));
  std::atomic<int> misplaced{0};
  parallel_for(tasks, slots, [&](std::int64_t task, int slot) {
    if (slot < 0 || slot >= slots || in_slot[static_cast<std::size_t>(slot)].fetch_add(1) != 0) misplaced.fetch_add(1);
    ++runs[static_cast<std::size_t>(task)];
    in_slot[static_cast<std::size_t>(slot)].fetch_sub(1);
  });
  EXPECT_EQ(misplaced.load(), 0);
  EXPECT_EQ(runs, std::vector<int>(static_cast<std::size_t>(tasks), 1));
}

TEST_F(ThreadPoolTest, RunsEveryTaskOnce) {
  for (const int slots : {1, 2, 3, 8})
    for (const std::int64_t tasks : {0, 1, 2, 7, 1000}) expect_all_tasks(tasks, slots);
}

TEST_F(ThreadPoolTest, ManyShortLoopsSeeTheWorkOfTheOneBefore) {
  std::vector<std::int64_t> values(64, 0);
  for (int round = 0; round < 2000; ++round) {
    parallel_for(64, 4, [&](std::int64_t task, int) {
      const std::size_t i = static_cast<std::size_t>((task + round) % 64);
      values[i] += round;
    });
  }
  EXPECT_EQ(values, std::vector<std::int64_t>(64, 1999 * 2000 / 2));
}

TEST_F(ThreadPoolTest, WorkersThatSleepAreWoken) {
  set_num_threads(2);
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> inside{0};
    parallel_for(2, 2, [&](std::int64_t, int) {  // ends only if both run at the same time
      inside.fetch_add(1);
      while (inside.load() < 2) std::this_thread::yield();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

#ifdef __linux__
TEST_F(ThreadPoolTest, WorkersKeepOffTheCallersCpu) {
  cpu_set_t mine, theirs;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  if (CPU_COUNT(&mine) < 2) GTEST_SKIP() << "a single CPU";
  set_num_threads(2);
  std::atomic<int> inside{0};
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until workers of the tests before sleep
  parallel_for(2, 2, [](std::int64_t, int) {});                // a new worker may begin before it is moved
  parallel_for(2, 2, [&](std::int64_t, int slot) {             // ends only if both run at the same time
    if (slot == 1) sched_getaffinity(0, sizeof theirs, &theirs);
    inside.fetch_add(1);
    while (inside.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(CPU_COUNT(&theirs), CPU_COUNT(&mine) - 1);
  CPU_OR(&theirs, &theirs, &mine);
  EXPECT_TRUE(CPU_EQUAL(&theirs, &mine)) << "workers went where the caller may not";
}
#endif

TEST_F(ThreadPoolTest, NestedLoopsRunInline) {
  std::vector<int> sums(16, 0);
  parallel_for(16, 4, [&](std::int64_t outer, int) {
    const std::thread::id self = std::this_thread::get_id();
    parallel_for(10, 4, [&](std::int64_t inner, int slot) {
      EXPECT_EQ(slot, 0);
      EXPECT_EQ(std::this_thread::get_id(), self);
      sums[static_cast<std::size_t>(outer)] += static_cast<int>(inner);
    });
  });
  EXPECT_EQ(sums, std::vector<int>(16, 45));
}

TEST_F(ThreadPoolTest, ConcurrentCallersAllFinish) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([] {
      for (int round = 0; round < 200; ++round) expect_all_tasks(20, 3);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(ThreadPoolTest, FirstExceptionIsRethrownAndThePoolGoesOn) {
  for (const int slots : {1, 4}) {
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> runs{0};
      try {
        parallel_for(1000, slots, [&](std::int64_t task, int) {
          runs.fetch_add(1);
          if (task % 3 == 1) throw std::runtime_error("task failed");
        });
        FAIL() << "nothing thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "task failed");
      }
      EXPECT_LT(runs.load(), 1000);
    }
    expect_all_tasks(100, slots);
  }
}

TEST_F(ThreadPoolTest, RejectsFewerThanOneThread) {
  for (const int threads : {0, -3}) {
    try {
      set_num_threads(threads);
      FAIL() << "accepted " << threads;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::value);
      EXPECT_EQ(error.what(), "set_num_threads: threads must be at least 1, got " + std::to_string(threads));
    }
  }
}

// Runs f in a forked child and returns the child's exit code, -1 where it was killed.
template <class F>
int exit_code_of_child(F f) {
  const pid_t child = fork();
  if (child == 0) f();
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(ThreadPoolTest, WorksInAForkedChild) {
  set_num_threads(3);
  expect_all_tasks(100, 3);  // so that there are threads for the child to lack
  EXPECT_EQ(exit_code_of_child([] {
              std::vector<int> values(100, 0);
              for (int round = 0; round < 10; ++round) {
                parallel_for(100, 3, [&](std::int64_t task, int) { ++values[static_cast<std::size_t>(task)]; });
              }
              _exit(get_num_threads() == 3 && values == std::vector<int>(100, 10) ? 0 : 1);
            }),
            0);
  expect_all_tasks(100, 3);
}

// In a child, so that the other tests have few threads.
TEST_F(ThreadPoolTest, ThreadsAreAtMostSoMany) {
  EXPECT_EQ(exit_code_of_child([] {
              expect_all_tasks(1000, kMaxThreads);
              std::vector<int> slots(1000, -1);
              parallel_for(1000, kMaxThreads + 100,
                           [&](std::int64_t task, int slot) { slots[static_cast<std::size_t>(task)] = slot; });
              const auto [least, most] = std::minmax_element(slots.begin(), slots.end());
              _exit(*least >= 0 && *most < kMaxThreads && !HasFailure() ? 0 : 1);
            }),
            0);
}

// Made before the pool, so destroyed after it.
struct LateCaller {
  bool armed = false;
  ~LateCaller() {
    if (!armed) return;
    int sum = 0;
    parallel_for(10, 2, [&](std::int64_t task, int) { sum += static_cast<int>(task); });
    _exit(sum);
  }
} g_late_caller;

TEST_F(ThreadPoolTest, StopsAtExitAndRunsLateCallsInlineInAForkedChild) {
  EXPECT_EQ(exit_code_of_child([] {
              g_late_caller.armed = true;
              set_num_threads(2);
              expect_all_tasks(100, 2);
              std::exit(0);
            }),
            45);
}

TEST(DefaultNumThreads, ComesFromTheEnvironment) {
  unsetenv("CONVBWD_NUM_THREADS");
  unsetenv("OMP_NUM_THREADS");
  const int of_machine = detail::default_num_threads();
  EXPECT_GE(of_machine, 1);
  const std::pair<const char*, int> cases[] = {{"3", 3},
                                               {"5,2,1", 5},
                                               {" 7 ", 7},
                                               {" 6 , 2", 6},
                                               {"", of_machine},
                                               {"0", of_machine},
                                               {"-2", of_machine},
                                               {"many", of_machine},
                                               {"4x", of_machine},
                                               {",4", of_machine},
                                               {"99999999999999999999", of_machine}};
  for (const auto& [text, expected] : cases) {
    setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(detail::default_num_threads(), expected) << "'" << text << "'";
  }
  setenv("OMP_NUM_THREADS", "9", 1);
  setenv("CONVBWD_NUM_THREADS", "11", 1);
  EXPECT_EQ(detail::default_num_threads(), 11);
  setenv("CONVBWD_NUM_THREADS", "nonsense", 1);
  EXPECT_EQ(detail::default_num_threads(), 9);
  unsetenv("CONVBWD_NUM_THREADS");
  unsetenv("OMP_NUM_THREADS");
}

class CgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "convbwd_cgroup_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  int cpus() const { return detail::cgroup_cpus(root_); }

 private:
  std::string root_;
};

TEST_F(CgroupTest, NoneIsNoLimit) { EXPECT_EQ(cpus(), INT_MAX); }

TEST_F(CgroupTest, Version2TakesTheLeastQuotaOnTheWayUp) {
  write("/proc/self/cgroup", "0::/a/b\n");
  write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), INT_MAX);
  write("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpus(), 3);
  write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpus(), 1);
}

TEST_F(CgroupTest, Version1) {
  write("/proc/self/cgroup", "12:memory:/x\n4:cpu,cpuacct:/docker/abc\n1:cpuset:/\n0::/\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpus(), INT_MAX);
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(cpus(), 4);
}

TEST_F(CgroupTest, GarbageIsIgnored) {
  write("/proc/self/cgroup", "nonsense\n:\n::\n0::relative\n0::/\n");
  write("/sys/fs/cgroup/cpu.max", "much too\n");
  EXPECT_EQ(cpus(), INT_MAX);
  write("/sys/fs/cgroup/cpu.max", "1e300 1\n");
  EXPECT_EQ(cpus(), INT_MAX);
}

}  // namespace
}  // namespace convbwd

#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "convbwd/types.hpp"

namespace convbwd {
namespace {

// About 40 to 200 microseconds: longer than a pass of one task between two that are shared (a thread that sleeps comes
// too late for 20 microseconds of work, and waking it takes some of them), far shorter than a time slice.
constexpr int kSpins = 4000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // `yield` is a no-op on most cores, isb takes about as long as x86's pause
#endif
}

template <class Predicate>
bool spin_until(Predicate done) {
  for (int i = 0; i < kSpins; ++i) {
    if (done()) return true;
    relax();
  }
  return false;
}

thread_local bool t_in_task = false;

// One job at a time. A job is the plain members below plus `seats_`, the number of workers that may still join it:
//   caller: write the job, open the seats, wake, take tasks itself, close the seats, wait for those who joined
//   worker: wait for a new epoch, take a seat (its number is the slot), take tasks, report as finished
// A worker that wakes too late finds no seat, so a short job never waits for a sleeping thread. A slot takes its own
// run of tasks first and then what is left of the others': loops over the same memory find it in the cache of the same
// core.
class Pool {
 public:
  void run(std::int64_t tasks, int slots, detail::TaskFn fn, void* context);
  void shut_down();

 private:
  void work(std::uint32_t seen);
  void take_tasks(int slot) noexcept;
  void keep_off_the_caller();
  std::span<std::thread> started() { return {workers_.data(), static_cast<std::size_t>(started_)}; }

  std::mutex run_mutex_;  // held by the thread whose job it is
  std::mutex mutex_;      // guards stop_, asleep_ and error_, and every change that a condition variable is waited for
  std::condition_variable wake_, done_;
  // Not on the heap: a forked child could not give its copy back.
  std::array<std::thread, kMaxThreads> workers_;
  int started_ = 0, placed_ = 0;  // workers, and those that keep to `places_`
#ifdef __linux__
  cpu_set_t places_;
#endif
  int asleep_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;

  detail::TaskFn fn_ = nullptr;
  void* context_ = nullptr;
  struct alignas(64) Run {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  std::array<Run, kMaxThreads> runs_;
  int slots_ = 1;
  std::atomic<int> seats_{0}, finished_{0};
  std::atomic<std::uint32_t> epoch_{0};
};

void Pool::run(std::int64_t tasks, int slots, detail::TaskFn fn, void* context) {
  std::unique_lock<std::mutex> running(run_mutex_, std::defer_lock);
  if (slots <= 1 || t_in_task || !running.try_lock()) {
    for (std::int64_t task = 0; task < tasks; ++task) fn(context, task, 0);
    return;
  }
  try {
    for (; started_ < slots - 1; ++started_)
      workers_[static_cast<std::size_t>(started_)] =
          std::thread(&Pool::work, this, epoch_.load(std::memory_order_relaxed));
  } catch (const std::system_error&) {  // no more threads to be had: those at hand do the work
    slots = started_ + 1;
  }
  fn_ = fn;
  context_ = context;
  slots_ = slots;
  // Relaxed: nobody reads these before taking a seat, and opening the seats releases them.
  for (std::int64_t i = 0; i < slots; ++i) {
    runs_[static_cast<std::size_t>(i)].next.store(tasks * i / slots, std::memory_order_relaxed);
    runs_[static_cast<std::size_t>(i)].end = tasks * (i + 1) / slots;
  }
  finished_.store(0, std::memory_order_relaxed);
  // Release: a worker that takes a seat (acquire) sees the job. Taking one is a read-modify-write and so continues the
  // release sequence: those who come second see it too.
  seats_.store(slots - 1, std::memory_order_release);
  bool wakes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    epoch_.fetch_add(1, std::memory_order_relaxed);  // only a hint to look at seats_
    wakes = asleep_ > 0;
  }
  if (wakes || placed_ != started_) keep_off_the_caller();
  wake_.notify_all();

  take_tasks(0);

  // Relaxed: how many joined is all that is asked. From here on nobody joins, and the job may be overwritten
  // once those who did have finished. Acquire there: what their tasks wrote is the caller's to read.
  const int joined = slots - 1 - seats_.exchange(0, std::memory_order_relaxed);
  const auto all_finished = [&] { return finished_.load(std::memory_order_acquire) == joined; };
  if (!spin_until(all_finished)) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, all_finished);
  }
  // Unguarded: whoever could write it has finished.
  if (std::exception_ptr error = std::exchange(error_, nullptr)) {
    running.unlock();
    std::rethrow_exception(std::move(error));
  }
}

// Where a CPU that idles looks taken, as it does to Linux on virtual machines, workers are woken on the caller's and
// wait there until its time slice ends: calls some milliseconds apart took as long with two threads as with one. If
// there are fewer CPUs than threads, they may share all.
void Pool::keep_off_the_caller() {
#ifdef __linux__
  const int cpu = sched_getcpu();
  cpu_set_t cpus;
  if (cpu < 0 || sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) == 1) return;
  if (CPU_COUNT(&cpus) >= get_num_threads()) CPU_CLR(static_cast<std::size_t>(cpu), &cpus);
  if (placed_ == started_ && CPU_EQUAL(&cpus, &places_)) return;
  for (std::thread& worker : started()) pthread_setaffinity_np(worker.native_handle(), sizeof cpus, &cpus);
  places_ = cpus;
  placed_ = started_;
#endif
}

void Pool::work(std::uint32_t seen) {
  for (;;) {
    const auto called = [&] { return epoch_.load(std::memory_order_relaxed) != seen; };
    if (!spin_until(called)) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++asleep_;
      wake_.wait(lock, [&] { return stop_ || called(); });
      --asleep_;
      if (stop_) return;
    }
    seen = epoch_.load(std::memory_order_relaxed);
    int seat = seats_.load(std::memory_order_relaxed);
    while (seat > 0 &&
           !seats_.compare_exchange_weak(seat, seat - 1, std::memory_order_acquire, std::memory_order_relaxed)) {
    }
    if (seat == 0) continue;
    take_tasks(seat);
    {
      // Release: see all_finished. Under the lock, so that the caller cannot miss it between its test and its sleep.
      const std::lock_guard<std::mutex> lock(mutex_);
      finished_.fetch_add(1, std::memory_order_release);
    }
    done_.notify_one();
  }
}

void Pool::take_tasks(int slot) noexcept {
  t_in_task = true;
  for (int i = 0; i < slots_; ++i) {
    Run& run = runs_[static_cast<std::size_t>((slot + i) % slots_)];
    // Relaxed: the counter only deals out numbers; the job was acquired with the seat.
    for (std::int64_t task; (task = run.next.fetch_add(1, std::memory_order_relaxed)) < run.end;) {
      try {
        fn_(context_, task, slot);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!error_) error_ = std::current_exception();
        for (Run& others : runs_) others.next.store(others.end, std::memory_order_relaxed);
      }
    }
  }
  t_in_task = false;
}

void Pool::shut_down() {
  run_mutex_.lock();  // for good: threads that are still about run their loops inline
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : started()) worker.join();
  started_ = 0;
}

// Never destroyed, so that a thread which outlives the static objects still finds it.
union Immortal {
  Immortal() : pool() {}
  ~Immortal() {}
  Pool pool;
};

Pool& the_pool() {
  static Immortal immortal;
  [[maybe_unused]] static const bool registered = [] {
    std::atexit([] { immortal.pool.shut_down(); });
    // A forked child has none of the workers, and its copies of the locks may be held: it starts with a new pool.
    pthread_atfork(nullptr, nullptr, [] { new (&immortal.pool) Pool; });
    return true;
  }();
  return immortal.pool;
}

std::atomic<int> g_threads{0};  // what set_num_threads said, 0 before; relaxed: the value stands for itself

// The first number of a list such as "4,2"; 0 where there is none to be had.
int positive_number(const char* text) {
  if (text == nullptr) return 0;
  const char* const end = text + std::strlen(text);
  const auto skip_blanks = [end](const char* p) {
    return std::find_if(p, end, [](char c) { return c != ' ' && c != '\t'; });
  };
  int number = 0;
  const auto [stop, error] = std::from_chars(skip_blanks(text), end, number);
  const char* const rest = skip_blanks(stop);
  return error == std::errc() && number > 0 && (rest == end || *rest == ',') ? number : 0;
}

int available_cpus() {
#ifdef __linux__
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) return CPU_COUNT(&cpus);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

int detail::cgroup_cpus(const std::string& root) {
  int cpus = INT_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" (version 2) or "4:cpu,cpuacct:/path" (version 1)
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string mount = root + (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu");
    // Every group up to the mount point may set a quota; a container sees the path of its host, but mounts only its
    // own.
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      std::string quota = "max";
      double period = 0;
      if (v2) {
        std::ifstream(mount + path + "/cpu.max") >> quota >> period;
      } else {
        std::ifstream(mount + path + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(mount + path + "/cpu.cfs_period_us") >> period;
      }
      const double microseconds = std::strtod(quota.c_str(), nullptr);  // "max" and version 1's -1 are no quota
      if (microseconds > 0 && period > 0) {
        cpus = static_cast<int>(std::min<double>(cpus, (microseconds + period - 1) / period));
      }
      if (path.find('/') == std::string::npos) break;
    }
  }
  return cpus;
}

int detail::default_num_threads() {
  for (const char* variable : {"CONVBWD_NUM_THREADS", "OMP_NUM_THREADS"}) {
    if (const int number = positive_number(std::getenv(variable))) return number;
  }
  return std::min(available_cpus(), cgroup_cpus(""));
}

void set_num_threads(int threads) {
  if (threads < 1) {
    throw Error(ErrorKind::value, "set_num_threads: threads must be at least 1, got " + std::to_string(threads));
  }
  g_threads.store(threads, std::memory_order_relaxed);
}

int get_num_threads() {
  static const int by_default = detail::default_num_threads();
  const int threads = g_threads.load(std::memory_order_relaxed);
  return threads > 0 ? threads : by_default;
}

void detail::run_tasks(std::int64_t tasks, int slots, TaskFn fn, void* context) {
  the_pool().run(tasks, static_cast<int>(std::min<std::int64_t>({slots, tasks, kMaxThreads})), fn, context);
}

}  // namespace convbwd

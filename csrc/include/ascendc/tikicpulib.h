// Runs a kernel for each of its cores, one at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernel_operator.h"

enum class KernelMode { MIX_MODE, AIC_MODE, AIV_MODE, MIX_AIC_1_1 };

namespace AscendC {

/// Of no effect: the cores are those for matrices.
inline void SetKernelMode(KernelMode) {}

inline void* GmAlloc(size_t size) { return std::calloc(size == 0 ? 1 : size, 1); }
inline void GmFree(void* memory) { std::free(memory); }

/// The cores of a kernel: one runs at a time, in their order, until it ends or waits for the others. Those that begin
/// while another one waits have a thread each. Once one has thrown, those that have not begun do not, the others go on;
/// the first exception is thrown again at the end.
template <class Run>
class Turns final : public Cores {
 public:
  Turns(int64_t blocks, const Run& run)
      : blocks_(blocks < 0 ? 0 : blocks), run_(run), state_(static_cast<size_t>(blocks_), State::idle) {}

  void RunAll() {
    const Block saved = Block::Current();
    bool alone = true;
    for (int64_t i = 0; i < blocks_ && alone; ++i) {
      state_[static_cast<size_t>(i)] = State::begun;
      alone = RunOne(i);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return threads_.empty() || turn_ == blocks_; });
    lock.unlock();
    for (std::thread& thread : threads_) thread.join();
    Block::Current() = saved;
    if (failure_) std::rethrow_exception(failure_);
  }

  void Wait(int64_t index) override {
    std::unique_lock<std::mutex> lock(mutex_);
    PassOn(index);
    changed_.wait(lock, [&] { return turn_ == index; });
  }

 private:
  enum class State { idle, begun, ended };

  // Whether the next core has to be begun here, because none has waited or failed.
  bool RunOne(int64_t index) {
    Block::Current() = {index, blocks_, this};
    std::exception_ptr failure;
    try {
      run_();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure && !failure_) failure_ = failure;
    state_[static_cast<size_t>(index)] = State::ended;
    if (!threads_.empty()) PassOn(index);
    return threads_.empty() && !failure_;
  }
  // To the next core that has not ended; with the lock held, as below.
  void PassOn(int64_t index) {
    turn_ = blocks_;
    for (int64_t i = 1; i <= blocks_ && turn_ == blocks_; ++i)
      if (const int64_t next = (index + i) % blocks_; Begun(next)) turn_ = next;
    changed_.notify_all();
  }
  // Whether a core has begun and not ended; it begins where it can.
  bool Begun(int64_t index) {
    State& state = state_[static_cast<size_t>(index)];
    if (state != State::idle || failure_) return state == State::begun;
    try {
      threads_.emplace_back([this, index, key = TilingKey()] {
        TilingKey() = key;
        RunOne(index);
      });
      state = State::begun;
    } catch (...) {  // no thread is to be had
      failure_ = std::current_exception();
    }
    return state == State::begun;
  }

  const int64_t blocks_;
  const Run& run_;
  std::vector<State> state_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t turn_ = 0;  // `blocks_`: all have ended
  std::exception_ptr failure_;
};

template <class Kernel, class... Arguments>
void RunKernel(int64_t blocks, const Kernel& kernel, Arguments... arguments) {
  const auto run = [&] { kernel(arguments...); };
  Turns<decltype(run)>(blocks, run).RunAll();
}

}  // namespace AscendC

#define ICPU_SET_TILING_KEY(key) (AscendC::TilingKey() = (key))
#define ICPU_RUN_KF(kernel, blocks, ...) AscendC::RunKernel(blocks, kernel, __VA_ARGS__)

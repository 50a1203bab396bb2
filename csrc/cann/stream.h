// Face cann: a queue of work with a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace convbwd::cann {

class Stream {
 public:
  using Task = std::function<void()>;

  Stream() : worker_([this] { work(); }) {}
  /// Finishes what was given.
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    given_.notify_one();
    worker_.join();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void push(Task task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
      ++pushed_;
    }
    given_.notify_one();
  }

  /// Waits for the tasks that were given before. Returns what the first of them that failed threw, of those since the
  /// last synchronisation; null where none did.
  std::exception_ptr synchronize() {
    std::unique_lock lock(mutex_);
    const auto last = pushed_;
    finished_.wait(lock, [&] { return done_ >= last; });
    return std::exchange(error_, nullptr);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      given_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
      task = nullptr;
      lock.lock();
      if (error && !error_) error_ = error;
      ++done_;
      finished_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable given_, finished_;
  std::deque<Task> tasks_;
  unsigned long long pushed_ = 0, done_ = 0;
  std::exception_ptr error_;
  bool closed_ = false;
  std::thread worker_;  // last: it uses the others
};

}  // namespace convbwd::cann

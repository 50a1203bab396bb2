// Face cann: queues of work with a thread of their own, and points in it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace convbwd::cann {

/// Of one process.
class Queue {
 public:
  using Task = std::function<void()>;

  Queue() : worker_([this] { work(); }) {}
  /// Finishes what was given.
  ~Queue() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    given_.notify_one();
    worker_.join();
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  bool of_this_process() const { return process_ == getpid(); }

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
  const pid_t process_ = getpid();
  std::thread worker_;  // last: it uses the others
};

/// A forked child has no thread of its parent's queue, whose lock may be held: it leaves that alone and begins with one
/// of its own. The work that was given before is the parent's.
class Stream {
 public:
  Stream() = default;
  ~Stream() {
    if (Queue* const queue = queue_; queue->of_this_process()) delete queue;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void push(Queue::Task task) { queue().push(std::move(task)); }
  std::exception_ptr synchronize() { return queue().synchronize(); }

 private:
  Queue& queue() {
    Queue* queue = queue_;
    while (!queue->of_this_process()) {
      auto own = std::make_unique<Queue>();
      if (queue_.compare_exchange_strong(queue, own.get())) queue = own.release();
    }
    return *queue;
  }

  std::atomic<Queue*> queue_{new Queue};
};

/// Points in the work of streams: where it was recorded, each time with another number.
class Event : public std::enable_shared_from_this<Event> {
 public:
  using Number = unsigned long long;
  using Time = std::chrono::steady_clock::time_point;

  /// Under the lock, so that nobody hears of the number who might queue his wait for it before it.
  void record(Stream& stream) {
    const std::lock_guard lock(mutex_);
    stream.push([self = shared_from_this(), number = recorded_ + 1] { self->reach(number); });
    ++recorded_;
  }
  void wait(Number number) {
    std::unique_lock lock(mutex_);
    passed_.wait(lock, [&] { return reached_ >= number; });
  }
  Number recorded() const {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  bool complete() const {
    const std::lock_guard lock(mutex_);
    return reached_ >= recorded_;
  }
  /// Of the latest record, once it is reached.
  std::optional<Time> time() const {
    const std::lock_guard lock(mutex_);
    return recorded_ > 0 && reached_ >= recorded_ ? std::optional(time_) : std::nullopt;
  }

 private:
  void reach(Number number) {
    {
      const std::lock_guard lock(mutex_);
      if (number < reached_) return;
      reached_ = number;
      time_ = std::chrono::steady_clock::now();
    }
    passed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable passed_;
  Number recorded_ = 0, reached_ = 0;
  Time time_;
};

}  // namespace convbwd::cann

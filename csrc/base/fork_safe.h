// Layer base: a lock that a forked child finds free.
#pragma once

#include <pthread.h>

#include <mutex>

namespace convbwd {

/// Guards all tables of a C interface, for short: it is held while the process forks, so that no other thread is in the
/// middle of one. Nothing that may take it again is called under it.
inline std::mutex& tables_mutex() {
  static std::mutex& mutex = *[] {
    pthread_atfork([] { tables_mutex().lock(); }, [] { tables_mutex().unlock(); }, [] { tables_mutex().unlock(); });
    return new std::mutex;  // outlives threads that run on at exit
  }();
  return mutex;
}

}  // namespace convbwd

// Layer base: a lock that a forked child finds free.
#pragma once

#include <pthread.h>

#include <mutex>

namespace convbwd {

/// Guards all tables of a C interface, for short: it is held while the process forks, so that no other thread is in the
/// middle of one. Nothing that may take it again is called under it. It is there before main and outlives threads that
/// run on at exit, as the tables are and do.
inline std::mutex& g_tables_mutex = *[] {
  pthread_atfork([] { g_tables_mutex.lock(); }, [] { g_tables_mutex.unlock(); }, [] { g_tables_mutex.unlock(); });
  return new std::mutex;
}();

}  // namespace convbwd

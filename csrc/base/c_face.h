// Layer base: how the functions of a C interface fail. Nothing leaves them as an exception.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <string>

#include "convbwd/types.hpp"

namespace convbwd {

/// Why a call is refused.
struct Refusal {
  int code;
  std::string message;
};

template <class... Parts>
[[noreturn]] void refuse(int code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Refusal{code, text.str()};
}

/// Why the latest call of this thread failed. Calls may come from destructors of static objects, when those of a thread
/// are gone: so it is plain memory, and long texts are cut.
class RecentMessage {
 public:
  /// An empty function: the text says itself whose it is.
  static void set(const char* function, const char* text) noexcept {
    std::snprintf(t_recent, kBytes, "%s%s%s", function, *function == '\0' ? "" : ": ", text);
  }
  /// And forgets it. Valid until this thread's next call.
  static const char* take() noexcept {
    std::memcpy(t_taken, t_recent, kBytes);
    t_recent[0] = '\0';
    return t_taken;
  }

 private:
  static constexpr std::size_t kBytes = 1024;
  static inline thread_local char t_recent[kBytes], t_taken[kBytes];
};

/// What the codes of an interface are for the errors of the library.
struct Codes {
  int value, type, memory, internal;
  int of(ErrorKind kind) const {
    switch (kind) {
      case ErrorKind::value:
        return value;
      case ErrorKind::type:
        return type;
      case ErrorKind::memory:
        return memory;
      default:
        return internal;
    }
  }
};

/// Calls f() and returns 0, or the code of what it threw.
template <class F>
int guarded(const char* function, const Codes& codes, F&& f) noexcept {
  try {
    f();
    return 0;
  } catch (const Refusal& refusal) {
    RecentMessage::set(function, refusal.message.c_str());
    return refusal.code;
  } catch (const Error& error) {  // its text begins with the function that the request names
    RecentMessage::set("", error.what());
    return codes.of(error.kind());
  } catch (const std::bad_alloc&) {
    RecentMessage::set(function, "out of memory");
    return codes.memory;
  } catch (const std::exception& error) {
    RecentMessage::set(function, error.what());
    return codes.internal;
  }
}

}  // namespace convbwd

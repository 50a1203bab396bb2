// The instruction sets that this build has kernels for, as parameters of tests.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/list.h"

namespace convbwd {
inline void PrintTo(Isa isa, std::ostream* out) { *out << name_of(isa); }
}  // namespace convbwd

namespace convbwd::test {

inline std::vector<Isa> compiled_isas() {
  std::vector<Isa> list;
#define CONVBWD_PUSH(name) list.push_back(Isa::name);
  CONVBWD_ISA_LIST(CONVBWD_PUSH)
#undef CONVBWD_PUSH
  return list;
}

/// Those of them that this machine has.
inline std::vector<Isa> supported_isas() {
  std::vector<Isa> list = compiled_isas();
  std::erase_if(list, [](Isa isa) { return !supported(isa); });
  return list;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/// Code takes about ten times as long.
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// The same; under a sanitizer one of them, in turns.
inline std::vector<Isa> isas_of_turn(std::size_t turn) {
  const std::vector<Isa> list = supported_isas();
  return kSanitized ? std::vector{list[turn % list.size()]} : list;
}

/// Those of this machine that have a matrix unit: none on many.
inline std::vector<Isa> matrix_isas() {
  std::vector<Isa> list;
  for (const Isa isa : kIsas)
    if (supported(isa) && matrix_kernels(isa)) list.push_back(isa);
  return list;
}

/// Makes an instruction set the active one for the duration of a test.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa) { set_isa(isa); }
  ~ScopedIsa() { set_isa(std::nullopt); }
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;
};

}  // namespace convbwd::test

#include "base/cpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "convbwd/types.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace convbwd {
namespace {

class CpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("CONVBWD_ISA")) saved_ = value;
  }
  void TearDown() override {
    saved_.empty() ? unsetenv("CONVBWD_ISA") : setenv("CONVBWD_ISA", saved_.c_str(), 1);
    set_isa(std::nullopt);
  }

 private:
  std::string saved_;
};

// Dot products of bfloat16 alone are worth it on AMD's processors.
Isa best() {
#ifdef __x86_64__
  const bool quick = __builtin_cpu_is("amd");
#else
  const bool quick = false;
#endif
  Isa isa = Isa::generic;
  for (const Isa candidate : kIsas) {
    if (supported(candidate) && (candidate != Isa::avx512_bf16 || quick)) isa = candidate;
  }
  return isa;
}

TEST_F(CpuTest, GenericIsSupportedAndMoreCapableOnesIncludeTheLess) {
  EXPECT_TRUE(supported(Isa::generic));
  EXPECT_TRUE(!supported(Isa::avx512) || supported(Isa::avx2));
  EXPECT_TRUE(!supported(Isa::avx512_bf16) || supported(Isa::avx512));
  EXPECT_TRUE(!supported(Isa::amx) || supported(Isa::avx512_bf16));
}

#ifdef __x86_64__
TEST_F(CpuTest, AgreesWithTheCompilersOwnDetection) {
  EXPECT_EQ(supported(Isa::avx2), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(supported(Isa::avx512), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
  EXPECT_EQ(supported(Isa::avx512_bf16), supported(Isa::avx512) && __builtin_cpu_supports("avx512bf16"));
}
#endif

#if defined(__x86_64__) && defined(__linux__)
// What the kernel lists for the processor, and whether it lets this process have the tile registers (as
// ARCH_GET_XCOMP_PERM tells).
TEST_F(CpuTest, AgreesWithTheOperatingSystemOnTiles) {
  const bool ours = supported(Isa::amx);  // asks for the registers
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line) && line.rfind("flags", 0) != 0) continue;
  const auto listed = [&](const char* flag) { return (line + ' ').find(std::string(" ") + flag + ' ') != line.npos; };
  std::uint64_t permitted = 0;
  const bool told = syscall(SYS_arch_prctl, 0x1022, &permitted) == 0;
  EXPECT_EQ(ours, listed("avx512vl") && listed("avx512_bf16") && listed("amx_tile") && listed("amx_bf16") && told &&
                      (permitted >> 18 & 1) == 1);
}
#endif

TEST_F(CpuTest, DefaultIsTheMostCapable) {
  for (const char* unset : {"", static_cast<const char*>(nullptr)}) {
    unset ? setenv("CONVBWD_ISA", unset, 1) : unsetenv("CONVBWD_ISA");
    set_isa(std::nullopt);
    EXPECT_EQ(active_isa(), best());
  }
}

TEST_F(CpuTest, EnvironmentAndSetterOverride) {
  for (const Isa isa : kIsas) {
    if (!supported(isa)) continue;
    setenv("CONVBWD_ISA", name_of(isa), 1);
    set_isa(std::nullopt);
    EXPECT_EQ(active_isa(), isa);
    set_isa(Isa::generic);
    EXPECT_EQ(active_isa(), Isa::generic);
  }
}

TEST_F(CpuTest, UnknownNameThrowsAndNamesTheChoices) {
  setenv("CONVBWD_ISA", "sse9", 1);
  set_isa(std::nullopt);
  for (int call = 0; call < 2; ++call) {
    try {
      active_isa();
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::value);
      const std::string message = error.what();
      EXPECT_EQ(message.find("CONVBWD_ISA must name an instruction set of this machine (generic"), 0u) << message;
      EXPECT_NE(message.find("), got 'sse9'"), std::string::npos) << message;
    }
  }
}

TEST_F(CpuTest, UnsupportedOneThrows) {
  for (const Isa isa : kIsas) {
    if (supported(isa)) continue;
    EXPECT_THROW(set_isa(isa), Error);
    setenv("CONVBWD_ISA", name_of(isa), 1);
    set_isa(std::nullopt);
    EXPECT_THROW(active_isa(), Error);
  }
}

}  // namespace
}  // namespace convbwd

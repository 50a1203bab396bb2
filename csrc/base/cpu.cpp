#include "base/cpu.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "convbwd/types.hpp"

#ifdef __x86_64__
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace convbwd {
namespace {

constexpr int kUnset = -1;
std::atomic<int> g_isa{kUnset};  // relaxed everywhere: the value stands for itself, no other memory hangs on it

[[noreturn]] void reject_isa(const std::string& who, const std::string& got) {
  std::string choices;
  for (const Isa isa : kIsas) {
    if (supported(isa)) choices += (choices.empty() ? "" : ", ") + std::string(name_of(isa));
  }
  throw Error(ErrorKind::value,
              who + " must name an instruction set of this machine (" + choices + "), got '" + got + "'");
}

#ifdef __x86_64__

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;  // stay zero where the processor does not know the leaf
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

// Linux gives the tile registers to processes that ask (ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA).
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

Isa best_of_processor() {
  const Registers basic = cpuid(1, 0), extended = cpuid(7, 0);
  const auto has = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
  if (!has(basic.c, bit_OSXSAVE)) return Isa::generic;
  unsigned saved, high;  // XCR0: the register files that the operating system saves when it switches threads
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  constexpr unsigned kYmm = 0x06, kZmm = 0xe6;
  if (!has(saved, kYmm) || !has(basic.c, bit_AVX | bit_FMA | bit_F16C) || !has(extended.b, bit_AVX2))
    return Isa::generic;
  constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  if (!has(saved, kZmm) || !has(extended.b, kAvx512)) return Isa::avx2;
  constexpr unsigned kTiles = 0x60000, kAmx = 1u << 24 | 1u << 22;  // XCR0; leaf 7: AMX-TILE, AMX-BF16
  const bool bfloat16 = has(cpuid(7, 1).a, 1u << 5);
  if (!bfloat16) return Isa::avx512;
  return has(saved, kTiles) && has(extended.d, kAmx) && may_use_tiles() ? Isa::amx : Isa::avx512_bf16;
}

bool made_by_amd() { return cpuid(0, 0).b == signature_AMD_ebx; }
bool is_zen_4() {
  constexpr unsigned kFamily = 0x19;  // Zen 3's, too, which has no such vectors
  const unsigned a = cpuid(1, 0).a;
  return made_by_amd() && (a >> 8 & 0xf) + (a >> 20 & 0xff) == kFamily;
}

#else

Isa best_of_processor() { return Isa::generic; }
bool made_by_amd() { return false; }
bool is_zen_4() { return false; }

#endif

// Whether dot products of bfloat16 take less time than multiply-adds of floats: they have twice the speed on Zen 4,
// half of it on a Sapphire Rapids (0.53 ns a vector of pairs, 0.13 a vector of floats).
bool quick_dots() { return made_by_amd(); }

Isa default_isa() {
  const char* wanted = std::getenv("CONVBWD_ISA");
  const bool chosen = wanted != nullptr && *wanted != '\0';
  Isa best = Isa::generic;
  for (const Isa isa : kIsas) {
    if (!supported(isa)) continue;
    if (chosen && name_of(isa) == std::string(wanted)) return isa;
    if (isa != Isa::avx512_bf16 || quick_dots()) best = isa;
  }
  if (chosen) reject_isa("CONVBWD_ISA", wanted);
  return best;
}

}  // namespace

const char* name_of(Isa isa) noexcept {
  constexpr const char* names[] = {"generic", "avx2", "avx512", "avx512_bf16", "amx"};
  return names[static_cast<int>(isa)];
}

bool supported(Isa isa) noexcept {
  static const Isa best = best_of_processor();
  return isa <= best;
}

Isa active_isa() {
  int isa = g_isa.load(std::memory_order_relaxed);
  if (isa == kUnset) {
    isa = static_cast<int>(default_isa());
    g_isa.store(isa, std::memory_order_relaxed);
  }
  return static_cast<Isa>(isa);
}

void set_isa(std::optional<Isa> isa) {
  if (isa && !supported(*isa)) reject_isa("set_isa: isa", name_of(*isa));
  g_isa.store(isa ? static_cast<int>(*isa) : kUnset, std::memory_order_relaxed);
}

bool adds_beside_products() noexcept {
  static const bool beside = made_by_amd();
  return beside;
}

bool halves_vectors() noexcept {
  static const bool halves = is_zen_4();
  return halves;
}

}  // namespace convbwd

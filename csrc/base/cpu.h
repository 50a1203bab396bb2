// Layer base: what the processor can do. Every choice by instruction set in the library comes from active_isa().
#pragma once

#include <cstdint>
#include <optional>

#include "convbwd/types.hpp"

namespace convbwd {

/// Instruction sets that kernels are compiled for, from the least to the most capable.
/// avx2 means AVX2, FMA and F16C; avx512 means these and AVX-512 F, BW, DQ and VL; avx512_bf16 means these and
/// AVX512-BF16; amx means these and the tiles of AMX for bfloat16.
enum class Isa : std::uint8_t { generic, avx2, avx512, avx512_bf16, amx };
inline constexpr Isa kIsas[] = {Isa::generic, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

const char* name_of(Isa isa) noexcept;

/// Whether the processor and the operating system both offer it.
bool supported(Isa isa) noexcept;

/// The most capable supported one, unless the environment variable CONVBWD_ISA or set_isa() names another. avx512_bf16
/// is passed over where its dot products are slow (cpu.cpp).
/// Throws Error(value) where CONVBWD_ISA names none that is supported.
CONVBWD_API Isa active_isa();

/// Whether the processor adds on other units than it multiplies, as AMD's do: beside products, additions cost half of
/// what they do on Intel's.
bool adds_beside_products() noexcept;

/// Whether the processor takes vectors of 512 bits in two halves, as Zen 4 does: the sums of a few of them are there in
/// time for the next products.
bool halves_vectors() noexcept;

/// Overrides the choice (for tests), or with nullopt goes back to the default. Throws Error(value) where not supported.
void set_isa(std::optional<Isa> isa);

}  // namespace convbwd

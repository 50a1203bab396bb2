#include "base/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>

#include "convbwd/types.hpp"

namespace convbwd {
namespace {

TEST(Arena, IsAlignedAndWritableThroughout) {
  for (const std::size_t bytes : {0u, 1u, 63u, 64u, 65u, 100'000u, 3u << 20, 5u << 20}) {
    Arena arena(bytes);
    EXPECT_EQ(arena.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.data()) % Arena::kAlignment, 0u);
    std::memset(arena.data(), 1, bytes);
  }
}

TEST(Arena, ReusesTheLastBlockOfTheThread) {
  const std::byte* first = nullptr;
  {
    Arena arena(200'000);
    first = arena.data();
  }
  Arena smaller(100'000);
  EXPECT_EQ(smaller.data(), first);
  std::thread([first] {
    Arena arena(100'000);
    EXPECT_NE(arena.data(), first);
  }).join();
}

TEST(Arena, NestedOnesAreDisjoint) {
  Arena outer(1000);
  std::memset(outer.data(), 1, outer.size());
  for (int round = 0; round < 3; ++round) {
    Arena inner(1000);
    std::memset(inner.data(), 2, inner.size());
  }
  EXPECT_TRUE(std::all_of(outer.data(), outer.data() + outer.size(), [](std::byte b) { return b == std::byte{1}; }));
}

TEST(Arena, FailureIsAMemoryError) {
  for (const std::size_t bytes :
       {std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::size_t>::max() / 2}) {
    try {
      Arena arena(bytes);
      FAIL() << "allocated " << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::memory);
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes) + " bytes"), std::string::npos) << error.what();
    }
  }
  Arena after(1000);
  std::memset(after.data(), 1, after.size());
}

#ifndef NDEBUG
TEST(Arena, PoisonsItsMemory) {
  Arena arena(1000);
  EXPECT_TRUE(std::all_of(arena.data(), arena.data() + arena.size(), [](std::byte b) { return b == std::byte{0xFF}; }));
}

TEST(ArenaDeathTest, NoticesWritesBehindTheEnd) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        Arena arena(1000);
        arena.data()[1000] = std::byte{0};
      },
      "wrote behind the end of a workspace of 1000 bytes");
}
#endif

}  // namespace
}  // namespace convbwd

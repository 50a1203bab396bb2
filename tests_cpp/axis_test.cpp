#include "engine/axis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <ostream>
#include <utility>
#include <vector>

namespace convbwd {

static std::ostream& operator<<(std::ostream& out, const AxisSizes& a) {
  return out << "x" << a.x << " y" << a.y << " k" << a.kernel << " s" << a.stride << " d" << a.dilation << " p"
             << a.pad;
}

namespace {

using Reads = std::vector<std::vector<std::pair<Index, Index>>>;  // for each destination: (tap, source), sorted

// Small axes with every number of outputs that their sizes allow, among them taps that meet padding only.
template <class F>
void for_each_axis(F&& f) {
  for (Index x = 1; x <= 7; ++x)
    for (Index kernel = 1; kernel <= 4; ++kernel)
      for (Index stride = 1; stride <= 5; ++stride)
        for (Index dilation = 1; dilation <= 3; ++dilation)
          for (Index pad = 0; pad <= 4; ++pad)
            for (Index after = 0; after <= 5; after += 1 + pad % 2) {
              const Index room = x + pad + after - (kernel - 1) * dilation - 1;
              if (room >= 0) f(AxisSizes{x, room / stride + 1, kernel, stride, dilation, pad});
            }
}

// What a map says, and that it is well formed. Only that of patches has positions outside the destination.
Reads reads_of(const AxisMap& map, bool patches = false) {
  Reads reads(static_cast<std::size_t>(map.dst));
  std::vector<int> written(reads.size());
  for (const Phase& phase : map.phases) {
    for (Index q = 0; q < phase.count; ++q)
      EXPECT_TRUE(std::any_of(phase.members.begin(), phase.members.end(),
                              [&](const Phase::Member& m) { return map.holds(m.first + q * map.dst_step); }));
    Index end = 0;
    for (const Phase::Run& run : phase.runs) {
      EXPECT_EQ(run.begin, end);
      EXPECT_LT(run.begin, run.end);
      end = run.end;
    }
    EXPECT_EQ(end, phase.count);
    for (const Phase::Member& member : phase.members) {
      EXPECT_EQ(member.tap.size(), phase.offset.size());
      for (const Phase::Run& run : phase.runs)
        for (Index q = run.begin; q < run.end; ++q) {
          const auto at = static_cast<std::size_t>(member.first + q * map.dst_step);
          EXPECT_EQ(map.holds(member.first + q * map.dst_step), at < reads.size());
          if (at >= reads.size()) {
            EXPECT_TRUE(patches) << "destination " << at << " of " << reads.size();
            continue;
          }
          ++written[at];
          for (auto i = static_cast<std::size_t>(run.inside.begin); i < static_cast<std::size_t>(run.inside.end); ++i)
            reads[at].emplace_back(member.tap[i], q * map.src_step + phase.offset[i]);
          std::sort(reads[at].begin(), reads[at].end());
        }
    }
  }
  EXPECT_TRUE(std::all_of(written.begin(), written.end(), [](int times) { return times == 1; }));
  return reads;
}

TEST(Axis, ForwardMapsReadWhatTheDefinitionSays) {
  for_each_axis([](const AxisSizes& a) {
    Reads expected(static_cast<std::size_t>(a.y));
    for (Index o = 0; o < a.y; ++o)
      for (Index t = 0; t < a.kernel; ++t) {
        const Index i = o * a.stride + t * a.dilation - a.pad;
        if (i >= 0 && i < a.x) expected[static_cast<std::size_t>(o)].emplace_back(t, i);
      }
    const AxisMap map = map_forward(a);
    ASSERT_EQ(map.dst, a.y) << a;
    ASSERT_EQ(map.src, a.x) << a;
    ASSERT_EQ(reads_of(map), expected) << a;
  });
}

TEST(Axis, TransposedMapsReadWhatTheDefinitionSays) {
  for_each_axis([](const AxisSizes& a) {
    Reads expected(static_cast<std::size_t>(a.x));
    for (Index t = 0; t < a.kernel; ++t)
      for (Index o = 0; o < a.y; ++o) {
        const Index i = o * a.stride + t * a.dilation - a.pad;
        if (i >= 0 && i < a.x) expected[static_cast<std::size_t>(i)].emplace_back(t, o);
      }
    for (const auto make : {map_transposed, map_apart, map_patches}) {
      const AxisMap map = make(a);
      ASSERT_EQ(map.dst, a.x) << a;
      ASSERT_EQ(map.src, a.y) << a;
      ASSERT_EQ(reads_of(map, make == map_patches), expected) << a;
      for (const Phase& phase : map.phases)
        ASSERT_TRUE(make != map_apart || a.y == 1 || phase.offset.empty() || phase.members.size() == 1) << a;
    }
  });
}

TEST(Axis, RunsByTapsReadTheSame) {
  for_each_axis([](const AxisSizes& a) {
    for (const AxisMap& map : {map_forward(a), map_apart(a), map_patches(a)}) {
      AxisMap by_taps = map;
      run_by_taps(by_taps);
      for (std::size_t f = 0; f < map.phases.size(); ++f) {
        const auto reads = [](const Phase& phase) {
          std::vector<std::pair<Index, Index>> pixels;  // and the offset that each reads
          for (const Phase::Run& run : phase.runs)
            for (Index q = run.begin; q < run.end; ++q)
              for (Index t = run.inside.begin; t < run.inside.end; ++t) pixels.emplace_back(q, t);
          std::sort(pixels.begin(), pixels.end());
          return pixels;
        };
        ASSERT_EQ(reads(by_taps.phases[f]), reads(map.phases[f])) << a;
        for (const Phase::Run& run : by_taps.phases[f].runs) ASSERT_EQ(run.inside.size(), 1) << a;
      }
    }
  });
}

TEST(Axis, PixelsSpanThePositionsOfTheirMembers) {
  for_each_axis([](const AxisSizes& a) {
    for (const AxisMap& map : {map_forward(a), map_transposed(a), map_patches(a)}) {
      Index pixels = 0;
      for (const Phase& phase : map.phases) pixels = std::max(pixels, phase.count);
      for (Index cut = 0; cut <= pixels; ++cut) {
        const Range before = map.positions(0, cut), after = map.positions(cut, pixels);
        ASSERT_TRUE(cut == 0 || before.begin == 0) << a;
        ASSERT_TRUE(cut == pixels || after.end == map.dst) << a;
        ASSERT_TRUE(cut == 0 || cut == pixels || before.end == after.begin) << a;
      }
    }
  });
}

TEST(Axis, ValidOutputsAreThoseThatReadTheImage) {
  for_each_axis([](const AxisSizes& a) {
    for (Index t = 0; t < a.kernel; ++t) {
      const Range valid = valid_outputs(a, t);
      ASSERT_TRUE(0 <= valid.begin && valid.begin <= valid.end && valid.end <= a.y) << a;
      for (Index o = 0; o < a.y; ++o) {
        const Index i = o * a.stride + t * a.dilation - a.pad;
        ASSERT_EQ(o >= valid.begin && o < valid.end, i >= 0 && i < a.x) << a << " tap " << t << " output " << o;
      }
    }
  });
}

TEST(Axis, PatchesAreOnePhase) {
  const AxisMap map = map_transposed({32, 4, 8, 8, 1, 0});
  ASSERT_EQ(map.phases.size(), 1u);
  EXPECT_EQ(map.phases[0].members.size(), 8u);
  const AxisMap padded = map_patches({32, 5, 8, 8, 1, 3});
  ASSERT_EQ(padded.phases.size(), 1u);
  EXPECT_EQ(padded.origin, -3);
  EXPECT_EQ(padded.phases[0].members.size(), 8u);
  EXPECT_EQ(padded.phases[0].count, 5);
}

TEST(Axis, SingleWindowsAreFewPhases) {
  const AxisMap map = map_transposed({9, 1, 7, 1, 1, 0});
  ASSERT_EQ(map.phases.size(), 2u);  // positions under the kernel, and the two behind it
  EXPECT_EQ(map.phases[0].members.size(), 7u);
  EXPECT_TRUE(map.phases[1].offset.empty());
}

// Neither time nor memory is that of the taps squared.
TEST(Axis, LongWindows) {
  constexpr Index kLong = 1 << 20;
  const AxisMap single = map_transposed({kLong, 1, kLong, 1, 1, 0});
  ASSERT_EQ(single.phases.size(), 1u);
  EXPECT_EQ(single.phases[0].members.size(), std::size_t{kLong});
  EXPECT_EQ(single.phases[0].members[7].tap, std::vector<Index>{7});
  const AxisMap padded = map_forward({kLong, 2 * kLong - 1, kLong, 1, 1, kLong - 1});
  ASSERT_EQ(padded.phases[0].runs.size(), std::size_t{2 * kLong - 1});
  EXPECT_EQ(padded.phases[0].runs[1].inside, (Range{kLong - 2, kLong}));
}

// The dilation of a single tap is any number, for it moves nothing.
TEST(Axis, HugeDilationOfASingleTap) {
  for (const Index x : {1, 3}) {
    const AxisMap map = map_transposed({x, x, 1, 1, std::numeric_limits<Index>::max(), 0});
    Reads expected;
    for (Index i = 0; i < x; ++i) expected.push_back({{0, i}});
    EXPECT_EQ(reads_of(map), expected);
  }
}

TEST(Axis, DivisionsRoundDownAndUp) {
  for (Index a = -9; a <= 9; ++a)
    for (Index b = 1; b <= 4; ++b) {
      EXPECT_LE(floor_div(a, b) * b, a);
      EXPECT_GT((floor_div(a, b) + 1) * b, a);
      EXPECT_GE(ceil_div(a, b) * b, a);
      EXPECT_LT((ceil_div(a, b) - 1) * b, a);
    }
  constexpr Index kMost = std::numeric_limits<Index>::max();
  for (const Index a : {kMost, kMost - 1, Index{1}}) {
    EXPECT_EQ(floor_div(a, kMost), a / kMost);
    EXPECT_EQ(ceil_div(a, kMost), 1);
    EXPECT_EQ(floor_div(-a, kMost), -1);
    EXPECT_EQ(ceil_div(-a, kMost), -(a / kMost));
  }
}

}  // namespace
}  // namespace convbwd

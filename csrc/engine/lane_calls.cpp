#include "engine/lane_calls.h"

#include <utility>

namespace convbwd {

bool LaneCalls::make(const std::array<AxisMap, 3>& maps, const LanePlanes& weights, bool bordered) {
  constexpr std::size_t kMostListed = 1 << 17;  // taps of all calls, 2 MiB of a plan: 31x31 on 56x56 are 23,000
  const auto& [md, mh, mw] = maps;
  std::size_t listed = 0;
  const auto has = [](const Phase::Run& run, std::size_t i) {
    return static_cast<Index>(i) >= run.inside.begin && static_cast<Index>(i) < run.inside.end;
  };
  const auto at = [](const Index3& i, const Index3& apart) {
    return i[0] * apart[0] + i[1] * apart[1] + i[2] * apart[2];
  };
  for (const PhaseSet& s : phase_sets(maps)) {
    const auto& [fd, fh, fw] = s.phase;
    const Stack stack = stack_of(s, 1, mh.src_step);
    std::vector<Index> sum_of;  // each tap, the straight sum that it belongs to
    each_straight_sum(s, stack, 1, [&](Index first, Index columns, Index height) {
      sum_of.resize(static_cast<std::size_t>(first + columns * height), first);
    });
    const std::vector<Phase::Run> whole{{0, fw->count, {0, static_cast<Index>(fw->offset.size())}}};
    for (const auto& ed : fd->members)
      for (const auto& eh : fh->members)
        for (const auto& ew : fw->members)
          for (const Phase::Run& rd : fd->runs)
            for (const Phase::Run& rh : fh->runs)
              for (const Phase::Run& rw : bordered ? whole : fw->runs) {
                listed += static_cast<std::size_t>(rd.inside.size() * rh.inside.size() * rw.inside.size());
                if (listed > kMostListed) return false;
                const Index3 from{rd.begin * md.src_step, rh.begin * mh.src_step, rw.begin * mw.src_step};
                const Index3 to{ed.first + rd.begin * md.dst_step, eh.first + rh.begin * mh.dst_step,
                                ew.first + rw.begin * mw.dst_step};
                Call call{{rd.end - rd.begin, rh.end - rh.begin, rw.end - rw.begin},
                          at(from, source),
                          at(to, results),
                          true,
                          false,
                          {}};
                Index sum = 0;
                auto next = sum_of.begin();
                each_tap(s, stack, [&](std::size_t td, std::size_t th, std::size_t tw) {
                  const Index now = *next++;
                  if (!has(rd, td) || !has(rh, th) || !has(rw, tw)) return;
                  if (now != sum && !call.taps.empty()) {
                    list.push_back(call);
                    call.first = false;
                    call.taps.clear();
                  }
                  sum = now;
                  const Index3 offset{fd->offset[td], fh->offset[th], fw->offset[tw]};
                  call.taps.push_back({static_cast<std::ptrdiff_t>(at(offset, source)),
                                       static_cast<std::ptrdiff_t>(weights.at({ed.tap[td], eh.tap[th], ew.tap[tw]}))});
                });
                call.last = true;
                list.push_back(std::move(call));
              }
  }
  return true;
}

}  // namespace convbwd

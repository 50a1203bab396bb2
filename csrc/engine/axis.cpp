#include "engine/axis.h"

#include <algorithm>

namespace convbwd {
namespace {

// Pixels for which an offset lies inside the source.
Range pixels_inside(const AxisMap& map, const Phase& phase, Index offset) {
  return {std::clamp<Index>(ceil_div(-offset, map.src_step), 0, phase.count),
          std::clamp<Index>(ceil_div(map.src - offset, map.src_step), 0, phase.count)};
}

// Cuts [0, count) wherever an offset enters or leaves the source. Offsets grow, so these pixels fall.
void find_runs(const AxisMap& map, Phase& phase) {
  const std::size_t taps = phase.offset.size();
  std::vector<Index> bounds(2 * taps + 2), cuts(bounds.size());  // first where they enter, from 0 on
  for (std::size_t i = 0; i < taps; ++i) {
    const Range pixels = pixels_inside(map, phase, phase.offset[taps - 1 - i]);
    bounds[i + 1] = pixels.begin;
    bounds[taps + 1 + i] = pixels.end;
  }
  bounds.back() = phase.count;
  const auto leave = bounds.begin() + static_cast<std::ptrdiff_t>(taps + 1);
  std::merge(bounds.begin(), leave, leave, bounds.end(), cuts.begin());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  Range inside{static_cast<Index>(taps), static_cast<Index>(taps)};
  const auto back_to = [&](Index& first, Index least) {  // the first offset that is at least that
    while (first > 0 && phase.offset[static_cast<std::size_t>(first - 1)] >= least) --first;
  };
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Index at = cuts[i] * map.src_step;
    back_to(inside.begin, -at);
    back_to(inside.end, map.src - at);
    const Range read = inside.size() > 0 ? inside : Range{0, 0};
    if (!phase.runs.empty() && phase.runs.back().inside == read)
      phase.runs.back().end = cuts[i + 1];
    else
      phase.runs.push_back({cuts[i], cuts[i + 1], read});
  }
}

// With `apart`, phases with taps that share what they read do not become members of one.
AxisMap map_phases(const AxisSizes& a, bool apart) {
  // A single window has no stride: with one longer than the kernel every position is a phase of its own with at most
  // one tap, and all of them are members of one or two sets (kernels as large as the image).
  const Index stride = a.y == 1 ? std::max(a.x + a.pad, (a.kernel - 1) * a.dilation + 1) : a.stride;
  AxisMap map{a.x, a.y, stride, 1, {}};
  struct Tap {
    Index first, tap;  // the phase that reads through it, by its first position
  };
  std::vector<Tap> taps;
  const Index begin = std::max<Index>(0, ceil_div(a.pad - (a.y - 1) * stride, a.dilation));
  for (Index t = std::min(a.kernel, floor_div(a.x - 1 + a.pad, a.dilation) + 1); t-- > begin;) {  // offsets grow
    const Index at = t * a.dilation - a.pad, first = at - floor_div(at, stride) * stride;
    if (first < a.x) taps.push_back({first, t});
  }
  if (stride > 1)
    std::sort(taps.begin(), taps.end(),
              [](const Tap& s, const Tap& t) { return s.first != t.first ? s.first < t.first : s.tap > t.tap; });
  auto next = taps.begin();
  for (Index first = 0; first < std::min(stride, a.x); ++first) {
    Phase phase{ceil_div(a.x - first, stride), {}, {{first, {}}}, {}};
    for (; next != taps.end() && next->first == first; ++next) {
      const Index o = (first + a.pad - next->tap * a.dilation) / stride;
      if (o + phase.count <= 0 || o >= a.y) continue;  // in the padding for every position
      phase.offset.push_back(o);
      phase.members[0].tap.push_back(next->tap);
    }
    const bool alone = apart && a.y > 1 && !phase.offset.empty();
    const auto twin = std::find_if(map.phases.begin(), map.phases.end(), [&](const Phase& p) {
      return !alone && p.count == phase.count && p.offset == phase.offset;
    });
    if (twin != map.phases.end())
      twin->members.push_back(std::move(phase.members[0]));
    else
      map.phases.push_back(std::move(phase));
  }
  for (Phase& phase : map.phases) find_runs(map, phase);
  return map;
}

}  // namespace

AxisMap map_forward(const AxisSizes& a) {
  AxisMap map{a.y, a.x, 1, a.stride, {}};
  Phase phase{a.y, {}, {{0, {}}}, {}};
  for (Index t = 0; t < a.kernel; ++t) {
    phase.offset.push_back(t * a.dilation - a.pad);
    phase.members[0].tap.push_back(t);
  }
  find_runs(map, phase);
  map.phases.push_back(std::move(phase));
  return map;
}

AxisMap map_transposed(const AxisSizes& a) { return map_phases(a, false); }
AxisMap map_apart(const AxisSizes& a) { return map_phases(a, true); }

AxisMap map_patches(const AxisSizes& a) {
  if (a.stride == 1 || a.kernel != a.stride || a.dilation != 1 || a.y == 1) return map_transposed(a);
  AxisMap map{a.x, a.y, a.stride, 1, {}, -(a.pad % a.stride)};
  Phase phase{ceil_div(a.x - map.origin, a.stride), {a.pad / a.stride}, {}, {}};
  if (phase.count * a.stride > 2 * a.x) return map_transposed(a);  // most of it would be computed in vain
  for (Index t = 0; t < a.kernel; ++t) phase.members.push_back({map.origin + t, {t}});
  find_runs(map, phase);
  map.phases.push_back(std::move(phase));
  return map;
}

void run_by_taps(AxisMap& map) {
  for (Phase& phase : map.phases) {
    phase.runs.clear();
    for (std::size_t t = 0; t < phase.offset.size(); ++t) {
      const Range pixels = pixels_inside(map, phase, phase.offset[t]);
      const auto tap = static_cast<Index>(t);
      if (pixels.size() > 0) phase.runs.push_back({pixels.begin, pixels.end, {tap, tap + 1}});
    }
  }
}

PhaseSet phase_set(const Phase& d, const Phase& h, const Phase& w) {
  PhaseSet s{{&d, &h, &w}, 1, 1};
  for (const Phase* f : s.phase) {
    s.taps *= static_cast<Index>(f->offset.size());
    s.members *= static_cast<Index>(f->members.size());
  }
  return s;
}

std::vector<PhaseSet> phase_sets(const std::array<AxisMap, 3>& maps) {
  std::vector<PhaseSet> sets;
  for (const Phase& d : maps[0].phases)
    for (const Phase& h : maps[1].phases)
      for (const Phase& w : maps[2].phases) sets.push_back(phase_set(d, h, w));
  return sets;
}

std::vector<Index> uncovered(const AxisMap& map) {
  std::vector<Index> positions;
  for (const Phase& phase : map.phases)
    for (const Phase::Run& run : phase.runs)
      for (const Phase::Member& member : phase.members)
        for (Index q = run.begin; q < run.end && run.inside.size() == 0; ++q)
          if (const Index at = member.first + q * map.dst_step; map.holds(at)) positions.push_back(at);
  return positions;
}

bool plain(const std::array<AxisMap, 3>& maps) {
  bool plain = true;
  for (const AxisMap& map : maps) {
    plain &= map.dst == map.src && map.src_step == 1 && map.phases.size() == 1;
    for (const Phase& f : map.phases) plain &= f.members.size() == 1 && f.offset.size() == 1 && f.offset[0] == 0;
  }
  return plain;
}

Index3 most_pixels(const std::array<AxisMap, 3>& maps) {
  Index3 most{1, 1, 1};
  for (std::size_t a = 0; a < 3; ++a)
    for (const Phase& f : maps[a].phases) most[a] = std::max(most[a], f.count);
  return most;
}

PixelBox pixel_box(Index i, const Index3& count, const Index3& step) {
  PixelBox b;
  for (std::size_t a = 3; a-- > 0;) {
    const Index parts = ceil_div(count[a], step[a]);
    b.q0[a] = i % parts * step[a];
    b.q1[a] = std::min(b.q0[a] + step[a], count[a]);
    i /= parts;
  }
  return b;
}

Index pixel_boxes(const Index3& count, const Index3& step) {
  return ceil_div(count[0], step[0]) * ceil_div(count[1], step[1]) * ceil_div(count[2], step[2]);
}

Range valid_outputs(const AxisSizes& a, Index tap) {
  const Index shift = tap * a.dilation - a.pad;
  const Index begin = std::clamp<Index>(ceil_div(-shift, a.stride), 0, a.y);
  return {begin, std::clamp<Index>(ceil_div(a.x - shift, a.stride), begin, a.y)};
}

Range valid_taps(const AxisSizes& a, Index output) {
  const Index at = output * a.stride - a.pad;  // of the first tap
  const Index begin = std::clamp<Index>(ceil_div(-at, a.dilation), 0, a.kernel);
  return {begin, std::clamp<Index>(ceil_div(a.x - at, a.dilation), begin, a.kernel)};
}

std::vector<Index> idle_taps(const AxisSizes& a) {
  std::vector<Index> taps;
  for (Index t = 0; t < a.kernel; ++t)
    if (valid_outputs(a, t).size() == 0) taps.push_back(t);
  return taps;
}

std::vector<TapClass> tap_classes(const AxisSizes& a) {
  std::vector<TapClass> classes;
  for (Index t = 0; t < a.kernel; ++t) {
    const Range outputs = valid_outputs(a, t);  // which only move down from tap to tap
    if (classes.empty() || classes.back().outputs != outputs) classes.push_back({outputs, {t, t}});
    classes.back().taps.end = t + 1;
  }
  return classes;
}

}  // namespace convbwd

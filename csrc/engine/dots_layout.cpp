#include "engine/dots_layout.h"

#include <algorithm>

#include "engine/pass.h"
#include "engine/weights_out.h"

namespace convbwd {

DotsLayout::DotsLayout(const Problem& p, bool masked, const Index3& box, Index rows, Index columns, bool apart)
    : problem_(p), masked_(masked) {
  if (!masked) {
    x = Planes(axis_maps(p, map_forward), box, Planes::Borders::shared);
    y.assign(1, Planes(p.y, {}, x.extent()));
    list_bordered(rows, columns);
    if (apart) x.add_zeros(lead), y[0].add_zeros(lead);
    return;
  }
  const std::size_t a = p.first_axis();
  const Index beyond = (p.w[a] - 1) * p.dilation[a];
  Index3 extent = box;
  extent[a] += beyond;
  x = Planes(p.x, {}, box);
  for (Index tap = 0; tap < copies(); ++tap) {  // the first so many have one each
    Index3 first = p.pad_before;
    first[a] -= beyond;
    for (std::size_t b = a + 1; b < 3; ++b) first[b] -= tap_at(p, tap)[b] * p.dilation[b];
    y.emplace_back(p.y, first, extent);
  }
  list_masked(rows, columns);
}

// Of y where they are masked: taps that differ along the first axis alone share one.
Index DotsLayout::copies() const { return problem_.taps() / problem_.w[problem_.first_axis()]; }

// In a masked copy, from the pixels that one of these taps reads to those of the one before it.
Index DotsLayout::shift() const {
  const std::size_t a = problem_.first_axis();
  return problem_.dilation[a] * (a == 0 ? x.plane() : a == 1 ? x.row() : 1);
}

// In masked copies, where a tap finds what meets the first pixel of a box.
Index DotsLayout::y_of_tap(Index tap) const {
  const Index last = problem_.w[problem_.first_axis()] - 1;
  return tap % copies() * problem_.co * y_channel() + (last - tap / copies()) * shift();
}

DotsLayout::Place DotsLayout::place(Index tap) const {
  Index3 offset = tap_at(problem_, tap);
  for (std::size_t a = 0; a < 3; ++a) offset[a] = offset[a] * problem_.dilation[a] - problem_.pad_before[a];
  if (masked_) return {0, y_of_tap(tap), offset};
  return {x.offset(offset), 0, {}};
}

void DotsLayout::list_masked(Index rows, Index columns) {
  together = std::min(columns, problem_.ci);
  const Index length = problem_.w[problem_.first_axis()], m = even_part(length, rows);
  for (Index copy = 0; copy < copies(); ++copy)
    for (Index i = 0; i < length; i += m) {
      const Index first = i * copies() + copy;
      calls.push_back({std::min(m, length - i), -shift(), y_of_tap(first), {first}, {0}, copies(), 0});
    }
}

void DotsLayout::list_bordered(Index rows, Index columns) {
  const Problem& p = problem_;
  const Index3 k = p.w;
  const auto offset = [&](Index tap) { return static_cast<std::ptrdiff_t>(place(tap).x); };
  reach = std::max<Index>(0, offset(p.taps() - 1) - offset(0));
  // Taps in a run from `first` on are the columns.
  const auto add = [&](Index m, Index lda, Index row_tap, Index last, Index first, Index count) {
    Call call{m, lda, 0, {}, {}, row_tap, last};
    for (Index tap = first; tap < first + count; ++tap) call.taps.push_back(tap), call.offset.push_back(offset(tap));
    lead = std::max(lead, (m - 1) * -lda);
    calls.push_back(std::move(call));
  };
  const bool single = p.co == 1;
  if (single && k[1] > 1 && p.stride[1] == 1) {  // rows are taps along h
    const Index hs = even_part(k[1], rows), ws = even_part(k[2], columns);
    for (Index d = 0; d < k[0]; ++d)
      for (Index h = 0; h < k[1]; h += hs)
        for (Index w = 0; w < k[2]; w += ws)
          add(std::min(hs, k[1] - h), -p.dilation[1] * x.row(), k[2], 0, (d * k[1] + h) * k[2] + w,
              std::min(ws, k[2] - w));
  } else if (single && k[2] > 2 && p.stride[2] == 1) {  // rows are blocks of taps along w
    const Index most = std::min(rows, std::max<Index>(1, ceil_div(k[2], columns)));
    const Index ws = std::min(columns, ceil_div(k[2], most));
    for (Index row = 0; row < p.taps(); row += k[2])
      for (Index w = 0; w < k[2]; w += most * ws) {
        const Index m = std::min(most, ceil_div(k[2] - w, ws));
        exact &= m * ws <= k[2] - w;
        add(m, -ws * p.dilation[2], ws, row + k[2], row + w, std::min(ws, k[2] - w));
      }
  } else {  // rows are output channels
    together = std::clamp<Index>(columns / p.taps(), 1, p.ci);
    for (Index tap = 0; tap < p.taps(); tap += columns) add(0, 0, 0, 0, tap, std::min(columns, p.taps() - tap));
  }
}

}  // namespace convbwd

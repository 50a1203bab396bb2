// One axis of a window that transforms compute: its parts and the grids of tiles that they read. Integers only.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/axis.h"

namespace convbwd::winograd {

/// How a window lies along an axis: in parts of at most `taps` taps. Parts a whole number of tiles apart read the same
/// transformed tiles, so few grids of tiles serve them all. A stride parts the taps first, by their remainders: those
/// of one read every second position, say, of x. Where x is unknown, they form every second position of it.
struct Axis {
  struct Part {
    Index result;      // the remainder that it forms
    Index grid, move;  // it reads this grid, so many tiles (of one output: positions) away
    Index begin, end;  // of the taps of the transform those that it has,
    Index tap, step;   // which are tap + i*step of the window
  };
  struct Grid {
    Index set, start;  // of positions set, set + in, ...; its tile 0 begins at number `start`
  };
  Index tile, taps;     // of a transform: outputs, taps
  Index real, complex;  // its remainders
  Index window;         // taps of the problem
  Index sets;           // of outputs with tiles of their own, of which each reads one of positions: the dilation
  Index in, out;        // from position to position of a grid, from output to output of a tile
  Index results;        // sets of outputs that are formed from the same tiles
  Index origin = 0;     // position of number 0 of the first set of outputs, if there are others
  Index more = 0;       // tiles beyond those of the outputs
  Index low, reach;     // positions of a grid, from that of an output on, that tiles read: [low, reach)
  std::vector<Part> parts;
  std::vector<Grid> grids;

  Axis(Index tile_, Index taps_, Index real_, Index complex_, const AxisSizes& a, bool to_x)
      : tile(tile_), taps(taps_), real(real_), complex(complex_), window(a.kernel) {
    sets = transforms() ? a.dilation : 1;
    results = to_x ? a.stride : 1, in = sets * (to_x ? 1 : a.stride), out = sets * results;
    const Index apart = a.dilation / sets;  // of taps, in numbers of a grid
    if (sets > 1) origin = to_x ? a.pad - (window - 1) * a.dilation : -a.pad;
    std::vector<Grid> starts;
    for (Index phase = 0; phase < a.stride; ++phase) {
      // Taps first + stride*i read numbers at + i of a set; where x is unknown, at + count - 1 - i.
      const Index from = to_x ? phase + a.pad : phase - a.pad, number = floor_div(from, a.stride);
      const Index rest = from - number * a.stride, first = to_x ? rest : phase, set = to_x ? 0 : rest;
      const Index count = ceil_div(window - first, a.stride);
      const Index at = sets > 1 ? 0 : number - (to_x ? (count - 1) * apart : 0);
      const auto parts_of = [&](Index far) { return ceil_div(std::max<Index>(0, count - taps), far) + 1; };
      const Index step = tile <= taps && parts_of(tile) == parts_of(taps) ? tile : taps, last = parts_of(step) - 1;
      for (Index i = 0; i <= last; ++i) {
        // Where parts overlap the even ones have the taps in common: so odd ones have neither the first tap nor, unless
        // they are the last, the last one.
        const Index begin = i % 2 ? taps - step : 0, whole = i % 2 && i < last ? step : taps;
        const Index tap = to_x ? first + a.stride * (count - 1 - i * step) : first + a.stride * i * step;
        parts.push_back(
            {to_x ? phase : 0, 0, 0, begin, std::min(count - i * step, whole), tap, to_x ? -a.stride : a.stride});
        starts.push_back({set, at + i * step * apart});
      }
    }
    const auto same = [&](const Grid& g, const Grid& h) { return g.set == h.set && (g.start - h.start) % tile == 0; };
    for (const Grid& start : starts) {
      const auto known = std::find_if(grids.begin(), grids.end(), [&](const Grid& g) { return same(g, start); });
      if (known == grids.end())
        grids.push_back(start);
      else
        known->start = std::min(known->start, start.start);
    }
    low = starts[0].start, reach = low;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      while (!same(grids[static_cast<std::size_t>(part.grid)], starts[i])) ++part.grid;
      part.move = (starts[i].start - grids[static_cast<std::size_t>(part.grid)].start) / tile;
      more = std::max(more, part.move);
      low = std::min(low, starts[i].start), reach = std::max(reach, starts[i].start + taps);
    }
  }
  const Part& part(Index i) const { return parts[static_cast<std::size_t>(i)]; }
  Index part_count() const { return static_cast<Index>(parts.size()); }
  Index grid_count() const { return static_cast<Index>(grids.size()); }
  // Positions of a grid that so many tiles side by side read, or outputs that they have; of each set.
  Index numbers(Index tiles, bool source) const { return tile * tiles + (source ? reach - low - 1 : 0); }
  // Tap i of the transform in the window; -1 where a part has none.
  static Index tap(const Part& part, Index i) {
    return i >= part.begin && i < part.end ? part.tap + i * part.step : -1;
  }
  bool transforms() const { return real > 1; }
  Index remainders() const { return real + complex; }
  bool is_complex(Index remainder) const { return remainder + 1 >= real && remainder + 1 < remainders(); }
  // The first remainder of a part is its first tap, the last one its last tap: without those there is no product.
  bool uses(const Part& part, Index remainder) const {
    return (remainder > 0 || part.begin == 0) && (remainder + 1 < remainders() || part.end == taps);
  }
};

}  // namespace convbwd::winograd

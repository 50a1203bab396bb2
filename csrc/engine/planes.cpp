#include "engine/planes.h"

#include <algorithm>
#include <limits>

namespace convbwd {
Planes::Planes(const std::array<AxisMap, 3>& maps, const Index3& box, Borders borders) {
  const Index3 whole = most_pixels(maps);
  Index residues = 1;
  Index3 shared{};
  for (std::size_t a = 0; a < 3; ++a) {
    Axis& axis = axes_[a];
    axis = {maps[a].src, maps[a].src_step, std::numeric_limits<Index>::max(), 0, {}};
    Index last = std::numeric_limits<Index>::min();
    for (const Phase& p : maps[a].phases)
      for (const Index o : p.offset) {
        const Index block = floor_div(o, axis.step);
        axis.first = std::min(axis.first, block);
        last = std::max(last, block);
        axis.residue.push_back(o - block * axis.step);
        axis.end = std::max(axis.end, std::min(axis.src, (p.count - 1) * axis.step + o + 1));
      }
    if (axis.residue.empty()) axis.first = last = 0, axis.residue.push_back(0);
    std::sort(axis.residue.begin(), axis.residue.end());
    axis.residue.erase(std::unique(axis.residue.begin(), axis.residue.end()), axis.residue.end());
    extent_[a] = box[a] + last - axis.first;
    const bool several = extent_[0] * (a == 2 ? extent_[1] : 1) > 1;
    if (borders == Borders::shared && a > 0 && several && box[a] == whole[a]) {
      const Index end = ceil_div(axis.src - axis.residue[0], axis.step) - axis.first;  // of the image
      // Up to half of the pixels: a box that is cut in two, and shares nothing, must not take more.
      shared[a] = std::max<Index>(0, std::min({-axis.first, extent_[a] - end, last - axis.first, box[a] / 2}));
    }
    extent_[a] -= shared[a];
    residues *= static_cast<Index>(axis.residue.size());
  }
  channel_ = odd_multiple(residues * extent_[0] * extent_[1] * extent_[2], 16);
  slack_ += shared[1] * row() + shared[2];
}

Planes::Planes(const Index3& size, const Index3& first, const Index3& extent) : extent_(extent) {
  for (std::size_t a = 0; a < 3; ++a) axes_[a] = {size[a], 1, first[a], size[a], {0}};
  channel_ = odd_multiple(extent_[0] * extent_[1] * extent_[2], 16);
}

Index Planes::offset(const Index3& source_offset) const {
  Index residue = 0, place = 0;
  for (std::size_t a = 0; a < 3; ++a) {
    const Axis& axis = axes_[a];
    const Index block = floor_div(source_offset[a], axis.step);
    const auto r = std::lower_bound(axis.residue.begin(), axis.residue.end(), source_offset[a] - block * axis.step);
    residue = residue * static_cast<Index>(axis.residue.size()) + (r - axis.residue.begin());
    place = place * extent_[a] + block - axis.first;
  }
  return residue * extent_[0] * extent_[1] * extent_[2] + place;
}

Index Planes::parts() const {
  Index count = 1;
  for (const Axis& a : axes_) count *= static_cast<Index>(a.residue.size());
  return count;
}

View Planes::source(const View& image, Index n, Index c, Index channels, const PixelBox& b) const {
  Index5 at{n, c, 0, 0, 0}, size{1, channels, 0, 0, 0};
  for (std::size_t a = 0; a < 3; ++a) {
    at[a + 2] = std::min(b.q0[a] * step(a), image.size[a + 2]);
    size[a + 2] = std::min(b.q1[a] * step(a), image.size[a + 2]) - at[a + 2];
  }
  return image.at(at, size);
}

void Planes::locate(const View& image, const Index3& q0, const Index3& end, Part* parts) const {
  const auto range = [&](std::size_t a, Index residue, Index& at) {
    const Axis& x = axes_[a];
    const Index first = (q0[a] + x.first) * x.step + residue;
    const Index begin = std::clamp<Index>(ceil_div(-first, x.step), 0, extent_[a]);
    at += (first + begin * x.step) * image.stride[a + 2];
    return Range{begin, std::clamp<Index>(ceil_div(std::min(x.src, end[a]) - first, x.step), begin, extent_[a])};
  };
  const auto step = [&](std::size_t a) { return axes_[a].step * image.stride[a + 2]; };
  const bool dense = this->parts() == 1 && image.plain() && step(2) == 1 && (extent_[1] == 1 || step(1) == row()) &&
                     (extent_[0] == 1 || step(0) == plane());
  const auto run = [&](const Part& p) {
    if (!dense || p.d.begin > 0 || p.h.begin > 0 || p.w.begin > 0) return Index{0};
    if (p.w.end < row()) return plane() * extent_[0] == row() ? p.w.end : 0;
    if (p.h.end < extent_[1]) return extent_[0] == 1 ? p.h.end * row() : 0;
    return p.d.end * plane();
  };
  for (const Index rd : axes_[0].residue)
    for (const Index rh : axes_[1].residue)
      for (const Index rw : axes_[2].residue) {
        parts->at = 0;
        parts->d = range(0, rd, parts->at);
        parts->h = range(1, rh, parts->at);
        parts->w = range(2, rw, parts->at);
        parts->run = run(*parts);
        ++parts;
      }
}

template <class T>
void Planes::copy(const KernelSet<T>& k, const View& image, const Part* parts, Index n, Index c, Index channels, T* dst,
                  bool bordered, Index ahead) const {
  if (channels > 1 && channels_last(image)) return copy_across(k, image, parts, n, c, channels, dst, bordered);
  const auto pad = k.pad[static_cast<int>(image.dtype)];
  const Index step_h = axes_[1].step * image.stride[3], step_w = axes_[2].step * image.stride[4];
  if (!far(image) || image.stride[4] != 1) ahead = 0;
  const auto split = static_cast<std::ptrdiff_t>(axes_[2].residue.size());
  if (const Index length = extent_[0] * plane(); parts->run == length) {
    const Index at = n * image.stride[0] + c * image.stride[1] + parts->at;
    pad(dst, channel_, advance(image.data, image.dtype, at), image.stride[1], 1, channels, 0, length,
        bordered ? 0 : channel_ - length, ahead);
    if (bordered) return;
    return std::fill(dst + channels * channel_, dst + channels * channel_ + slack_, T{});
  }
  for (Index channel = 0; channel < channels; ++channel, dst += channel_) {
    each_plane(image, parts, n, c + channel, [&](Index place, Index origin, const Part* p) {
      T *const to = dst + place, *const end = to + plane();
      if (!p) return bordered ? void() : std::fill(to, end, T{});
      T *const rows = to + p->h.begin * row(), *const behind = to + p->h.end * row();
      const Index left = bordered ? 0 : p->w.begin, right = bordered ? 0 : row() - p->w.end;
      const bool first = (p - parts) % split == 0;  // of the parts of the same rows, which share their lines
      pad(rows + p->w.begin - left, row(), advance(image.data, image.dtype, origin), step_h, step_w, p->h.size(), left,
          p->w.size(), right, first ? ahead : 0);
      if (bordered) return;
      std::fill(to, rows, T{});
      std::fill(behind, end, T{});
    });
    if (!bordered) std::fill(dst + this->parts() * extent_[0] * plane(), dst + channel_, T{});
  }
  if (!bordered) std::fill(dst, dst + slack_, T{});
}

template <class T>
void Planes::copy_across(const KernelSet<T>& k, const View& image, const Part* parts, Index n, Index c, Index channels,
                         T* dst, bool bordered) const {
  const auto transpose = k.transpose[static_cast<int>(image.dtype)];
  const Index step_h = axes_[1].step * image.stride[3], step_w = axes_[2].step * image.stride[4];
  const Fetch fetch{far(image) ? kPixelsAhead * step_w : 0};
  if (!bordered) std::fill(dst, dst + channels * channel_ + slack_, T{});
  for (Index run = 0; channels > 0; channels -= run, c += run, dst += run * channel_) {
    run = image.run(1, c, channels);
    each_plane(image, parts, n, c, [&](Index place, Index origin, const Part* p) {
      for (Index h = 0; p && h < p->h.size(); ++h)
        for (Index w = 0; w < p->w.size(); w += kMostRows) {
          T* table[] = {dst + place + (p->h.begin + h) * row() + p->w.begin + w};
          const int rows = static_cast<int>(std::min<Index>(kMostRows, p->w.size() - w));
          transpose(table, 1, channel_, advance(image.data, image.dtype, origin + h * step_h + w * step_w), nullptr,
                    step_w, rows, rows, run, fetch);
        }
    });
  }
}

template void Planes::copy(const KernelSet<float>&, const View&, const Part*, Index, Index, Index, float*, bool,
                           Index) const;
template void Planes::copy(const KernelSet<double>&, const View&, const Part*, Index, Index, Index, double*, bool,
                           Index) const;

}  // namespace convbwd

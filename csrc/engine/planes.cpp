#include "engine/planes.h"

#include <algorithm>
#include <limits>

namespace convbwd {

Planes::Planes(const std::array<AxisMap, 3>& maps, const Index3& box) {
  Index residues = 1;
  for (std::size_t a = 0; a < 3; ++a) {
    Axis& axis = axes_[a];
    axis = {maps[a].src, maps[a].src_step, std::numeric_limits<Index>::max(), {}};
    Index last = std::numeric_limits<Index>::min();
    for (const Phase& p : maps[a].phases)
      for (const Index o : p.offset) {
        const Index block = floor_div(o, axis.step);
        axis.first = std::min(axis.first, block);
        last = std::max(last, block);
        axis.residue.push_back(o - block * axis.step);
      }
    if (axis.residue.empty()) axis.first = last = 0, axis.residue.push_back(0);
    std::sort(axis.residue.begin(), axis.residue.end());
    axis.residue.erase(std::unique(axis.residue.begin(), axis.residue.end()), axis.residue.end());
    extent_[a] = box[a] + last - axis.first;
    residues *= static_cast<Index>(axis.residue.size());
  }
  channel_ = (ceil_div(residues * extent_[0] * extent_[1] * extent_[2], 16) | 1) * 16;
}

Planes::Planes(const Planes& other, const Index3& size) : extent_(other.extent_) {
  for (std::size_t a = 0; a < 3; ++a) axes_[a] = {size[a], 1, 0, {0}};
  channel_ = (ceil_div(extent_[0] * extent_[1] * extent_[2], 16) | 1) * 16;
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

template <class T>
void Planes::copy(const KernelSet<T>& k, const View& image, Index n, Index c, Index channels, const Index3& q0,
                  const Index3& end, T* dst) const {
  const auto pad = k.pad[static_cast<int>(image.dtype)];
  // Places of the flat copy whose source position (q0 + first + place) * step + residue exists.
  const auto inside = [&](std::size_t a, Index residue) {
    const Axis& x = axes_[a];
    const Index at = (q0[a] + x.first) * x.step + residue;
    const Index begin = std::clamp<Index>(ceil_div(-at, x.step), 0, extent_[a]);
    return Range{begin, std::clamp<Index>(ceil_div(std::min(x.src, end[a]) - at, x.step), begin, extent_[a])};
  };
  const Axis &xd = axes_[0], &xh = axes_[1], &xw = axes_[2];
  for (Index channel = 0; channel < channels; ++channel) {
    T* to = dst + channel * channel_;
    const void* from = advance(image.data, image.dtype, n * image.stride[0] + (c + channel) * image.stride[1]);
    for (const Index rd : xd.residue)
      for (const Index rh : xh.residue)
        for (const Index rw : xw.residue) {
          const Range d = inside(0, rd), h = inside(1, rh), w = inside(2, rw);
          const Index width = w.end - w.begin, step = xw.step * image.stride[4];
          for (Index i = 0; i < extent_[0]; ++i, to += plane()) {
            if (i < d.begin || i >= d.end || h.begin == h.end || width == 0) {
              std::fill(to, to + plane(), T{});
              continue;
            }
            std::fill(to, to + h.begin * row(), T{});
            std::fill(to + h.end * row(), to + plane(), T{});
            const Index at = ((q0[0] + xd.first + i) * xd.step + rd) * image.stride[2] +
                             ((q0[1] + xh.first + h.begin) * xh.step + rh) * image.stride[3] +
                             ((q0[2] + xw.first + w.begin) * xw.step + rw) * image.stride[4];
            T* rows = to + h.begin * row();
            pad(rows, row(), advance(from, image.dtype, at), xh.step * image.stride[3], step, h.end - h.begin, w.begin, width,
                row() - w.end);
          }
        }
    std::fill(to, dst + (channel + 1) * channel_, T{});
  }
  std::fill(dst + channels * channel_, dst + channels * channel_ + kSlack, T{});
}

template void Planes::copy(const KernelSet<float>&, const View&, Index, Index, Index, const Index3&, const Index3&, float*) const;
template void Planes::copy(const KernelSet<double>&, const View&, Index, Index, Index, const Index3&, const Index3&,
                           double*) const;

}  // namespace convbwd

// Layer engine: zero-bordered copies of a box of a source image, flat, so that a tap is one constant offset. Where the
// destination moves by more than one source position, the copy is split by remainder and the offsets stay constant.
#pragma once

#include <algorithm>
#include <vector>

#include "base/problem.h"
#include "engine/axis.h"
#include "format/copy.h"

namespace convbwd {

/// Of a box, its copies and results together: at home in L2, with room for the caller's data. On a Sapphire Rapids (2
/// MiB) half of it takes 1.04 times as long over 21 input gradients of stems, 1.17 over weight gradients of six large
/// depthwise problems, double 0.97 of the stems' time.
constexpr Index kBoxBytes = 256 << 10;

/// Of copies of groups whose channels lie side by side, and are copied together: more than a second-level cache holds,
/// but with 1 MiB, and fewer channels at a time, lines are read again and again (1.3 to 1.7 times as long, Zen 4).
constexpr Index kTogetherBytes = 3 << 20;
/// Groups of which they are a line.
inline Index groups_of_line(const Problem& p) {
  return std::clamp<Index>(kLineChannels / std::min(p.ci, p.co), 1, p.groups);
}

class Planes {
 public:
  /// Where they are shared, the zeros behind a row are those before the next, and so are rows of zeros between planes,
  /// in boxes as wide, or as high, as the image.
  enum class Borders { own, shared };
  Planes() = default;
  /// For boxes of at most `box` pixels a phase.
  Planes(const std::array<AxisMap, 3>& maps, const Index3& box, Borders borders = Borders::own);
  /// Of an image of this size whose position q + first lies at pixel q of boxes of `extent`.
  Planes(const Index3& size, const Index3& first, const Index3& extent);
  /// Gives each channel so many zeros more behind its last pixel.
  void add_zeros(Index behind) { channel_ = odd_multiple(channel_ + behind, 16); }

  const Index3& extent() const { return extent_; }
  Index row() const { return extent_[2]; }
  Index plane() const { return extent_[1] * extent_[2]; }
  Index channel() const { return channel_; }  ///< elements of one channel, an odd number of cache lines
  Index slack() const { return slack_; }      ///< zero elements wanted behind the last channel
  Index step(std::size_t axis) const { return axes_[axis].step; }  ///< source positions from a pixel to the next
  Index offset(const Index3& source_offset) const;  ///< of a tap, from the pixel's place (q - q0) in the flat box

  /// Where one remainder of a box comes from: worked out once and used for every image and channel.
  struct Part {
    Range d, h, w;  // places of the flat copy that exist in the image
    Index at;       // offset of the first of them in a channel of the image
    Index run;      // so many elements of the copy lie in the image as they do there, from the first on
  };
  Index parts() const;
  /// Fills `parts` for pixels from q0 on; positions from `end` on count as outside. Where that is end(), what no pixel
  /// reads is never among them, however boxes lie.
  void locate(const View& image, const Index3& q0, const Index3& end, Part* parts) const;
  /// Copies `channels` channels from channel c of image n; `bordered` where as many were copied there before, from the
  /// same parts: their borders are zero already. Of images beyond L2 it fetches what lies `ahead` elements behind.
  /// Where channels lie side by side, and are several, they are transposed, and some pixels fetched ahead instead.
  template <class T>
  void copy(const KernelSet<T>& k, const View& image, const Part* parts, Index n, Index c, Index channels, T* dst,
            bool bordered, Index ahead) const;
  /// What is copied of `channels` channels from channel c of image n for a box of pixels, all but its borders.
  View source(const View& image, Index n, Index c, Index channels, const PixelBox& b) const;
  /// Whether images come from beyond L2.
  static bool far(const View& images) { return bytes_of(images) > kFarBytes; }
  /// Calls f(place, origin, part) for the planes of one channel in order: `place` in the copy, `origin` the offset in
  /// the image of the first pixel that exists there, the part whose rows and columns do; null where none does.
  template <class F>
  void each_plane(const View& image, const Part* parts, Index n, Index c, F&& f) const;
  /// One behind the last source position that any pixel reads.
  Index3 end() const { return {axes_[0].end, axes_[1].end, axes_[2].end}; }

 private:
  template <class T>
  void copy_across(const KernelSet<T>& k, const View& image, const Part* parts, Index n, Index c, Index channels,
                   T* dst, bool bordered) const;

  static constexpr Index kSlack = 16;  // the last vector of a row is read whole
  // Fetched a plane at a time instead of row by row, 108 channels of 8x56x56 that are split by two strides take twice
  // as long, 256 of 56x56 1.1 times (Zen 5).
  static constexpr Index kFarBytes = 1 << 20;
  struct Axis {
    Index src, step, first, end;  // source size, step of a pixel, smallest source offset / step, see end()
    std::vector<Index> residue;   // remainders that some tap reads, in order
  };
  std::array<Axis, 3> axes_;
  Index3 extent_{1, 1, 1};
  Index channel_ = 0, slack_ = kSlack;
};

template <class F>
void Planes::each_plane(const View& image, const Part* parts, Index n, Index c, F&& f) const {
  const Index step = axes_[0].step * image.stride[2], from = image.offset({n, c, 0, 0, 0});
  Index place = 0;
  for (const Part *p = parts, *last = parts + this->parts(); p != last; ++p) {
    const bool empty = p->h.begin == p->h.end || p->w.begin == p->w.end;
    for (Index i = 0; i < extent_[0]; ++i, place += plane()) {
      const bool exists = !empty && i >= p->d.begin && i < p->d.end;
      f(place, exists ? from + p->at + (i - p->d.begin) * step : 0, exists ? p : nullptr);
    }
  }
}

}  // namespace convbwd

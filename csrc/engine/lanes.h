// Layer engine: depthwise problems with vectors along channels. A block of channels, as many as a vector has lanes, is
// transposed to [pixel][lane]: small planes have too few pixels for vectors along them.
#pragma once

#include <algorithm>
#include <cstddef>

#include "engine/pass.h"

namespace convbwd {

// Vectors of a slot, which may be more than a second-level cache holds: planes of 100x100 with 7x7 windows take 0.73 of
// the time of vectors along pixels, those of 8x28x28 with 3x3x3 0.6 (Zen 5, 1 MiB).
inline constexpr Index kLanesVectors = 24576;

/// Planes of a block, with zeros around: [depth][row][column][lane].
struct LanePlanes {
  Index3 before{}, extent{};  // zeros before the first pixel; pixels with the zeros
  Index lanes = 1;

  LanePlanes() = default;
  /// Of images of `size`, of which positions from `first` to `last` are read.
  LanePlanes(const Index3& size, const Index3& first, const Index3& last, Index vector) : lanes(vector) {
    for (std::size_t a = 0; a < 3; ++a) {
      before[a] = std::max<Index>(0, -first[a]);
      extent[a] = before[a] + std::max(size[a], last[a] + 1);
    }
  }
  Index row() const { return extent[2] * lanes; }
  Index plane() const { return extent[1] * row(); }
  Index elements() const { return extent[0] * plane(); }
  Index3 steps() const { return {plane(), row(), lanes}; }
  /// Whether no axis is longer than all pixels may be: beyond, elements() may be beyond an integer.
  bool short_axes() const { return std::max({extent[0], extent[1], extent[2]}) <= kLanesVectors; }
  /// Of a position of the image, which may be negative.
  Index at(const Index3& i) const {
    return (i[0] + before[0]) * plane() + (i[1] + before[1]) * row() + (i[2] + before[2]) * lanes;
  }

  /// Copies an image's channels (axis 1), no more than lanes. `table` is scratch for a row of pixels. What is not
  /// written is to be zero already. Where images come from memory, `next` are the channels that are copied after these.
  template <class T>
  void copy(const KernelSet<T>& k, const View& image, const View* next, T** table, T* to) const {
    const auto& size = image.size;
    if (image.plain() && channels_last(image)) {
      const auto pad = k.pad[static_cast<int>(image.dtype)];
      const Index ahead = next ? kPixelsAhead * image.stride[4] : 0;
      for (Index d = 0; d < size[2]; ++d)
        for (Index h = 0; h < size[3]; ++h)
          pad(to + at({d, h, 0}), lanes, advance(image.data, image.dtype, image.offset({0, 0, d, h, 0})),
              image.stride[4], 1, size[4], 0, size[1], 0, ahead);
      return;
    }
    if (!dense_planes(image)) return copy_in(k, to + at({}), {0, 1, plane(), row(), lanes}, image);
    const bool bordered = extent[2] != size[4];
    const Index period = bordered ? size[4] : 1;
    const Index pixels = size[3] * size[4];
    for (Index d = 0; d < size[2]; ++d) {
      const std::byte* const from = advance(image.data, image.dtype, d * image.stride[2]);
      Fetch fetch;
      if (next) fetch.ahead = kFetchAhead;
      if (next && d + 1 == size[2])
        fetch.turn =
            (static_cast<const std::byte*>(next->data) - from) / static_cast<Index>(size_of(image.dtype)) - pixels;
      for (Index i = 0; i < period; ++i) table[i] = to + at({d, 0, i});
      k.transpose[static_cast<int>(image.dtype)](table, period, bordered ? row() : lanes, from, nullptr,
                                                 image.stride[1], static_cast<int>(size[1]), static_cast<int>(lanes),
                                                 pixels, fetch);
    }
  }
};

/// Stores results [pixel][lane] to an image's channels, no more than lanes. `flat` is scratch for them where they are
/// converted.
template <class T>
void store_lanes(const KernelSet<T>& k, const View& image, const T* results, T* flat) {
  if (!image.plain())
    return for_each_plain(image, [&](const View& part, Index, Index c) { store_lanes(k, part, results + c, flat); });
  const auto& size = image.size;
  const auto& stride = image.stride;
  const Index lanes = k.lanes, pixels = size[2] * size[3] * size[4];
  const bool dense = dense_planes(image), same = image.dtype == compute_dtype<T>, direct = dense && same;
  if (same && channels_last(image)) {
    const auto pad = k.pad[static_cast<int>(image.dtype)];
    for (Index d = 0; d < size[2]; ++d)
      for (Index h = 0; h < size[3]; ++h, results += size[4] * lanes)
        pad(static_cast<T*>(image.data) + image.offset({0, 0, d, h, 0}), stride[4], results, lanes, 1, size[4], 0,
            size[1], 0, 0);
    return;
  }
  if (!dense && (same || stride[1] == 1)) {
    for (Index d = 0; d < size[2]; ++d)
      for (Index h = 0; h < size[3]; ++h)
        for (Index w = 0; w < size[4]; ++w, results += lanes)
          store_row(k, advance(image.data, image.dtype, image.offset({0, 0, d, h, w})), image.dtype, stride[1], results,
                    size[1]);
    return;
  }
  T* const to = direct ? static_cast<T*>(image.data) : flat;
  const Index pitch = direct ? stride[1] : pixels;
  for (Index p = 0; p < pixels; p += kMostRows) {
    const int rows = static_cast<int>(std::min<Index>(kMostRows, pixels - p));
    T* table[1] = {to + p};
    k.transpose[static_cast<int>(compute_dtype<T>)](table, 1, pitch, results + p * lanes, nullptr, lanes, rows, rows,
                                                    size[1], {});
  }
  if (direct) return;
  const Index run = dense ? pixels : size[4];
  for (Index c = 0; c < size[1]; ++c)
    for (Index d = 0; d < (dense ? 1 : size[2]); ++d)
      for (Index h = 0; h < (dense ? 1 : size[3]); ++h, flat += run)
        store_row(k, advance(image.data, image.dtype, image.offset({0, c, d, h, 0})), image.dtype, stride[4], flat,
                  run);
}

/// Time on one thread where a plane has so many products, good to 30 %: fitted as that of direct passes is, to planes
/// of 7x7 to 28x28 and kernels of 3x3 to 7x7 with vectors of 32 and 64 bytes, and where a plane of vectors is larger
/// than the first-level cache to 56x56 with strides of 2. On a Zen 5 these estimates and those of rows and dots are 1.4
/// to 2 times the time of images in the caches, with nine tenths of what was fitted to a Sapphire Rapids; over 65
/// problems of up to 112x112 pixels and 31x31 taps the choice is at most 1.2 times as slow as the other.
inline double lanes_nanoseconds(const Problem& p, Index blocks, double products, Index vector_bytes) {
  constexpr Index kNear = 64 << 10;
  const double pixels = static_cast<double>(p.x_plane() + p.y_plane());
  const double transposed = 1 + static_cast<double>(vector_bytes) / (p.x_plane() * vector_bytes > kNear ? 21 : 32);
  return 0.9 * (500 + static_cast<double>(p.n * blocks) * (0.23 * products + transposed * pixels + 50));
}

/// Both images come from memory. On a Zen 5 with 16 MiB 512 channels of 400 pixels and 15 taps (13 MB) that are fetched
/// for nothing take 1.12 times as long, 960 channels 7x7, 40 images (15 MB) 1.2; with 8 MiB 200 channels 14x14, 32
/// images (10 MB) 1.08. With vectors of 32 bytes (Zen 3) all gradients of those take 0.55 of the time, those of 16
/// images (5 MB) 0.8 and of 12 (3.8 MB) 0.95.
template <class T>
bool come_from_memory(const Problem& p, const KernelSet<T>& kernels) {
  constexpr Index kBoth = 12 << 20, kBothNarrow = 4 << 20;
  const Index bytes = p.n * p.groups * (p.x_plane() + p.y_plane()) * static_cast<Index>(sizeof(T));
  return bytes > (narrow(kernels) ? kBothNarrow : kBoth);
}
/// A block of channels of an image.
inline View lanes_of(const View& v, Index n, Index c, Index channels) {
  return v.at({n, c, 0, 0, 0}, {1, channels, v.size[2], v.size[3], v.size[4]});
}
/// Calls f(part, lane) for the weights of a block, as channels of images: all of them, or one by one where they are not
/// a stride apart.
template <class F>
void each_weights(const View& w, Index c, Index channels, F&& f) {
  const Index step = w.plain() ? channels : 1;
  for (Index lane = 0; lane < channels; lane += step) {
    View part = w.at({c + lane, 0, 0, 0, 0}, {1, step, w.size[2], w.size[3], w.size[4]});
    part.make_plain({0, w.stride[0], w.stride[2], w.stride[3], w.stride[4]});
    f(static_cast<const View&>(part), lane);
  }
}

/// Brings in the weights of a block as [tap][lane], and tells whether all are finite.
template <class T>
bool load_weights(const KernelSet<T>& k, const View& w, Index c, Index channels, const LanePlanes& planes, T* to) {
  std::fill(to, to + planes.elements(), T{});
  each_weights(w, c, channels, [&](const View& part, Index lane) {
    copy_in(k, to + lane, {0, 1, planes.plane(), planes.row(), planes.lanes}, part);
  });
  return all_finite(to, planes.elements());
}

}  // namespace convbwd

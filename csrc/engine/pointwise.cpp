// Unknown x and unknown y of pointwise problems whose images lie in memory as matrices [channel][pixel]. The gathering
// kernel the other way round: rows are destination channels, whose weights it reads in place, columns are pixels, which
// are packed where that pays, and sums are formed where they belong. So nothing is transposed, and few bytes of
// workspace serve any number of channels. Sums are those of the Gather pass that would do it for other layouts.
#include <sstream>

#include "engine/estimate.h"
#include "engine/gather.h"

namespace convbwd {
namespace {

// Measured on one core of a Sapphire Rapids without a matrix unit, against Gather.
constexpr Index kPixels = 256;               // of a task: they share the weights of a chunk, which come from L2
constexpr Index kPanelBytes = 512 << 10;     // of a task, if more: long rows of images are read quicker
constexpr Index kFarBytes = 2 << 20;         // of images and of weights that come from beyond L2
constexpr Index kManyImageBytes = 16 << 20;  // which come from memory: gathering pixels of many channels waits for them
constexpr Index kPacking = 8;                // rows whose products take as long as packing
constexpr Index kLeastRows = 96;             // of a task
constexpr Index kFewRows = 12;               // too few to pay for packing the source
constexpr int kLeastVectors = 2;             // of a panel that is narrower so that more threads have one
constexpr Index kRows = 24;                  // of a call of the kernel: whole tiles of each
constexpr Index kLeastChunk = 128;           // of source channels: below, adding up results takes too long
constexpr Index kAhead = 8;                  // channels: the processor does not fetch ahead from page to page
// Channels ahead whose pixels of a panel, a line or two, are fetched, and the bytes of an image beyond L2: 512 channels
// 28x28 to 128 take 0.55 to 0.66 of the time, 1024 14x14 to 256 0.87; with 8 ahead 0.73 to 0.9 (Zen 3).
constexpr Index kPanelAhead = 32, kNearBytes = 512 << 10;
constexpr Index kMostInPlace = 64;  // rows: their products with sources in place take less time than packing these
constexpr Index kLeastChunkInPlace = 48;
constexpr Index kFewSets = 1024;  // that meet in few of its sets
// Rows of weights that lie across, from beyond half of an L2, for pixels enough to pay for the copy: 128 channels 28x28
// from 512, 8 images, and 512 of 38x38 from 128, 2 images, take 0.92 of the time, 1 MB of weights 1.02 to 1.03 (Zen 3,
// AVX2).
constexpr Index kCopiedBytes = 256 << 10, kCopiedPixels = 512;

template <class T>
class Pointwise final : public SlottedPass, Roles {
 public:
  Pointwise(const PassSpec& spec, const KernelSet<T>& kernels, Index chunk, bool blocked)
      : SlottedPass(spec),
        Roles(spec),
        kernels_(kernels),
        plane_(spec.problem.y_plane()),
        chunk_(chunk),
        blocked_(blocked) {}

  bool plan() {
    const Operands& o = spec_.operands;
    const View &s = image(o), &d = destination(o);
    if (o.w.dtype != compute_dtype<T> || !o.w.plain() || d.dtype != compute_dtype<T>) return false;
    if (!dense_planes(s) || !dense_planes(d)) return false;
    vectors_ = widest_block(kernels_, plane_);
    // Transposing the results costs less than products with many idle lanes.
    const Index ideal = column_cost(kernels_, width(), vectors_) * plane_;
    const Index cost = column_cost(kernels_, plane_, vectors_) * width();
    if (vectors_ < kernels_.gather_count || 8 * cost > 9 * ideal) return false;
    source_pitch_ = s.stride[1];
    in_place_ = s.dtype == compute_dtype<T> && cd_ <= kMostInPlace && !far(s) && source_pitch_ * kSize % kFewSets != 0;
    copies_weights_ = narrow(kernels_) && o.w.stride[weight_n_] == 1 && o.w.stride[weight_k_] != 1 &&
                      cs_ * cd_ * kSize >= kCopiedBytes && spec_.problem.n * plane_ >= kCopiedPixels;
    copies_weights_ = copies_weights_ && divide_copied();
    // It costs less, too, than reading weights that meet in the cache, and than packing many sources for few results,
    // unless planes meet there as well; or, if results are few, images come from memory or lanes would be idle.
    const auto meet = [](Index apart) { return meet_in_cache(apart * kSize); };
    const bool planes_meet = meet(source_pitch_) || meet(d.stride[1]);
    const bool weights_meet = !copies_weights_ && meet(o.w.stride[weight_k_]);
    const Index columns = round_up(cd_, kernels_.lanes);
    const bool few = cd_ < kLeastRows && cs_ > 3 * columns && columns < cd_ + (in_place_ ? 1 : kPacking);
    if (!planes_meet && (weights_meet || (few && cs_ * plane_ * kSize < kManyImageBytes))) return false;
    if (cd_ < kFewRows || chunk_ < std::min(cs_, in_place_ ? kLeastChunkInPlace : kLeastChunk)) return false;
    if (!place()) return false;
    while (idle() && vectors_ > kLeastVectors) {
      const int before = slots();
      if (--vectors_; !place() || slots() <= before) return ++vectors_, place();
    }
    return true;
  }

  Sums summation() const override { return GatherSums{chunk_, blocked_, false}.sums(); }

  void run(const Operands& o, std::byte* workspace) const override {
    T* const copies = reinterpret_cast<T*>(workspace);
    for (Index first = 0; first < sections(); first += at_once_) {
      const Index count = std::min(at_once_, sections() - first);
      if (copies_weights_) copy_weights(o.w, first, count, copies);
      parallel_for(count * pixel_blocks_ * spec_.problem.n, slots(), [&](Index i, int number) {
        const Slot s = carve(slot(workspace, number));
        const Index section = i % count, p0 = i / count % pixel_blocks_ * per_task_ * width();
        task(o, i / count / pixel_blocks_, first + section, {p0, std::min(plane_, p0 + per_task_ * width())},
             copies + section * copy_elements(), s);
      });
    }
  }

  std::string explain() const override {
    std::ostringstream s;
    s << "pointwise " << (to_x_ ? "x" : "y") << " (" << kernels_.name << ' ' << kernels_.gather[vectors_ - 1].name
      << "): " << per_task_ * width() << " of " << plane_ << " pixels and " << rows_ << " of " << cd_
      << " channels a task, chunks of " << chunk_ << " of " << cs_ << " source channels; "
      << (in_place_ ? "sources, " : "")
      << (copies_weights_ ? "results in place, weights copied" : "weights and results in place");
    if (at_once_ < sections()) s << " in " << ceil_div(sections(), at_once_) << " turns";
    s << "; " << effort();
    return s.str();
  }

 private:
  struct Slot {
    T *panels, *edge, *bias;
    std::ptrdiff_t *row, *crow, *edge_row;
    Index bytes;
  };
  static constexpr Index kSize = sizeof(T);
  Index width() const { return vectors_ * kernels_.lanes; }
  Index bytes(const View& image) const { return cs_ * plane_ * static_cast<Index>(size_of(image.dtype)); }
  bool far(const View& image) const { return bytes(image) > kFarBytes; }
  // A section: rows of a group, which a task multiplies.
  Index sections() const { return spec_.problem.groups * row_blocks_; }
  Range rows(Index section) const {
    const Index begin = section % row_blocks_ * rows_;
    return {begin, std::min(cd_, begin + rows_)};
  }
  Index calls() const { return ceil_div(rows_, kRows); }         // of the kernel for a task's rows and a panel
  Index copy_elements() const { return calls() * cs_ * kRows; }  // of a section's weights
  const T* weights(const View& w, Index g, Index row) const {
    return static_cast<const T*>(w.data) + g * spec_.problem.co * w.stride[0] + row * w.stride[weight_n_];
  }

  // Tasks of some rows pack the same pixels again; those of fewer pixels read the same weights again.
  void divide_pixels(Index most) {
    const Index panels = ceil_div(plane_, width());
    per_task_ = packed_ = even_part(panels, most);
    pixel_blocks_ = ceil_div(panels, per_task_);
  }
  void divide_rows(Index blocks) {
    rows_ = ceil_div(cd_, std::clamp<Index>(blocks, 1, most_row_blocks()));
    row_blocks_ = ceil_div(cd_, rows_);
    at_once_ = sections();
  }
  Index most_row_blocks() const { return std::max<Index>(1, cd_ / kLeastRows); }
  Index most_panels() const { return std::max(kPixels, kPanelBytes / (chunk_ * kSize)) / width(); }
  Index wanted_tasks() const { return kMinTasks / 2 * std::max(2, sharers()); }
  Index panels_of_tasks() const {
    return std::min(most_panels(), spec_.problem.n * ceil_div(plane_, width()) * at_once_ / wanted_tasks());
  }

  void divide() {
    const auto missing = [&] { return wanted_tasks() / (spec_.problem.n * spec_.problem.groups * pixel_blocks_); };
    divide_pixels(most_panels());
    const bool far_weights = cs_ * cd_ * kSize > kFarBytes;
    divide_rows(far_weights && !far(image(spec_.operands)) ? missing() : 1);
    divide_pixels(panels_of_tasks());
    divide_rows(missing());
    const Index tasks = spec_.problem.n * pixel_blocks_ * sections();
    if (spec_.threads > 1 && tasks < 2 * kMinTasks && tasks % 2 > 0) divide_rows(2 * row_blocks_);
  }

  // With copies of weights. Where not all fit, sections take turns, and each turn packs its pixels again.
  bool divide_copied() {
    divide();
    for (Index blocks = row_blocks_; blocks <= most_row_blocks(); ++blocks) {
      divide_rows(blocks);
      const Index room = (static_cast<Index>(spec_.budget) - 2 * carve({}).bytes) / (copy_elements() * kSize);
      if (room < 1) continue;
      at_once_ = even_part(sections(), room);
      divide_pixels(panels_of_tasks());
      if (fits()) return true;
    }
    return false;
  }

  // Fewer panels at a time leave room for more threads.
  bool place() {
    if (copies_weights_ && !divide_copied()) return false;
    if (!copies_weights_)
      for (divide(); !fits();)
        if (--packed_ == 0) return false;
    while (idle() && !in_place_ && packed_ > 1) packed_ = even_part(per_task_, packed_ - 1), fits();
    return true;
  }
  bool idle() const { return slots() < std::min<Index>(sharers(), tasks_); }

  bool fits() {
    const Index copied = copies_weights_ ? round_up(at_once_ * copy_elements() * kSize, 64) : 0;
    return share(spec_.problem.n * pixel_blocks_ * at_once_, copied, carve({}).bytes, 2);
  }

  Slot carve(Carver carver) const {
    Slot s{};
    s.panels = carver.take<T>((in_place_ ? plane_ % width() != 0 : packed_) * chunk_ * width());
    s.edge = carver.take<T>(plane_ % kernels_.lanes ? kRows * round_up(plane_ % width(), kernels_.lanes) : 0);
    s.bias = carver.take<T>(rows_);
    s.row = carver.take<std::ptrdiff_t>(kRows);
    s.crow = carver.take<std::ptrdiff_t>(kRows);
    s.edge_row = carver.take<std::ptrdiff_t>(kRows);
    s.bytes = carver.used();
    return s;
  }

  // Weights of some sections: [section][call of the kernel][source channel][row].
  void copy_weights(const View& w, Index first, Index sections, T* copies) const {
    const Index step = w.stride[weight_k_];
    parallel_for(sections * calls(), slots(), [&](Index i, int) {
      const Index section = first + i / calls(), m = i % calls() * kRows;
      const Range rows = this->rows(section);
      kernels_.pad[static_cast<int>(w.dtype)](copies + i * cs_ * kRows, kRows,
                                              weights(w, section / row_blocks_, rows.begin + m), step, 1, cs_, 0,
                                              std::clamp<Index>(rows.size() - m, 0, kRows), 0, kAhead * step);
    });
  }

  // `copies` are those of the section's weights, if there are any.
  void task(const Operands& o, Index n, Index section, const Range& pixels, const T* copies, const Slot& s) const {
    const View &from = image(o), &to = destination(o);
    const Index g = section / row_blocks_;
    const Range rows = this->rows(section);
    const Index row = o.w.stride[weight_n_], step = copies_weights_ ? kRows : o.w.stride[weight_k_],
                pitch = to.stride[1];
    const Index edge = round_up(plane_ % width(), kernels_.lanes);
    for (Index i = 0; i < kRows; ++i) s.row[i] = i * row, s.crow[i] = i * pitch, s.edge_row[i] = i * edge;
    T* const results = static_cast<T*>(to.data) + n * to.stride[0] + (g * cd_ + rows.begin) * pitch;
    for (Index k0 = 0; k0 < cs_; k0 += chunk_)
      for (Index p = pixels.begin; p < pixels.end; p += packed_ * width()) {
        const Range k{k0, std::min(cs_, k0 + chunk_)}, part{p, std::min(pixels.end, p + packed_ * width())};
        const Index whole = in_place_ ? part.size() / width() * width() : 0;
        pack(from, n, g, k, {p + whole, part.end}, s.panels);
        const T* const sources = static_cast<const T*>(source(from, n, g, k0, 0));
        for (Index m = 0; m < rows.size(); m += kRows) {
          const T* const w = copies_weights_ ? copies + m * cs_ : weights(o.w, g, rows.begin + m);
          multiply(std::min(kRows, rows.size() - m), w + k0 * step, step, sources, k, part, results + m * pitch, pitch,
                   s);
        }
      }
    if (!o.bias.data) return;
    load_bias(kernels_, s.bias, o.bias, g * cd_ + rows.begin, rows.size());
    for (Index m = 0; m < rows.size(); ++m)
      for (Index p = pixels.begin; p < pixels.end; ++p) results[m * pitch + p] += s.bias[m];
  }

  const void* source(const View& from, Index n, Index g, Index channel, Index pixel) const {
    return advance(from.data, from.dtype, n * from.stride[0] + (g * cs_ + channel) * source_pitch_ + pixel);
  }

  // Panels of these pixels, one behind the other, [source channel][pixel] each; zeros fill the last one's vectors.
  void pack(const View& from, Index n, Index g, const Range& k, const Range& pixels, T* panels) const {
    const auto& copy = kernels_.pad[static_cast<int>(from.dtype)];
    const Index panel = k.size() * width();
    const auto at = [&](Index i, Index p) { return source(from, n, g, k.begin + i, p); };
    Index p = pixels.begin;
    if (far(from)) {  // channel by channel: long rows are read quicker
      const Index whole = pixels.size() / width();
      for (Index i = 0; i < k.size(); ++i) {
        const Index ahead = i + kAhead < k.size() ? kAhead * source_pitch_ : 0;
        copy(panels + i * width(), panel, at(i, p), width(), 1, whole, 0, width(), 0, ahead);
      }
      p += whole * width(), panels += whole * panel;
    }
    const Index ahead = bytes(from) > kNearBytes ? kPanelAhead * source_pitch_ : 0;
    for (; p < pixels.end; p += width(), panels += panel) {
      const Index count = std::min(width(), pixels.end - p), columns = round_up(count, kernels_.lanes);
      copy(panels, columns, at(0, p), source_pitch_, 1, k.size(), 0, count, columns - count, ahead);
    }
  }

  // Adds the products of a chunk to some rows of results, or begins with them; a panel that is not whole goes by way of
  // the slot, since whole vectors would reach into the next row.
  void multiply(Index m, const T* weights, Index step, const T* sources, const Range& k, const Range& pixels,
                T* results, Index pitch, const Slot& s) const {
    const Segment segment{0, 0, k.size()};
    const bool accumulate = k.begin > 0;
    const T* panel = s.panels;
    for (Index p = pixels.begin; p < pixels.end; p += width()) {
      const Index count = std::min(width(), pixels.end - p);
      const GatherKernel<T>& kernel = gathering_kernel(kernels_, count, blocked_);
      const bool whole = count == kernel.nr, packed = !in_place_ || count < width();
      T* const c = results + p;
      kernel.run(static_cast<int>(m), weights, s.row, step, &segment, 1, packed ? panel : sources + p,
                 packed ? kernel.nr : source_pitch_, whole ? c : s.edge, whole ? s.crow : s.edge_row,
                 whole && accumulate);
      if (packed) panel += k.size() * width();
      if (whole) continue;
      for (Index i = 0; i < m; ++i)
        for (Index j = 0; j < count; ++j) {
          const T sum = s.edge[s.edge_row[i] + j];
          c[i * pitch + j] = accumulate ? c[i * pitch + j] + sum : sum;
        }
    }
  }

  const KernelSet<T>& kernels_;
  const Index plane_, chunk_;  // pixels; source channels at a time
  const bool blocked_;
  bool in_place_ = false;                               // whole panels of sources are not packed
  bool copies_weights_ = false;                         // of sections that take their turn at the same time
  Index source_pitch_ = 0;                              // elements from channel to channel
  int vectors_ = 1;                                     // of a panel
  Index per_task_ = 1, packed_ = 1;                     // panels of a task, and those that are packed together
  Index pixel_blocks_ = 1, rows_ = 1, row_blocks_ = 1;  // destination channels of a task
  Index at_once_ = 1;                                   // sections
};

}  // namespace

template <class T>
std::unique_ptr<Pass> make_pointwise(const PassSpec& spec, const KernelSet<T>& kernels, Index chunk, bool blocked) {
  return make_planned<Pointwise<T>>(spec, kernels, chunk, blocked);
}
template std::unique_ptr<Pass> make_pointwise(const PassSpec&, const KernelSet<float>&, Index, bool);
template std::unique_ptr<Pass> make_pointwise(const PassSpec&, const KernelSet<double>&, Index, bool);

}  // namespace convbwd

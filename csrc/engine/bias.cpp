// The bias gradient: one sum for each channel, in an order that depends on the shape alone. Blocks of whole rows are
// summed in the compute type by 64 interleaved sums, those of a few elements in double one after the other; blocks are
// added in double.
#include "engine/pass.h"
#include "format/copy.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

constexpr Index kBlock = 1024;  // elements of a block: short sums stay accurate
constexpr Index kFew = 16;      // elements that take no longer one after the other
constexpr Index kGroup = 16;    // channels of a task, where there is little to do for each, and of a copy

template <class T>
class BiasGradient final : public Pass {
 public:
  BiasGradient(const View& y, int threads) : size_(y.size), kernels_(kernel_set<T>(active_isa())) {
    width_ = std::min(kBlock, size_[4]);
    rows_ = std::max<Index>(1, kBlock / size_[4]);
    rows_ = std::min(rows_, size_[3]);
    in_place_ = y.dtype == compute_dtype<T> && y.stride[4] == 1 && (rows_ == 1 || y.stride[3] == size_[4]);
    const Index plane = size_[0] * size_[2] * size_[3] * size_[4];
    group_ = plane < kBlock || (!in_place_ && y.stride[1] == 1) ? std::min(kGroup, size_[1]) : 1;
    tasks_ = ceil_div(size_[1], group_);
    slots_ = static_cast<int>(std::max<Index>(1, std::min<Index>(threads, plane * size_[1] >> 16)));
    slot_bytes_ = in_place_ ? 0 : round_up(group_ * rows_ * width_ * static_cast<Index>(sizeof(T)), 64);
  }

  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(slots_ * slot_bytes_); }
  std::string explain() const override {
    return "bias: sums of y " + std::string(in_place_ ? "in place" : "by tile copies") + "; " +
           effort(tasks_, std::min(tasks_, Index{slots_}), workspace_bytes());
  }

  void run(const Operands& o, std::byte* workspace) const override {
    parallel_for(tasks_, slots_, [&](Index i, int slot) {
      const Index c0 = i * group_, channels = std::min(group_, size_[1] - c0);
      T* copy = reinterpret_cast<T*>(workspace + slot * slot_bytes_);
      double total[kGroup] = {};
      for (Index n = 0; n < size_[0]; ++n)
        for (Index d = 0; d < size_[2]; ++d)
          for (Index h = 0; h < size_[3]; h += rows_)
            for (Index w = 0; w < size_[4]; w += width_) {
              const Index rows = std::min(rows_, size_[3] - h), width = std::min(width_, size_[4] - w);
              if (!in_place_)
                copy_in(kernels_, copy, {0, rows * width, 0, width, 1},
                        o.y.at({n, c0, d, h, w}, {1, channels, 1, rows, width}));
              for (Index c = 0; c < channels; ++c)
                total[c] += sum(in_place_ ? static_cast<const T*>(o.y.data) + o.y.offset({n, c0 + c, d, h, w})
                                          : copy + c * rows * width,
                                rows * width);
            }
      store_row(kernel_set<double>(Isa::generic), advance(o.bias.data, o.bias.dtype, c0 * o.bias.stride[1]),
                o.bias.dtype, o.bias.stride[1], total, channels);
    });
  }

 private:
  double sum(const T* p, Index count) const {
    if (count >= kFew) return kernels_.sum(p, count);
    double total = 0;
    for (Index i = 0; i < count; ++i) total += static_cast<double>(p[i]);
    return total;
  }

  Index5 size_;
  const KernelSet<T>& kernels_;
  Index width_, rows_, group_, tasks_, slot_bytes_;
  int slots_;
  bool in_place_;
};

}  // namespace

std::unique_ptr<Pass> make_bias_gradient(const View& y, bool wide, int threads) {
  if (wide || y.dtype == DType::float64) return std::make_unique<BiasGradient<double>>(y, threads);
  return std::make_unique<BiasGradient<float>>(y, threads);
}

}  // namespace convbwd

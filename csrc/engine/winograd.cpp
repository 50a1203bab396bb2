// Which transforms serve a problem, and which of them takes least time: see winograd.h.
#include "engine/winograd.h"

#include "engine/turned.h"

namespace convbwd {
namespace {

// Whether transforms need fewer products than direct sums: tiles may reach beyond the outputs, parts beyond the window.
bool saves(const winograd::Axes& axes, const Problem& p, const Index3& outputs) {
  Index products = winograd::count_products(axes);
  for (std::size_t a = 0; a < 3; ++a) products *= winograd::tiles_of(axes[a], outputs[a]) * axes[a].sets;
  return static_cast<double>(products) < products_inside(p);
}

// Whether the window has taps enough along an axis for transforms of it.
template <class T>
bool long_enough(const WinogradKernels<T>& transforms, const Problem& p, std::size_t axis) {
  const AxisSizes a = axis_sizes(p, 1 + axis);
  if (transforms.window[axis] == 1) return true;
  return transforms.fourier(static_cast<int>(axis)) ? ceil_div(a.kernel, a.stride) >= winograd::kFourierTaps
                                                    : a.kernel > 1;
}

}  // namespace

template <class T>
std::unique_ptr<EstimatedPass> make_winograd(const PassSpec& spec, const KernelSet<T>& kernels,
                                             const WinogradKernels<T>* only) {
  const Problem& p = spec.problem;
  std::unique_ptr<EstimatedPass> best;
  if (p.w[1] > 1 && p.w[2] == 1)  // for transforms along w
    if (auto pass = make_winograd(turned(spec), kernels, only)) best = std::make_unique<Turned>(spec, std::move(pass));
  constexpr Index3 ones{1, 1, 1};
  bool serves = p.stride == ones || (p.dilation == ones && p.stride[0] == 1);
  for (std::size_t a = 1; a < 3; ++a) serves &= p.stride[a] <= p.w[a];  // every remainder has a tap
  if (!serves || p.dilation[2] > winograd::kMostSets || std::min(p.ci, p.co) < winograd::kLeastChannels) return best;
  const bool to_w = spec.unknown == Unknown::w;
  std::shared_ptr<const Pass> direct;
  std::array<std::vector<Index>, 3> idle;
  for (const WinogradKernels<T>& transforms : kernels.winograd) {
    const bool may = transforms.exact || spec.precision == Precision::fast;
    const bool fits = long_enough(transforms, p, 0) && long_enough(transforms, p, 1);
    if (!may || !fits || (only && &transforms != only)) continue;
    const winograd::Axes axes = winograd::axes_of(p, transforms, spec.unknown == Unknown::x);
    if (axes[0].part_count() * axes[1].part_count() * axes[2].part_count() > winograd::kMostParts) continue;
    if (!only && !saves(axes, p, spec.unknown == Unknown::x ? p.x : p.y)) continue;
    if (!direct) {
      direct = to_w ? make_gather_weights(spec, kernels) : make_gather(spec, kernels);
      if (!direct) return best;
      for (std::size_t a = 0; a < 3; ++a) {
        const AxisSizes sizes = axis_sizes(p, a);
        idle[a] = to_w                         ? idle_taps(sizes)
                  : spec.unknown == Unknown::x ? uncovered(map_transposed(sizes))
                                               : uncovered(map_forward(sizes));
      }
    }
    const winograd::Choice<T> choice{kernels, transforms, direct, idle};
    auto pass = to_w ? winograd::make_weights(spec, choice) : winograd::make_images(spec, choice);
    if (pass && (!best || pass->cost() < best->cost())) best = std::move(pass);
  }
  return best;
}
template std::unique_ptr<EstimatedPass> make_winograd(const PassSpec&, const KernelSet<float>&,
                                                      const WinogradKernels<float>*);
template std::unique_ptr<EstimatedPass> make_winograd(const PassSpec&, const KernelSet<double>&,
                                                      const WinogradKernels<double>*);

}  // namespace convbwd

// Layer conv: from a checked request to the passes of the engine. Roles are exchanged for transposed convolutions here,
// algorithms chosen here, and nowhere else.
#include <sstream>

#include "base/arena.h"
#include "base/cpu.h"
#include "base/thread_pool.h"
#include "conv/problem.h"
#include "engine/blas.h"
#include "engine/pass.h"
#include "format/copy.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

// Below so many channels vectors run along pixels: a panel of channels would waste most of its lanes.
constexpr Index kFewChannels = 8;
// Below so many products packing costs more than it saves.
constexpr double kTinyProducts = 4096;
// Above so many, no workspace limit justifies plain loops.
constexpr double kManyProducts = 1 << 20;

double products(const Problem& p) {
  return static_cast<double>(p.n * p.groups) * static_cast<double>(p.ci * p.co) * static_cast<double>(p.taps()) *
         static_cast<double>(p.y_plane());
}

// A tensor as a five-axis view. Axes of size one get the stride that a dense tensor would have.
View five_axes(const Tensor& t, bool unbatched) {
  View v{t.data, t.dtype, {1, 1, 1, 1, 1}, {}};
  const std::size_t rank = t.shape.size(), lead = unbatched ? 1 : 0, spatial = rank + lead - 2;
  const auto axis = [&](std::size_t a) { return a + lead < 2 ? a + lead : a + lead + 3 - spatial; };
  for (std::size_t a = 0; a < rank; ++a) v.size[axis(a)] = t.shape[a];
  Index dense = 1;
  for (std::size_t a = 5; a-- > 0;) {
    v.stride[a] = dense;
    if (v.size[a] > 1) dense *= v.size[a];
  }
  if (!t.strides.empty())
    for (std::size_t a = 0; a < rank; ++a)
      if (t.shape[a] > 1) v.stride[axis(a)] = t.strides[a];
  for (std::size_t a = 5; a-- > 0;)
    if (v.size[a] == 1) v.stride[a] = a == 4 ? 1 : v.size[a + 1] * v.stride[a + 1];
  return v;
}

View channels_view(const Tensor& t) {
  const Index n = t.shape.empty() ? 0 : t.shape[0];
  return {t.data, t.dtype, {1, n, 1, 1, 1}, {n, t.strides.empty() ? 1 : t.strides[0], 1, 1, 1}};
}

// Results that no product enters: zeros, or each channel's bias where there is one.
void fill(const View& v, const View& bias) {
  if (std::find(v.size.begin(), v.size.end(), 0) != v.size.end()) return;
  const KernelSet<double>& k = kernel_set<double>(Isa::generic);
  Index5 i{};
  for (;;) {
    double value = 0;
    if (bias.data)
      load_row(k, &value, advance(bias.data, bias.dtype, i[1] * bias.stride[1]), bias.dtype, 1, 1);
    store_row(k, advance(v.data, v.dtype, v.offset(i)), v.dtype, 1, &value, 1);
    int a = 4;
    while (a >= 0 && ++i[static_cast<std::size_t>(a)] == v.size[static_cast<std::size_t>(a)]) i[static_cast<std::size_t>(a--)] = 0;
    if (a < 0) return;
  }
}

template <class T>
std::unique_ptr<Pass> choose(PassSpec spec, Algorithm algorithm) {
  const Problem& p = spec.problem;
  const KernelSet<T>& native = kernel_set<T>(active_isa());
  const double work = products(p);
  const double columns = work * static_cast<double>(sizeof(T)) / static_cast<double>(p.co) / 4;  // im2col / 4, in bytes
  spec.budget = static_cast<std::size_t>(std::min(columns, 1e15));
  const bool blas = algorithm == Algorithm::blas ||
                    (algorithm == Algorithm::automatic && have_blas() && active_isa() == Isa::generic);
  const KernelSet<T>& kernels = blas ? blas_kernels(native) : native;
  if (algorithm == Algorithm::automatic && work <= kTinyProducts) return make_reference(spec);

  // Members of a merged phase set are columns too: patches are wide even with few channels.
  const bool weights = spec.unknown == Unknown::w;
  Index width = weights ? p.co : spec.unknown == Unknown::x ? p.ci : p.co;
  if (spec.unknown == Unknown::x)
    for (int a = 0; a < 3; ++a) {
      std::size_t members = 1;
      for (const Phase& f : map_transposed(axis_sizes(p, a)).phases)
        if (!f.offset.empty()) members = std::max(members, f.members.size());
      width *= static_cast<Index>(members);
    }
  const bool few = algorithm != Algorithm::blas && width <= kFewChannels;
  const auto attempt = [&]() -> std::unique_ptr<Pass> {
    for (const bool vectors_along_pixels : {few, !few}) {
      if (vectors_along_pixels && algorithm == Algorithm::blas) continue;
      auto pass = vectors_along_pixels ? (weights ? make_dots(spec, native) : make_rows(spec, native))
                                       : (weights ? make_gather_weights(spec, kernels) : make_gather(spec, kernels));
      if (pass) return pass;
    }
    return nullptr;
  };
  if (auto pass = attempt()) return pass;
  if (algorithm == Algorithm::automatic && work < kManyProducts) return make_reference(spec);
  spec.budget = static_cast<std::size_t>(1) << 50;
  if (auto pass = attempt()) return pass;
  throw Error(ErrorKind::internal, "no algorithm for " + to_string(p));
}

std::unique_ptr<Pass> make_pass(const PassSpec& spec, Algorithm algorithm) {
  if (algorithm == Algorithm::reference) return make_reference(spec);
  const Operands& o = spec.operands;
  const bool wide = o.x.dtype == DType::float64 || o.w.dtype == DType::float64 || o.y.dtype == DType::float64;
  return wide ? choose<double>(spec, algorithm) : choose<float>(spec, algorithm);
}

}  // namespace

struct Plan::Impl {
  Checked checked;
  std::array<bool, 3> mask{};
  std::unique_ptr<Pass> output, grad_input, grad_weight, grad_bias;

  std::size_t workspace_bytes() const {
    std::size_t bytes = 0;
    for (const auto* pass : {&output, &grad_input, &grad_weight, &grad_bias})
      if (*pass) bytes = std::max(bytes, (*pass)->workspace_bytes());
    return bytes;
  }
};

Plan Plan::make(const Request& r) {
  auto impl = std::make_shared<Impl>();
  impl->checked = check(r);
  const Checked& c = impl->checked;
  if (r.algorithm == Algorithm::blas && !have_blas())
    throw Error(ErrorKind::value, std::string(r.function) + ": algorithm 'blas' needs a build with OpenBLAS, got a build without it");
  const Problem& p = c.problem;
  const bool empty = p.n == 0 || p.ci == 0 || p.co == 0;
  const int threads = get_num_threads();
  const View input = five_axes(r.input, c.unbatched), weight = five_axes(r.weight, false);
  PassSpec spec{p, Unknown::y, {}, threads, 0};
  if (!r.grad_output) {
    const View output = five_axes({nullptr, c.results[0].dtype, c.results[0].shape, {}}, c.unbatched);
    spec.unknown = c.transposed ? Unknown::x : Unknown::y;
    spec.operands = {c.transposed ? output : input, weight, c.transposed ? input : output, {}};
    if (!empty) impl->output = make_pass(spec, r.algorithm);
    return Plan(std::move(impl));
  }
  impl->mask = r.output_mask;
  const View grad_output = five_axes(*r.grad_output, c.unbatched);
  const auto result = [&](std::size_t i) { return Tensor{nullptr, c.results[i].dtype, c.results[i].shape, {}}; };
  if (r.output_mask[0] && !empty) {
    const View grad_input = five_axes(result(0), c.unbatched);
    spec.unknown = c.transposed ? Unknown::y : Unknown::x;
    spec.operands = {c.transposed ? grad_output : grad_input, weight, c.transposed ? grad_input : grad_output, {}};
    impl->grad_input = make_pass(spec, r.algorithm);
  }
  if (r.output_mask[1] && !empty) {
    spec.unknown = Unknown::w;
    spec.operands = {c.transposed ? grad_output : input, five_axes(result(1), false), c.transposed ? input : grad_output, {}};
    impl->grad_weight = make_pass(spec, r.algorithm);
  }
  const bool summable = std::find(grad_output.size.begin(), grad_output.size.end(), 0) == grad_output.size.end();
  if (r.output_mask[2] && summable) impl->grad_bias = make_bias_gradient(grad_output, threads);
  return Plan(std::move(impl));
}

const std::array<Result, 3>& Plan::results() const noexcept { return impl_->checked.results; }
std::size_t Plan::workspace_bytes() const noexcept { return impl_->workspace_bytes(); }

std::string Plan::explain() const {
  std::ostringstream s;
  s << to_string(impl_->checked.problem) << (impl_->checked.transposed ? " transposed" : "") << '\n';
  const auto line = [&](const char* name, const std::unique_ptr<Pass>& pass) {
    if (pass) s << name << ": " << pass->explain() << '\n';
  };
  line("output", impl_->output);
  line("grad_input", impl_->grad_input);
  line("grad_weight", impl_->grad_weight);
  line("grad_bias", impl_->grad_bias);
  return s.str();
}

void Plan::backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                    const std::array<Tensor, 3>& results) const {
  const Checked& c = impl_->checked;
  const View dy = five_axes(grad_output, c.unbatched), x = five_axes(input, c.unbatched), w = five_axes(weight, false);
  Arena arena(impl_->workspace_bytes());
  if (impl_->mask[0]) {
    const View dx = five_axes(results[0], c.unbatched);
    if (impl_->grad_input) impl_->grad_input->run({c.transposed ? dy : dx, w, c.transposed ? dx : dy, {}}, arena.data());
    else fill(dx, {});
  }
  if (impl_->mask[1]) {
    const View dw = five_axes(results[1], false);
    if (impl_->grad_weight) impl_->grad_weight->run({c.transposed ? dy : x, dw, c.transposed ? x : dy, {}}, arena.data());
    else fill(dw, {});
  }
  if (impl_->mask[2]) {
    const View db = channels_view(results[2]);
    if (impl_->grad_bias) impl_->grad_bias->run({{}, {}, dy, db}, arena.data());
    else fill(db, {});
  }
}

void Plan::forward(const Tensor& input, const Tensor& weight, const Tensor* bias, const Tensor& output) const {
  const Checked& c = impl_->checked;
  const View x = five_axes(input, c.unbatched), w = five_axes(weight, false), y = five_axes(output, c.unbatched);
  const View b = bias ? channels_view(*bias) : View{};
  if (impl_->output) {
    Arena arena(impl_->workspace_bytes());
    impl_->output->run({c.transposed ? y : x, w, c.transposed ? x : y, b}, arena.data());
    return;
  }
  fill(y, b);
}

std::vector<std::pair<std::string, std::string>> build_info() {
  std::string available;
  for (const Isa isa : kIsas)
    if (supported(isa)) available += std::string(available.empty() ? "" : " ") + name_of(isa);
  return {
      {"version", CONVBWD_VERSION},
      {"compiler",
#if defined(__clang__)
       "clang " __clang_version__},
#else
       "gcc " __VERSION__},
#endif
      {"build_type", CONVBWD_BUILD_TYPE},
      {"isa", name_of(active_isa())},
      {"isas", available},
      {"blas", have_blas() ? "openblas" : "none"},
  };
}

}  // namespace convbwd

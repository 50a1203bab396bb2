// Layer conv: from a checked request to the passes of the engine. Roles are exchanged for transposed convolutions here,
// algorithms chosen here, and nowhere else.
#include <sstream>

#include "base/arena.h"
#include "base/cpu.h"
#include "base/thread_pool.h"
#include "conv/plan_cache.h"
#include "conv/problem.h"
#include "engine/blas.h"
#include "engine/pass.h"
#include "format/copy.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

// Up to so many channels vectors run along pixels: a panel of channels would waste most of its lanes.
constexpr Index kFewChannels = 8;
// Up to so many products packing costs more than it saves.
constexpr double kTinyProducts = 4096;
// Above so many, no workspace limit justifies plain loops.
constexpr double kManyProducts = 1 << 17;
// Matrix units and Winograd are taken below so much of a direct pass's time, as far as their cost rules can tell.
constexpr double kWorthwhile = 0.85;
constexpr std::size_t kCachedPlans = 256;  // the layers of a large network, each way
constexpr std::size_t kNoLimit = std::size_t{1} << 50;

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
  if (t.strides.empty()) {
    v.stride = dense_strides(v.size);
  } else {
    for (std::size_t a = 0; a < rank; ++a) v.stride[axis(a)] = t.strides[a];
  }
  for (std::size_t a = 5; a-- > 0;)
    if (v.size[a] == 1) v.stride[a] = a == 4 ? 1 : v.size[a + 1] * v.stride[a + 1];
  return v;
}

// Where result i will be written.
View result_view(const Request& r, const Checked& c, std::size_t i) {
  const bool image = i == 0;
  Tensor t{nullptr, c.results[i].dtype, c.results[i].shape, r.result_strides[i]};
  if (image && r.channels_last && t.strides.empty()) {
    const std::size_t channel = c.unbatched ? 0 : 1, rank = t.shape.size();
    t.strides.resize(rank);
    Index dense = t.shape[channel];
    for (std::size_t a = rank; a-- > channel + 1; dense *= t.shape[a]) t.strides[a] = dense;
    t.strides[channel] = 1;
    if (!c.unbatched) t.strides[0] = dense;
  }
  return five_axes(t, image && c.unbatched);
}

// Without the rounding of a mode.
View as_stored(View v) {
  v.dtype = storage_of(v.dtype);
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
    if (bias.data) load_row(k, &value, advance(bias.data, bias.dtype, i[1] * bias.stride[1]), bias.dtype, 1, 1);
    store_row(k, advance(v.data, v.dtype, v.offset(i)), v.dtype, 1, &value, 1);
    int a = 4;
    while (a >= 0 && ++i[static_cast<std::size_t>(a)] == v.size[static_cast<std::size_t>(a)])
      i[static_cast<std::size_t>(a--)] = 0;
    if (a < 0) return;
  }
}

// Time that a direct pass takes on one thread, good to 30 %: fitted to bench/shapes.json on a Sapphire Rapids, AVX-512
// float32, where a vector's products take 0.18 ns.
double direct_nanoseconds(const PassSpec& spec, int lanes) {
  const Problem& p = spec.problem;
  const double channels = static_cast<double>(p.n * p.groups);
  const double x = channels * static_cast<double>(p.ci * p.x_plane()),
               y = channels * static_cast<double>(p.co * p.y_plane());
  const double w = static_cast<double>(p.groups * p.ci * p.co * p.taps());
  const double time = products(p) / lanes * 0.18 + 2000;
  if (spec.unknown == Unknown::w) return time + 0.15 * (x + y) + 0.8 * w;
  return time + (spec.unknown == Unknown::x ? 0.35 * x + 0.1 * y : 0.1 * x + 0.35 * y) + 0.4 * w;
}

template <class T>
std::unique_ptr<Pass> choose(PassSpec spec, Algorithm algorithm) {
  const Problem& p = spec.problem;
  const KernelSet<T>& native = kernel_set<T>(active_isa());
  const double work = products(p);
  const double columns = work * static_cast<double>(sizeof(T)) / static_cast<double>(p.co) / 4;  // im2col / 4, in bytes
  spec.budget = static_cast<std::size_t>(std::min(columns, 1e15));
  // Strict sums take no kernels but our own: OpenBLAS promises nothing about values that are not finite.
  const bool strict = spec.precision == Precision::strict;
  const bool blas = algorithm == Algorithm::blas ||
                    (algorithm == Algorithm::automatic && !strict && have_blas() && active_isa() == Isa::generic);
  const KernelSet<T>& kernels = blas ? blas_kernels(native) : native;
  if (algorithm == Algorithm::automatic && work <= kTinyProducts) return make_reference(spec);

  // Members of a merged phase set are columns too: patches are wide even with few channels.
  const bool weights = spec.unknown == Unknown::w;
  Index width = spec.unknown == Unknown::x ? p.ci : p.co;
  if (spec.unknown == Unknown::x)
    for (int a = 0; a < 3; ++a) {
      std::size_t members = 1;
      for (const Phase& f : map_transposed(axis_sizes(p, a)).phases)
        if (!f.offset.empty()) members = std::max(members, f.members.size());
      width *= static_cast<Index>(members);
    }
  const bool few = algorithm != Algorithm::blas && width <= kFewChannels;
  if (algorithm == Algorithm::automatic && !blas) {
    // What multiplies less or faster than the direct passes, where it is expected to take less time than they do.
    double most = kWorthwhile;
    std::unique_ptr<Pass> best;
    if constexpr (sizeof(T) == sizeof(float))
      if (const MatrixKernels* unit = matrix_kernels(active_isa()); unit && !few)
        if (auto pass = weights ? make_matrix_weights(spec, native, *unit) : make_matrix(spec, native, *unit))
          if (const double time = pass->nanoseconds() / direct_nanoseconds(spec, native.lanes); time < most)
            most = time, best = std::move(pass);
    if (!strict)
      if (auto pass = make_winograd(spec, native, most)) best = std::move(pass);
    if (best) return best;
  }
  for (const std::size_t budget : {spec.budget, kNoLimit}) {
    spec.budget = budget;
    for (const bool vectors_along_pixels : {few, !few}) {
      if (vectors_along_pixels && algorithm == Algorithm::blas) continue;
      auto pass = vectors_along_pixels ? (weights ? make_dots(spec, native) : make_rows(spec, native))
                                       : (weights ? make_gather_weights(spec, kernels) : make_gather(spec, kernels));
      if (pass) return pass;
    }
    if (algorithm == Algorithm::automatic && work < kManyProducts) return make_reference(spec);
  }
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
  static std::shared_ptr<const Impl> make(const Request& request, int threads);

  Checked checked;
  bool is_backward = false;
  std::array<bool, 3> mask{};
  View grad_output, input, weight;  // as planned for
  std::array<View, 3> results;
  std::unique_ptr<Pass> output, grad_input, grad_weight, grad_bias;

  std::size_t workspace_bytes() const {
    std::size_t bytes = 0;
    for (const auto* pass : {&output, &grad_input, &grad_weight, &grad_bias})
      if (*pass) bytes = std::max(bytes, (*pass)->workspace_bytes());
    return bytes;
  }
  void run(const std::array<View, 3>& operands, const std::array<View, 3>& targets,
           std::span<std::byte> workspace) const;
};

// The passes of a convolution_backward, one after the other in the same memory.
void Plan::Impl::run(const std::array<View, 3>& operands, const std::array<View, 3>& targets,
                     std::span<std::byte> workspace) const {
  const std::size_t bytes = workspace_bytes();
  std::optional<Arena> arena;
  if (workspace.empty() && bytes > 0) workspace = {arena.emplace(bytes).data(), bytes};
  if (workspace.size() < bytes || reinterpret_cast<std::uintptr_t>(workspace.data()) % Arena::kAlignment != 0)
    throw Error(ErrorKind::value, "Plan: workspace must hold " + std::to_string(bytes) + " bytes, aligned to " +
                                      std::to_string(Arena::kAlignment));
  const auto& [dy, x, w] = operands;
  const auto& [dx, dw, db] = targets;
  const bool transposed = checked.transposed;
  const auto run_pass = [&](bool wanted, const std::unique_ptr<Pass>& pass, const Operands& o, const View& result) {
    if (!wanted) return;
    if (pass)
      pass->run(o, workspace.data());
    else
      fill(result, {});
  };
  run_pass(mask[0], grad_input, {transposed ? dy : dx, w, transposed ? dx : dy, {}}, dx);
  run_pass(mask[1], grad_weight, {transposed ? dy : x, dw, transposed ? x : dy, {}}, dw);
  run_pass(mask[2], grad_bias, {{}, {}, as_stored(dy), db}, db);
}

Plan Plan::make(const Request& r) {
  static auto& cache = *new PlanCache<Impl>(kCachedPlans);  // outlives threads that run on at exit
  const int threads = get_num_threads();
  const PlanKey key(r, threads, static_cast<int>(active_isa()));
  if (!key.whole()) return Plan(Impl::make(r, threads));
  if (auto known = cache.find(key)) return Plan(std::move(known));
  auto impl = Impl::make(r, threads);
  cache.insert(key, impl);
  return Plan(std::move(impl));
}

std::shared_ptr<const Plan::Impl> Plan::Impl::make(const Request& r, int threads) {
  auto impl = std::make_shared<Impl>();
  impl->checked = check(r);
  const Checked& c = impl->checked;
  if (r.algorithm == Algorithm::blas && !have_blas())
    throw Error(ErrorKind::value,
                std::string(r.function) + ": algorithm 'blas' needs a build with OpenBLAS, got a build without it");
  const Problem& p = c.problem;
  const bool empty = p.n == 0 || p.ci == 0 || p.co == 0;
  impl->input = five_axes(r.input, c.unbatched);
  impl->weight = five_axes(r.weight, false);
  impl->input.dtype = c.operands[1];
  impl->weight.dtype = c.operands[2];
  const View &input = impl->input, &weight = impl->weight, &grad_output = impl->grad_output;
  // Who asks for a device's rounding of operands wants nothing else rounded before the sum.
  const bool rounded = r.cube_math_type != CubeMathType::keep_dtype && r.precision == Precision::default_;
  PassSpec spec{p, Unknown::y, {}, threads, 0, rounded ? Precision::strict : r.precision};
  if (!r.grad_output) {
    const View& output = impl->results[0] = result_view(r, c, 0);
    spec.unknown = c.transposed ? Unknown::x : Unknown::y;
    spec.operands = {c.transposed ? output : input, weight, c.transposed ? input : output, {}};
    if (!empty) impl->output = make_pass(spec, r.algorithm);
    return impl;
  }
  impl->is_backward = true;
  impl->mask = r.output_mask;
  impl->grad_output = five_axes(*r.grad_output, c.unbatched);
  impl->grad_output.dtype = c.operands[0];
  if (r.output_mask[0]) {
    const View& grad_input = impl->results[0] = result_view(r, c, 0);
    spec.unknown = c.transposed ? Unknown::y : Unknown::x;
    spec.operands = {c.transposed ? grad_output : grad_input, weight, c.transposed ? grad_input : grad_output, {}};
    if (!empty) impl->grad_input = make_pass(spec, r.algorithm);
  }
  if (r.output_mask[1]) {
    const View& grad_weight = impl->results[1] = result_view(r, c, 1);
    spec.unknown = Unknown::w;
    spec.operands = {c.transposed ? grad_output : input, grad_weight, c.transposed ? input : grad_output, {}};
    if (!empty) impl->grad_weight = make_pass(spec, r.algorithm);
  }
  const bool summable = std::find(grad_output.size.begin(), grad_output.size.end(), 0) == grad_output.size.end();
  if (r.output_mask[2] && summable)
    impl->grad_bias = make_bias_gradient(as_stored(grad_output), r.algorithm == Algorithm::reference, threads);
  return impl;
}

const std::array<Result, 3>& Plan::results() const noexcept { return impl_->checked.results; }
std::size_t Plan::workspace_bytes() const noexcept { return impl_->workspace_bytes(); }

std::string Plan::explain() const {
  std::ostringstream s;
  s << to_string(impl_->checked.problem) << (impl_->checked.transposed ? " transposed" : "") << '\n';
  const auto rounded = [&](const char* name, const View& v) {
    if (v.dtype != storage_of(v.dtype)) s << name << ": read as " << name_of(v.dtype) << '\n';
  };
  rounded("grad_output", impl_->grad_output);
  rounded("input", impl_->input);
  rounded("weight", impl_->weight);
  const auto line = [&](const char* name, const std::unique_ptr<Pass>& pass) {
    if (pass) s << name << ": " << pass->explain() << '\n';
  };
  line("output", impl_->output);
  line("grad_input", impl_->grad_input);
  line("grad_weight", impl_->grad_weight);
  line("grad_bias", impl_->grad_bias);
  return s.str();
}

namespace {

[[noreturn]] void refuse(const char* name) {
  throw Error(ErrorKind::value,
              std::string("Plan: ") + name + " must have the dtype, shape and strides that the plan was made for");
}

View as_planned(const Tensor& t, const View& plan, std::size_t rank, bool unbatched, const char* name) {
  if (t.shape.size() != rank || (!t.strides.empty() && t.strides.size() != rank)) refuse(name);
  View v = five_axes(t, unbatched);
  const bool empty = std::find(v.size.begin(), v.size.end(), 0) != v.size.end();
  if (v.dtype != storage_of(plan.dtype) || v.size != plan.size || (v.stride != plan.stride && !empty)) refuse(name);
  v.dtype = plan.dtype;
  return v;
}

View as_planned(const Tensor& t, Index channels, const char* name) {
  if (t.shape != Shape{channels} || t.strides.size() > 1) refuse(name);
  return channels_view(t);
}

}  // namespace

void Plan::backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                    const std::array<Tensor, 3>& results, std::span<std::byte> workspace) const {
  const Impl& plan = *impl_;
  const Checked& c = plan.checked;
  if (!plan.is_backward) throw Error(ErrorKind::value, "Plan: backward needs a plan for convolution_backward");
  const bool unbatched = c.unbatched;
  const std::size_t rank = c.output_shape.size(), weight_rank = rank + unbatched;
  const View dy = as_planned(grad_output, plan.grad_output, rank, unbatched, "grad_output");
  const View x = as_planned(input, plan.input, rank, unbatched, "input");
  const View w = as_planned(weight, plan.weight, weight_rank, false, "weight");
  View dx, dw, db;
  if (plan.mask[0]) dx = as_planned(results[0], plan.results[0], rank, unbatched, "grad_input");
  if (plan.mask[1]) dw = as_planned(results[1], plan.results[1], weight_rank, false, "grad_weight");
  if (plan.mask[2]) {
    db = as_planned(results[2], c.results[2].shape[0], "grad_bias");
    if (db.dtype != c.results[2].dtype) refuse("grad_bias");
  }
  plan.run({dy, x, w}, {dx, dw, db}, workspace);
}

void Plan::backward(const std::array<const void*, 3>& operands, const std::array<void*, 3>& results,
                    std::span<std::byte> workspace) const {
  const Impl& plan = *impl_;
  if (!plan.is_backward) throw Error(ErrorKind::value, "Plan: backward needs a plan for convolution_backward");
  const auto at = [](View v, const void* data) {
    v.data = const_cast<void*>(data);  // operands are only read
    return v;
  };
  const Result& bias = plan.checked.results[2];
  plan.run({at(plan.grad_output, operands[0]), at(plan.input, operands[1]), at(plan.weight, operands[2])},
           {at(plan.results[0], results[0]), at(plan.results[1], results[1]),
            channels_view({results[2], bias.dtype, bias.shape, {}})},
           workspace);
}

void Plan::forward(const Tensor& input, const Tensor& weight, const Tensor* bias, const Tensor& output) const {
  const Impl& plan = *impl_;
  const Checked& c = plan.checked;
  if (plan.is_backward) throw Error(ErrorKind::value, "Plan: forward needs a plan for convolution");
  const bool transposed = c.transposed, unbatched = c.unbatched;
  const std::size_t rank = c.output_shape.size();
  const View x = as_planned(input, plan.input, rank, unbatched, "input");
  const View w = as_planned(weight, plan.weight, rank + unbatched, false, "weight");
  const View y = as_planned(output, plan.results[0], rank, unbatched, "output");
  const View b = bias ? as_planned(*bias, c.output_shape[unbatched ? 0 : 1], "bias") : View{};
  if (!plan.output) return fill(y, b);
  Arena arena(plan.workspace_bytes());
  plan.output->run({transposed ? y : x, w, transposed ? x : y, b}, arena.data());
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

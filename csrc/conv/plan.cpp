// Layer conv: from a checked request to the passes of the engine. Roles are exchanged for transposed convolutions here
// and nowhere else.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sstream>

#include "base/arena.h"
#include "base/cpu.h"
#include "base/thread_pool.h"
#include "conv/choose.h"
#include "conv/plan_cache.h"
#include "conv/problem.h"
#include "engine/blas.h"
#include "engine/pass.h"
#include "format/add.h"
#include "format/copy.h"
#include "format/layouts.h"
#include "kernels/list.h"

namespace convbwd {
namespace {

constexpr std::size_t kCachedPlans = 256;  // the layers of a large network, each way

// A tensor as a five-axis view. Axes of size one get the stride that a dense tensor would have. Weights that are packed
// have groups.
View five_axes(const Tensor& t, bool unbatched, Index groups = 1) {
  if (t.packing) return packed_view(t.data, t.dtype, *t.packing, t.shape, groups);
  View v{t.data, t.dtype, {1, 1, 1, 1, 1}, {}};
  const std::size_t rank = t.shape.size(), lead = unbatched ? 1 : 0, spatial = rank + lead - 2;
  const auto axis = [&](std::size_t a) { return a + lead < 2 ? a + lead : a + lead + 3 - spatial; };
  for (std::size_t a = 0; a < rank; ++a) v.size[axis(a)] = t.shape[a];
  if (t.strides.empty()) {
    v.stride = dense_strides(v.size);
  } else {
    for (std::size_t a = 0; a < rank; ++a) v.stride[axis(a)] = t.strides[a];
  }
  v.settle_strides();
  return v;
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

// Results of one kind: `samples` of them, `step` elements apart; one, unless they are per sample.
struct Results {
  View view;
  Index samples = 1, step = 0;
  std::size_t cleared = 0;  // bytes that begin as zeros, because no element has some of them

  View at(Index sample) const {
    View v = view;
    if (v.data) v.data = advance(v.data, v.dtype, sample * step);
    return v;
  }
  Index elements() const {
    Index n = samples;
    for (const Index size : view.size) n *= size;
    return n;
  }
};

// The tensor of result i.
Results results_in(const Tensor& t, std::size_t i, bool per_sample, const Checked& c) {
  if (per_sample && i > 0) {
    Tensor of_image = t;
    of_image.shape.erase(of_image.shape.begin());
    if (!t.strides.empty()) of_image.strides.erase(of_image.strides.begin());
    Results results = results_in(of_image, i, false, c);
    results.step = t.strides.empty() ? results.elements() : t.strides[0];
    results.samples = t.shape[0];
    return results;
  }
  Results results;
  const Index groups = i == 1 ? c.problem.groups : 1;
  results.view = i == 2 ? channels_view(t) : five_axes(t, i == 0 && c.unbatched, groups);
  if (t.packing)
    if (const Index all = packed_elements(t.dtype, *t.packing, t.shape, groups); all != results.elements())
      results.cleared = static_cast<std::size_t>(all) * size_of(t.dtype);
  return results;
}

// Where result i will be written.
Results results_view(const Request& r, const Checked& c, std::size_t i) {
  Tensor t{nullptr, c.results[i].dtype, c.results[i].shape, r.result_strides[i], r.result_packings[i]};
  if (i == 0 && r.channels_last && t.strides.empty() && !t.packing) {
    const std::size_t channel = c.unbatched ? 0 : 1, rank = t.shape.size();
    t.strides.resize(rank);
    Index dense = t.shape[channel];
    for (std::size_t a = rank; a-- > channel + 1; dense *= t.shape[a]) t.strides[a] = dense;
    t.strides[channel] = 1;
    if (!c.unbatched) t.strides[0] = dense;
  }
  return results_in(t, i, r.grad_output && r.per_sample, c);
}

// Results that no product enters: zeros, or each channel's bias where there is one.
void fill(const View& v, const View& bias) {
  if (v.empty()) return;
  const KernelSet<double>& k = kernel_set<double>(Isa::generic);
  for (Index n = 0; n < v.size[0]; ++n)
    for (Index c = 0; c < v.size[1]; ++c) {
      double value = 0;
      if (bias.data) load_bias(k, &value, bias, c, 1);
      fill_plane(k, v.at({n, c, 0, 0, 0}, v.size), value);
    }
}

}  // namespace

struct Plan::Impl {
  // One result: where it goes, what the pass writes (the same, unless results are accumulated), and the pass; none
  // where nothing is to be summed.
  struct Output {
    bool wanted = false;
    Results out, target;
    std::unique_ptr<Pass> pass;
    std::optional<PassSpec> chosen_for;  // where there was a choice of passes
  };

  static std::shared_ptr<const Impl> make(const Request& request, int threads);
  Operands operands(std::size_t i, const std::array<View, 3>& in, const View& target) const;
  void make_pass(const Request& request, std::size_t i);
  std::size_t scratch_bytes() const;
  std::size_t gradient_offset() const;
  std::size_t workspace_bytes() const;
  void check_memory(const std::array<View, 3>& in, const std::array<void*, 3>& results, const View& bias) const;
  void run(const std::array<View, 3>& in, const std::array<void*, 3>& results, const View& bias,
           std::span<std::byte> workspace) const;

  Checked checked;
  bool is_backward = false, accumulate = false, per_sample = false;
  int threads = 1;
  Algorithm algorithm = Algorithm::automatic;
  std::array<View, 3> in;  // grad_output, input, weight, as planned for
  std::optional<View> planned_bias;
  std::array<Output, 3> outputs;
};

Plan Plan::make(const Request& r, int threads) {
  static auto& cache = *new PlanCache<Impl>(kCachedPlans);  // outlives threads that run on at exit
  if (threads < 1)
    throw Error(ErrorKind::value,
                std::string(r.function) + ": threads must be at least 1, got " + std::to_string(threads));
  threads = std::min(threads, kMaxThreads);
  const PlanKey key(r, threads, static_cast<int>(active_isa()));
  if (!key.whole()) return Plan(Impl::make(r, threads));
  if (auto known = cache.find(key)) return Plan(std::move(known));
  auto impl = Impl::make(r, threads);
  cache.insert(key, impl);
  return Plan(std::move(impl));
}

std::shared_ptr<const Plan::Impl> Plan::Impl::make(const Request& r, int threads) {
  auto impl = std::make_shared<Impl>();
  const Checked& c = impl->checked = check(r);
  if (r.algorithm == Algorithm::blas && !have_blas())
    throw Error(ErrorKind::value,
                std::string(r.function) + ": algorithm 'blas' needs a build with OpenBLAS, got a build without it");
  impl->is_backward = r.grad_output.has_value();
  impl->accumulate = impl->is_backward && r.accumulate;
  impl->per_sample = impl->is_backward && r.per_sample;
  impl->threads = threads;
  impl->algorithm = r.algorithm;
  if (r.grad_output) impl->in[0] = five_axes(*r.grad_output, c.unbatched);
  impl->in[1] = five_axes(r.input, c.unbatched);
  impl->in[2] = five_axes(r.weight, false, c.problem.groups);
  for (std::size_t i = 0; i < 3; ++i) impl->in[i].dtype = c.operands[i];
  if (r.bias && !r.grad_output) impl->planned_bias = channels_view(*r.bias);
  for (std::size_t i = 0; i < 3; ++i) {
    Output& output = impl->outputs[i];
    output.wanted = impl->is_backward ? r.output_mask[i] : i == 0;
    if (!output.wanted) continue;
    output.out = output.target = results_view(r, c, i);
    if (impl->accumulate) {
      output.target.view.make_plain(packed_strides(output.out.view));
      output.target.step = output.target.elements() / std::max<Index>(1, output.target.samples);
    }
    impl->make_pass(r, i);
  }
  return impl;
}

// The tensors of the problem that has result i for its unknown. Transposed, x and y have exchanged their roles.
Operands Plan::Impl::operands(std::size_t i, const std::array<View, 3>& in_, const View& target) const {
  const View &dy = in_[0], &x = in_[1], &w = in_[2];
  const bool t = checked.transposed;
  if (!is_backward) return {t ? target : x, w, t ? x : target, {}};
  if (i == 0) return {t ? dy : target, w, t ? target : dy, {}};
  if (i == 1) return {t ? dy : x, target, t ? x : dy, {}};
  return {{}, {}, as_stored(dy), target};
}

void Plan::Impl::make_pass(const Request& r, std::size_t i) {
  const Problem& p = checked.problem;
  const Results& target = outputs[i].target;
  const bool bias = i == 2, one_image = per_sample && i > 0;
  if (bias ? in[0].empty() : p.n == 0 || p.ci == 0 || p.co == 0) return;
  // Images are computed side by side where all threads find one.
  const int slots = one_image && p.n >= threads ? threads : 1;
  // Who asks for a device's rounding of operands wants nothing else rounded before the sum.
  const bool rounded = r.cube_math_type != CubeMathType::keep_dtype && r.precision == Precision::default_;
  PassSpec spec{p,
                Unknown::w,
                operands(i, in, target.view),
                slots > 1 ? 1 : threads,
                0,
                rounded ? Precision::strict : r.precision,
                i == 0 ? r.sums : Sums{}};
  if (i == 0) spec.unknown = is_backward != checked.transposed ? Unknown::x : Unknown::y;
  if (one_image) spec.problem.n = spec.operands.x.size[0] = spec.operands.y.size[0] = 1;
  auto pass = bias ? make_bias_gradient(spec.operands.y, algorithm == Algorithm::reference, spec.threads)
                   : choose(spec, algorithm);
  outputs[i].pass = one_image ? make_per_sample(std::move(pass), p.n, target.step, slots) : std::move(pass);
  if (!bias && algorithm != Algorithm::reference) outputs[i].chosen_for = std::move(spec);
}

// Memory of the passes, which take turns.
std::size_t Plan::Impl::scratch_bytes() const {
  std::size_t bytes = 0;
  for (const Output& output : outputs)
    if (output.pass) bytes = std::max(bytes, output.pass->workspace_bytes());
  return bytes;
}

// Where, behind it, the gradient is that is to be added.
std::size_t Plan::Impl::gradient_offset() const {
  return static_cast<std::size_t>(round_up(static_cast<Index>(scratch_bytes()), 64));
}

std::size_t Plan::Impl::workspace_bytes() const {
  if (!accumulate) return scratch_bytes();
  std::size_t gradient = 0;
  for (const Output& o : outputs)
    if (o.pass) gradient = std::max(gradient, static_cast<std::size_t>(o.out.elements()) * size_of(o.out.view.dtype));
  return gradient_offset() + gradient;
}

void Plan::Impl::run(const std::array<View, 3>& in_, const std::array<void*, 3>& results, const View& bias,
                     std::span<std::byte> workspace) const {
  check_memory(in_, results, bias);
  const std::size_t bytes = workspace_bytes();
  std::optional<Arena> arena;
  if (workspace.empty() && bytes > 0) workspace = {arena.emplace(bytes).data(), bytes};
  if (workspace.size() < bytes || reinterpret_cast<std::uintptr_t>(workspace.data()) % Arena::kAlignment != 0)
    throw Error(ErrorKind::value, "Plan: workspace must hold " + std::to_string(bytes) + " bytes, aligned to " +
                                      std::to_string(Arena::kAlignment));
  for (std::size_t i = 0; i < 3; ++i) {
    const Output& output = outputs[i];
    if (!output.wanted) continue;
    Results out = output.out, target = output.target;
    out.view.data = target.view.data = results[i];
    if (out.cleared > 0 && !accumulate) std::memset(results[i], 0, out.cleared);
    if (!output.pass) {  // nothing to sum: zeros, or the bias
      for (Index n = 0; n < out.samples && !accumulate; ++n) fill(out.at(n), bias);
      continue;
    }
    if (accumulate) target.view.data = workspace.data() + gradient_offset();
    Operands o = operands(i, in_, target.view);
    if (!is_backward) o.bias = bias;
    output.pass->run(o, workspace.data());
    for (Index n = 0; n < out.samples && accumulate; ++n) add(out.at(n), target.at(n), threads);
  }
}

// What a pass reads and what is wanted must be somewhere.
void Plan::Impl::check_memory(const std::array<View, 3>& in_, const std::array<void*, 3>& results,
                              const View& bias) const {
  const auto need = [](const void* data, bool empty, const char* name) {
    if (data == nullptr && !empty)
      throw Error(ErrorKind::value, std::string("Plan: ") + name + " must have memory, got null");
  };
  for (std::size_t i = 0; i < 3; ++i) {
    if (!outputs[i].wanted) continue;
    need(results[i], outputs[i].out.elements() == 0, is_backward ? kGradients[i] : "output");
    for (std::size_t operand = is_backward ? 0 : 1; operand < 3 && outputs[i].pass; ++operand)
      if (!is_backward || operand == 0 || operand + i == 2)  // grad_output, and the other one of input and weight
        need(in_[operand].data, in_[operand].empty(), kOperands[operand]);
  }
  if (planned_bias) need(bias.data, planned_bias->empty(), "bias");
}

const std::array<Result, 3>& Plan::results() const noexcept { return impl_->checked.results; }
std::size_t Plan::workspace_bytes() const noexcept { return impl_->workspace_bytes(); }

std::vector<PassInfo> Plan::passes() const {
  const Impl& plan = *impl_;
  const Problem& p = plan.checked.problem;
  const auto bytes = [](const View& v) {
    double n = static_cast<double>(size_of(v.dtype));
    for (const Index size : v.size) n *= static_cast<double>(size);
    return n;
  };
  std::vector<PassInfo> passes;
  for (std::size_t i = 0; i < 3; ++i) {
    const Impl::Output& output = plan.outputs[i];
    if (!output.pass) continue;
    const bool x_is_cut = i == 0 && plan.is_backward != plan.checked.transposed;
    const double result = bytes(output.out.view) * static_cast<double>(output.out.samples);
    PassInfo info{plan.is_backward ? kGradients[i] : "output", output.pass->explain(), x_is_cut ? p.x : p.y,
                  output.pass->tile()};
    if (output.chosen_for) info.text += "; " + reason(*output.chosen_for, plan.algorithm);
    if (i == 0) info.sums = output.pass->summation();
    if (i == 2) {
      info.bytes = bytes(plan.in[0]) + result;
      info.flops = bytes(plan.in[0]) / static_cast<double>(size_of(plan.in[0].dtype));
    } else {
      info.flops = 2 * p.products();
      info.bytes = result;
      for (std::size_t operand = 0; operand < 3; ++operand)  // all but the one whose gradient this is
        if (operand != (plan.is_backward ? i + 1 : 0)) info.bytes += bytes(plan.in[operand]);
    }
    passes.push_back(std::move(info));
  }
  return passes;
}

std::string Plan::explain() const {
  std::ostringstream s;
  s << to_string(impl_->checked.problem) << (impl_->checked.transposed ? " transposed" : "") << '\n';
  for (std::size_t i = 0; i < 3; ++i)
    if (const DType t = impl_->in[i].dtype; t != storage_of(t)) s << kOperands[i] << ": read as " << name_of(t) << '\n';
  for (const PassInfo& pass : passes()) s << pass.result << ": " << pass.text << '\n';
  return s.str();
}

namespace {

[[noreturn]] void refuse(const char* name, const Tensor& t) {
  std::ostringstream text;
  text << "Plan: " << name << " must have the dtype, shape and strides that the plan was made for, got "
       << name_of(t.dtype) << " of shape " << Tuple{t.shape};
  if (!t.strides.empty()) text << " with strides " << Tuple{t.strides};
  if (t.packing)
    text << " in " << name_of(t.packing->format) << ", c0=" << t.packing->c0 << ", groups=" << t.packing->groups;
  throw Error(ErrorKind::value, text.str());
}

bool alike(const View& v, const View& plan, bool empty = false) {
  empty |= v.empty();
  const bool placed = v.stride == plan.stride && v.split == plan.split && v.groups == plan.groups;
  return v.dtype == plan.dtype && v.size == plan.size && (placed || empty);
}

bool of_groups(const Tensor& t, Index groups) {
  return !t.packing || t.packing->groups == 0 || t.packing->groups == groups;
}

bool has_axes(const Tensor& t, std::size_t rank) {
  return t.shape.size() == rank && (t.strides.empty() || t.strides.size() == rank);
}

View as_planned(const Tensor& t, const View& plan, std::size_t rank, bool unbatched, const char* name,
                Index groups = 1) {
  if (t.dtype != storage_of(plan.dtype) || !has_axes(t, rank) || !of_groups(t, groups)) refuse(name, t);
  View v = five_axes(t, unbatched, groups);
  if (!alike(v, as_stored(plan))) refuse(name, t);
  v.dtype = plan.dtype;
  return v;
}

// Result i, a tensor.
void match(const Tensor& t, std::size_t i, bool per_sample, const Checked& c, const Results& planned,
           const char* name) {
  const Shape& shape = c.results[i].shape;
  if (t.dtype != c.results[i].dtype || t.shape != shape || !has_axes(t, shape.size()) ||
      !of_groups(t, i == 1 ? c.problem.groups : 1))
    refuse(name, t);
  const Results given = results_in(t, i, per_sample, c);
  // A format of one block of channels has the strides of a plain tensor, but room for all lanes, which are cleared.
  if (!alike(given.view, planned.view, given.samples == 0) || given.cleared != planned.cleared ||
      (given.step != planned.step && planned.samples > 1))
    refuse(name, t);
}

}  // namespace

void Plan::backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                    const std::array<Tensor, 3>& results, std::span<std::byte> workspace) const {
  const Impl& plan = *impl_;
  const Checked& c = plan.checked;
  if (!plan.is_backward) throw Error(ErrorKind::value, "Plan: backward needs a plan for convolution_backward");
  const std::size_t rank = c.output_shape.size();
  const std::array<View, 3> in{as_planned(grad_output, plan.in[0], rank, c.unbatched, "grad_output"),
                               as_planned(input, plan.in[1], rank, c.unbatched, "input"),
                               as_planned(weight, plan.in[2], rank + c.unbatched, false, "weight", c.problem.groups)};
  std::array<void*, 3> addresses{};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!plan.outputs[i].wanted) continue;
    match(results[i], i, plan.per_sample, c, plan.outputs[i].out, kGradients[i]);
    addresses[i] = results[i].data;
  }
  plan.run(in, addresses, {}, workspace);
}

void Plan::backward(const std::array<const void*, 3>& operands, const std::array<void*, 3>& results,
                    std::span<std::byte> workspace) const {
  if (!impl_->is_backward) throw Error(ErrorKind::value, "Plan: backward needs a plan for convolution_backward");
  std::array<View, 3> in = impl_->in;
  for (std::size_t i = 0; i < 3; ++i) in[i].data = const_cast<void*>(operands[i]);
  impl_->run(in, results, {}, workspace);
}

void Plan::forward(const Tensor& input, const Tensor& weight, const Tensor* bias, const Tensor& output,
                   std::span<std::byte> workspace) const {
  const Impl& plan = *impl_;
  const Checked& c = plan.checked;
  if (plan.is_backward) throw Error(ErrorKind::value, "Plan: forward needs a plan for convolution");
  const std::size_t rank = c.output_shape.size();
  const View x = as_planned(input, plan.in[1], rank, c.unbatched, "input");
  const View w = as_planned(weight, plan.in[2], rank + c.unbatched, false, "weight", c.problem.groups);
  match(output, 0, false, c, plan.outputs[0].out, "output");
  if ((bias != nullptr) != plan.planned_bias.has_value())
    throw Error(ErrorKind::value, std::string("Plan: bias must be ") +
                                      (bias ? "null, as the plan was made without one" : "given, as the plan was"));
  View b;
  if (bias) {
    b = channels_view(*bias);
    if (!has_axes(*bias, 1) || bias->packing || !alike(b, *plan.planned_bias)) refuse("bias", *bias);
  }
  plan.run({View{}, x, w}, {output.data, nullptr, nullptr}, b, workspace);
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

// Layer bindings: plans as Python objects.
#pragma once

#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/arena.h"
#include "bindings/backward.h"

namespace convbwd {

// A convolution_backward planned once. Arrays as planned go straight to the engine: nothing is read, looked up or
// allocated. Others of the same shapes and dtypes have plans of their own.
class BackwardPlan {
 public:
  // `function` begins every message.
  BackwardPlan(const Backward& call, py::str function)
      : function_(std::move(function)),
        request_(call.request),
        codes_(call.codes),
        threads_(get_num_threads()),
        plan_(Plan::make(call.request, threads_)),
        operands_{Layout(call.grad_output), Layout(call.input), Layout(call.weight)},
        packed_(call.request.grad_output->packing || call.request.input.packing || call.request.weight.packing) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (!request_.output_mask[i]) continue;
      const Result& result = plan_.results()[i];
      shapes_[i] = result_shape(request_, result, i);
      results_[i] =
          Layout(py::array(numpy_dtype(result.dtype, {&call.grad_output, &call.input, &call.weight}, call.codes),
                           shapes_[i], {}, kNowhere, py::none()));
    }
  }
  // An array of no memory, to plan with.
  static py::array stand_in(py::handle dtype, const Shape& shape) {
    return py::array(py::dtype::from_args(py::reinterpret_borrow<py::object>(dtype)), shape, {}, kNowhere, py::none());
  }

  // The scratch memory, and what aligning it may take.
  std::size_t workspace_size() const { return to_bring(plan_.workspace_bytes()); }
  std::size_t workspace_bytes() const { return plan_.workspace_bytes(); }
  std::string explain() const { return plan_.explain(); }

  py::list passes() const {
    py::list passes;
    for (const PassInfo& pass : plan_.passes()) {
      py::dict facts;
      facts["result"] = pass.result;
      facts["text"] = pass.text;
      facts["image"] = py::tuple(py::cast(pass.image));
      facts["tile"] = py::tuple(py::cast(pass.tile));
      facts["flops"] = pass.flops;
      facts["bytes"] = pass.bytes;
      facts["sums"] = py::tuple(py::cast(pass.sums));
      passes.append(facts);
    }
    return passes;
  }

  // Shape and dtype of each result, None for those left out.
  py::tuple results() const {
    py::list results;
    for (std::size_t i = 0; i < 3; ++i)
      results.append(request_.output_mask[i]
                         ? py::object(py::make_tuple(py::tuple(py::cast(shapes_[i])), results_[i].dtype()))
                         : py::none());
    return py::tuple(results);
  }

  py::object run(py::handle grad_output, py::handle input, py::handle weight, py::handle out,
                 py::handle workspace) const {
    const std::array<py::handle, 3> operands{grad_output, input, weight};
    const bool none_given = out.is_none();
    if (!none_given && !is_sequence(out)) return run_others(operands, out, workspace);
    const py::tuple given = none_given ? py::make_tuple(out, out, out) : items_of(out);
    if (given.size() != 3) return run_others(operands, out, workspace);
    for (std::size_t i = 0; i < 3; ++i)
      if (packed_ || !operands_[i].fits(operands[i], false)) return run_others(operands, out, workspace);
    std::array<const void*, 3> from{};
    std::array<void*, 3> to{};
    std::array<py::object, 3> results;
    bool made = false;  // some of them here
    for (std::size_t i = 0; i < 3; ++i) {
      results[i] = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(given.ptr(), static_cast<py::ssize_t>(i)));
      from[i] = data_of(operands[i]);
      if (!request_.output_mask[i]) {
        if (!results[i].is_none()) return run_others(operands, out, workspace);
        continue;
      }
      if (results[i].is_none() && !request_.accumulate) {
        results[i] = new_array(results_[i].dtype(), shapes_[i]);
        made = true;
      }
      if (!results_[i].fits(results[i], true)) return run_others(operands, out, workspace);
      to[i] = data_of(results[i]);
      const Extent written = results_[i].extent(to[i]);
      for (std::size_t j = 0; j < 3; ++j)
        if (written.meets(operands_[j].extent(data_of(operands[j]))) ||
            (j < i && to[j] && written.meets(results_[j].extent(to[j]))))
          return run_others(operands, out, workspace);
    }
    WritableBytes held;
    const std::span<std::byte> scratch = scratch_in(workspace, plan_.workspace_bytes(), held);
    for (std::size_t i = 0; i < 3; ++i) {
      refuse_overlap(request_.function, scratch, operands_[i].extent(from[i]));
      if (to[i]) refuse_overlap(request_.function, scratch, results_[i].extent(to[i]));
    }
    compute(request_.function, [&] { plan_.backward(from, to, scratch); });
    if (PyTuple_CheckExact(out.ptr()) && !made) return py::reinterpret_borrow<py::object>(out);
    return py::make_tuple(results[0], results[1], results[2]);
  }

 private:
  static inline const void* const kNowhere = reinterpret_cast<const void*>(Arena::kAlignment);

  std::span<std::byte> scratch_in(py::handle workspace, std::size_t bytes, WritableBytes& held) const {
    if (workspace.is_none() || bytes == 0) return {};
    const std::span<std::byte> memory = held.of(request_.function, "workspace", workspace);
    const std::span<std::byte> scratch = aligned(memory.data(), bytes);
    if (memory.size() < static_cast<std::size_t>(scratch.data() - memory.data()) + bytes)
      throw Error(ErrorKind::value, std::string(request_.function) + ": workspace must have " +
                                        std::to_string(to_bring(bytes)) + " bytes, got " +
                                        std::to_string(memory.size()));
    return scratch;
  }
  py::object run_others(const std::array<py::handle, 3>& operands, py::handle out, py::handle workspace) const {
    Backward call(request_, codes_, operands[0], operands[1], operands[2]);
    images_channels_first(call.request);
    const auto as_planned = [&](const char* name, const Tensor& given, const Tensor& planned) {
      if (given.dtype == planned.dtype && given.shape == planned.shape) return;
      const bool kind = given.dtype != planned.dtype;
      const bool last = request_.channels_last && &planned != &request_.weight;
      const auto text = [&](const Tensor& t) {
        Shape shape = t.shape;
        if (last && !t.packing) to_channels_last(shape, request_.weight.shape.size());
        return std::string(name_of(t.dtype)) + " of shape " + text_of(shape);
      };
      throw Error(kind ? ErrorKind::type : ErrorKind::value, std::string(request_.function) + ": " + name +
                                                                 " must be as planned, " + text(planned) + ", got " +
                                                                 text(given));
    };
    as_planned("grad_output", *call.request.grad_output, *request_.grad_output);
    as_planned("input", call.request.input, request_.input);
    as_planned("weight", call.request.weight, request_.weight);
    WritableBytes held;
    return call.run(out, threads_, [&](std::size_t bytes) { return scratch_in(workspace, bytes, held); });
  }

  py::str function_;  // keeps the text that the request points to
  Request request_;
  Codes codes_;
  int threads_;
  Plan plan_;
  std::array<Layout, 3> operands_, results_;
  std::array<Shape, 3> shapes_;
  bool packed_;  // an operand; its array says nothing of its format
};

}  // namespace convbwd

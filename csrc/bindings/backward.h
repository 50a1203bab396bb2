// Layer bindings: one convolution_backward, from Python's arrays to Python's arrays.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/layouts.h"
#include "bindings/memory.h"

namespace convbwd {

inline constexpr const char* kOut[] = {"out[0]", "out[1]", "out[2]"};

// Where the results of a call shall go: `out` as it was given, three objects of which any may be None.
struct Out {
  std::array<py::object, 3> given{py::none(), py::none(), py::none()};
  std::array<std::optional<py::array>, 3> arrays;  // a default array would allocate
  std::array<Tensor, 3> tensors;
  bool made = false;  // some of them here

  Out(Request& request, py::handle out, const Codes& codes) {
    request.result_names = {kOut[0], kOut[1], kOut[2]};
    const Place place{request.function, "out"};
    if (!out.is_none()) {
      if (!is_sequence(out)) place.fail_type("must be None or a sequence of 3 arrays, or None for some", out);
      const py::tuple items = items_of(out);
      if (items.size() != 3) place.fail_value("must hold 3 arrays, or None for some", py::int_(items.size()));
      for (std::size_t i = 0; i < 3; ++i) given[i] = items[i];
    }
    for (std::size_t i = 0; i < 3; ++i) {
      const Place item{request.function, "out", static_cast<py::ssize_t>(i)};
      if (given[i].is_none()) {
        if (request.accumulate && request.output_mask[i])
          item.fail_type("must be an array where accumulate is True", given[i]);
        continue;
      }
      if (!request.output_mask[i]) item.fail_type("must be None where output_mask leaves that gradient out", given[i]);
      Tensor& tensor = tensors[i];
      arrays[i] = read_tensor(request.function, kOut[i], given[i], tensor, codes, true);
      request.result_packings[i] = tensor.packing;
      if (tensor.packing) continue;
      if (i == 0 && request.channels_last) {
        to_channels_first(tensor.shape, request.weight.shape.size());
        to_channels_first(tensor.strides, request.weight.shape.size());
      }
      const Shape& like = i == 0 ? request.input.shape : request.weight.shape;
      const std::size_t lead = i > 0 && request.per_sample ? 1 : 0;
      // Strides of another shape mean nothing; that will be said when the plan knows the shape.
      if (i == 2 ? tensor.shape.size() == 1 + lead
                 : tensor.shape.size() == like.size() + lead &&
                       std::equal(like.begin(), like.end(), tensor.shape.begin() + static_cast<std::ptrdiff_t>(lead)))
        request.result_strides[i] = tensor.strides;
    }
  }

  // What only the plan knows; new arrays where none were given.
  void complete(const Request& request, const Plan& plan, std::initializer_list<const py::array*> inputs,
                const Codes& codes) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (!request.output_mask[i]) continue;
      const Result& result = plan.results()[i];
      if (given[i].is_none()) {
        made = true;
        given[i] = arrays[i].emplace(new_result(request, result, i, inputs, tensors[i], codes));
        continue;
      }
      const std::string start = std::string(request.function) + ": " + kOut[i];
      const bool packed = tensors[i].packing.has_value();
      const py::array& array = *arrays[i];
      const Shape shape = packed ? tensors[i].shape : Shape(array.shape(), array.shape() + array.ndim());
      const Shape expected = packed ? result.shape : result_shape(request, result, i);
      if (shape != expected)
        throw Error(ErrorKind::value,
                    start + ".shape must be that of the gradient = " + text_of(expected) + ", got " + text_of(shape));
      if (tensors[i].dtype != result.dtype)
        throw Error(ErrorKind::type, start + ".dtype must be that of the gradient = " + name_of(result.dtype) +
                                         ", got " + name_of(tensors[i].dtype));
    }
  }
};

// The arguments of a convolution_backward: a request, and the arrays that its tensors view.
struct Backward {
  Request request;
  Codes codes;
  py::array grad_output, input, weight;

  Backward(Request request_, const Codes& codes_, py::handle grad_output_, py::handle input_, py::handle weight_)
      : request(std::move(request_)),
        codes(codes_),
        grad_output(read_tensor(request.function, "grad_output", grad_output_, request.grad_output.emplace(), codes)),
        input(read_tensor(request.function, "input", input_, request.input, codes)),
        weight(read_tensor(request.function, "weight", weight_, request.weight, codes)) {}

  // To be called when the tensors of the request have been read.
  void read(py::handle bias_sizes, py::handle output_mask, py::handle accumulate, py::handle per_sample,
            const Parameters& parameters) {
    read_parameters(request, parameters);
    request.accumulate = to_bool({request.function, "accumulate"}, accumulate);
    request.per_sample = to_bool({request.function, "per_sample"}, per_sample);
    const Place mask{request.function, "output_mask"};
    if (!is_sequence(output_mask)) mask.fail_type("must be a sequence of 3 bools", output_mask);
    const py::tuple flags = items_of(output_mask);
    if (flags.size() != 3) mask.fail_value("must be a sequence of 3 bools", output_mask);
    for (std::size_t i = 0; i < 3; ++i)
      request.output_mask[i] = to_bool({request.function, "output_mask", static_cast<py::ssize_t>(i)}, flags[i]);
    if (!request.output_mask[2] || bias_sizes.is_none()) return;
    const Place sizes{request.function, "bias_sizes"};
    if (!is_sequence(bias_sizes)) sizes.fail_type("must be None or a sequence of ints", bias_sizes);
    request.bias_sizes = to_ints(sizes, bias_sizes);
  }

  // `workspace_for` makes scratch memory of so many bytes; none leaves it to the library.
  template <class F>
  py::object run(py::handle out_, int threads, F&& workspace_for) {
    Out out(request, out_, codes);
    const Plan plan = Plan::make(request, threads);
    out.complete(request, plan, {&grad_output, &input, &weight}, codes);
    const std::pair<const char*, const py::array*> operands[] = {
        {"grad_output", &grad_output}, {"input", &input}, {"weight", &weight}};
    for (std::size_t i = 0; i < 3 && !out_.is_none(); ++i) {
      if (!request.output_mask[i]) continue;
      for (const auto& [name, operand] : operands)
        refuse_overlap(request.function, *out.arrays[i], kOut[i], *operand, name);
      for (std::size_t j = 0; j < i; ++j)
        if (request.output_mask[j]) refuse_overlap(request.function, *out.arrays[i], kOut[i], *out.arrays[j], kOut[j]);
    }
    const std::span<std::byte> workspace = workspace_for(plan.workspace_bytes());
    for (std::size_t i = 0; i < 3 && !workspace.empty(); ++i) {
      const py::array& operand = *operands[i].second;
      refuse_overlap(request.function, workspace, Layout(operand).extent(operand.data()));
      if (!out.given[i].is_none())
        refuse_overlap(request.function, workspace, Layout(*out.arrays[i]).extent(out.arrays[i]->data()));
    }
    compute(request.function, [&] {
      plan.backward({request.grad_output->data, request.input.data, request.weight.data},
                    {out.tensors[0].data, out.tensors[1].data, out.tensors[2].data}, workspace);
    });
    if (PyTuple_CheckExact(out_.ptr()) && !out.made) return py::reinterpret_borrow<py::object>(out_);
    return py::make_tuple(out.given[0], out.given[1], out.given[2]);
  }
};

}  // namespace convbwd

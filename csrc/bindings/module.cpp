// Layer bindings: the extension convbwd._core.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "bindings/ascend.h"
#include "bindings/layouts.h"
#include "bindings/plan_object.h"

namespace convbwd {
namespace {

py::object backward(py::handle grad_output, py::handle input, py::handle weight, py::handle bias_sizes,
                    py::handle stride, py::handle padding, py::handle dilation, py::handle transposed,
                    py::handle output_padding, py::handle groups, py::handle output_mask, py::handle data_format,
                    py::handle algorithm, py::handle precision, py::handle cube_math_type, py::handle soc,
                    py::handle dtype, py::handle out, py::handle accumulate, py::handle per_sample,
                    const std::optional<Sums>& sums) {
  Request request;
  if (sums) request.sums = *sums;
  const Codes codes = read_codes(request.function, dtype);
  Backward call(std::move(request), codes, grad_output, input, weight);
  call.read(bias_sizes, output_mask, accumulate, per_sample,
            {stride, padding, dilation, transposed, output_padding, groups, data_format, algorithm, precision,
             cube_math_type, soc});
  return call.run(out, get_num_threads(), [](std::size_t) { return std::span<std::byte>(); });
}

BackwardPlan plan_backward(py::handle grad_output, py::handle input, py::handle weight, py::handle bias_sizes,
                           py::handle stride, py::handle padding, py::handle dilation, py::handle transposed,
                           py::handle output_padding, py::handle groups, py::handle output_mask, py::handle data_format,
                           py::handle algorithm, py::handle precision, py::handle cube_math_type, py::handle soc,
                           py::handle dtype, py::handle accumulate, py::handle per_sample, const py::str& function) {
  Request request;
  request.function = PyUnicode_AsUTF8(function.ptr());
  if (!request.function) throw py::error_already_set();
  const Codes codes = read_codes(request.function, dtype);
  Backward call(std::move(request), codes, grad_output, input, weight);
  call.read(bias_sizes, output_mask, accumulate, per_sample,
            {stride, padding, dilation, transposed, output_padding, groups, data_format, algorithm, precision,
             cube_math_type, soc});
  return BackwardPlan(call, function);
}

constexpr const char* kForward = "convolution";

// A call of it, with the arrays that it reads.
struct Forward {
  Forward(py::handle input_, py::handle weight_, py::handle bias_, const Codes& codes, const Parameters& parameters) {
    request.function = kForward;
    input = read_tensor(kForward, "input", input_, request.input, codes);
    weight = read_tensor(kForward, "weight", weight_, request.weight, codes);
    if (!bias_.is_none()) bias = read_array(kForward, "bias", bias_, request.bias.emplace(), codes);
    read_parameters(request, parameters);
    plan = Plan::make(request);
  }
  const Result& result() const { return plan->results()[0]; }

  Request request;
  py::array input, weight;
  py::object bias;
  std::optional<Plan> plan;
};

py::object forward(py::handle input, py::handle weight, py::handle bias, py::handle stride, py::handle padding,
                   py::handle dilation, py::handle transposed, py::handle output_padding, py::handle groups,
                   py::handle data_format, py::handle algorithm, py::handle precision, py::handle cube_math_type,
                   py::handle soc, py::handle dtype) {
  const Codes codes = read_codes(kForward, dtype);
  const Forward call(input, weight, bias, codes,
                     {stride, padding, dilation, transposed, output_padding, groups, data_format, algorithm, precision,
                      cube_math_type, soc});
  const Request& r = call.request;
  Tensor tensor;
  py::array output = new_result(r, call.result(), 0, {&call.input, &call.weight}, tensor, codes);
  compute(kForward, [&] { call.plan->forward(r.input, r.weight, r.bias ? &*r.bias : nullptr, tensor); });
  return output;
}

py::tuple output_of(py::handle input, py::handle weight, py::handle bias, py::handle stride, py::handle padding,
                    py::handle dilation, py::handle transposed, py::handle output_padding, py::handle groups,
                    py::handle data_format, py::handle algorithm, py::handle precision, py::handle cube_math_type,
                    py::handle soc) {
  const Forward call(input, weight, bias, {},
                     {stride, padding, dilation, transposed, output_padding, groups, data_format, algorithm, precision,
                      cube_math_type, soc});
  return py::make_tuple(py::tuple(py::cast(result_shape(call.request, call.result(), 0))),
                        numpy_dtype(call.result().dtype, {&call.input, &call.weight}, {}));
}

// Elements of an array in another type, as they are in memory: codes of what NumPy does not have are unsigned integers.
py::array converted(py::array from, DType type, DType to, bool saturate) {
  from = aligned_and_contiguous(from);
  const py::dtype memory = size_of(to) == 1        ? py::dtype::of<std::uint8_t>()
                           : to == DType::bfloat16 ? py::dtype::of<std::uint16_t>()
                           : to == DType::float16  ? py::dtype(kNumpyHalf)
                           : to == DType::float64  ? py::dtype::of<double>()
                                                   : py::dtype::of<float>();
  py::array result(memory, py::array::ShapeContainer(from.shape(), from.shape() + from.ndim()));
  const auto size = result.size();
  void* const data = result.mutable_data();
  without_gil([&] { convert(data, to, from.data(), type, size, saturate); });
  return result;
}

py::array cast(py::handle array, py::handle format, py::handle source, py::handle saturate) {
  const char* const function = "cast";
  static constexpr DType kTypes[] = {DType::float64,       DType::float32,  DType::float16, DType::bfloat16,
                                     DType::float8_e4m3fn, DType::hifloat8, DType::hf32,    DType::hf32_10};
  const auto to =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](DType t) { return is_text(format, name_of(t)); });
  if (to == std::end(kTypes))
    Place{function, "format"}.fail_choice(
        "must be 'float64', 'float32', 'float16', 'bfloat16', 'float8_e4m3fn', 'hifloat8', 'hf32' or 'hf32_10'",
        format);
  Tensor tensor;
  py::array from = read_array(function, "array", array, tensor, read_codes(function, source, "source"));
  const bool saturated = to_bool({function, "saturate"}, saturate);
  if (saturated && size_of(*to) != 1)
    Place{function, "saturate"}.fail_value("must be False unless format is 'float8_e4m3fn' or 'hifloat8'", saturate);
  return converted(std::move(from), tensor.dtype, *to, saturated);
}

py::array decode(py::handle array, py::handle format) {
  Tensor tensor;
  py::array from = read_array("decode", "array", array, tensor, read_codes("decode", format, "format"));
  const DType wide = tensor.dtype == DType::float64 ? DType::float64 : DType::float32;
  return converted(std::move(from), tensor.dtype, wide, false);
}

void translate(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    PyObject* const kinds[] = {PyExc_ValueError, PyExc_TypeError, PyExc_MemoryError, PyExc_RuntimeError};
    py::set_error(kinds[static_cast<int>(error.kind())], error.what());
  } catch (const std::bad_alloc&) {
    py::set_error(PyExc_MemoryError, "convbwd: out of memory");
  }
}

}  // namespace
}  // namespace convbwd

// Tells threadpoolctl this extension from others of its file name.
extern "C" __attribute__((visibility("default"))) int convbwd_get_num_threads() { return convbwd::get_num_threads(); }

PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
  using namespace convbwd;
  m.doc() = "The compiled part of convbwd.";
  for (const auto& [name, value] : build_info())
    if (name == "version") m.attr("__version__") = value;
  py::register_local_exception_translator(translate);

  const py::tuple all = py::make_tuple(true, true, true);
  m.def("convolution_backward", &backward, "See convbwd.convolution_backward.", py::arg("grad_output"),
        py::arg("input"), py::arg("weight"), py::arg("bias_sizes") = py::none(), py::arg("stride") = 1,
        py::arg("padding") = 0, py::arg("dilation") = 1, py::arg("transposed") = false, py::arg("output_padding") = 0,
        py::arg("groups") = 1, py::arg("output_mask") = all, py::arg("data_format") = py::none(),
        py::arg("algorithm") = "auto", py::arg("precision") = "default", py::arg("cube_math_type") = 0,
        py::arg("soc") = "a2", py::arg("dtype") = py::none(), py::arg("out") = py::none(),
        py::arg("accumulate") = false, py::arg("per_sample") = false, py::arg("sums") = py::none());
  py::class_<BackwardPlan>(m, "Plan", "See convbwd.Plan.")
      .def(py::init(&plan_backward), py::arg("grad_output"), py::arg("input"), py::arg("weight"),
           py::arg("bias_sizes") = py::none(), py::arg("stride") = 1, py::arg("padding") = 0, py::arg("dilation") = 1,
           py::arg("transposed") = false, py::arg("output_padding") = 0, py::arg("groups") = 1,
           py::arg("output_mask") = all, py::arg("data_format") = py::none(), py::arg("algorithm") = "auto",
           py::arg("precision") = "default", py::arg("cube_math_type") = 0, py::arg("soc") = "a2",
           py::arg("dtype") = py::none(), py::arg("accumulate") = false, py::arg("per_sample") = false,
           py::arg("function") = "plan")
      .def("run", &BackwardPlan::run, py::arg("grad_output"), py::arg("input"), py::arg("weight"), py::arg("out"),
           py::arg("workspace"))
      .def("explain", &BackwardPlan::explain)
      .def("passes", &BackwardPlan::passes)
      .def("results", &BackwardPlan::results)
      .def_property_readonly("workspace_size", &BackwardPlan::workspace_size)
      .def_property_readonly("workspace_bytes", &BackwardPlan::workspace_bytes);
  m.def(
      "stand_in", [](py::handle dtype, const Shape& shape) { return BackwardPlan::stand_in(dtype, shape); },
      "An array that only says its dtype and shape.", py::arg("dtype"), py::arg("shape"));
  m.def("convolution", &forward, "See convbwd.convolution.", py::arg("input"), py::arg("weight"),
        py::arg("bias") = py::none(), py::arg("stride") = 1, py::arg("padding") = 0, py::arg("dilation") = 1,
        py::arg("transposed") = false, py::arg("output_padding") = 0, py::arg("groups") = 1,
        py::arg("data_format") = py::none(), py::arg("algorithm") = "auto", py::arg("precision") = "default",
        py::arg("cube_math_type") = 0, py::arg("soc") = "a2", py::arg("dtype") = py::none());

  m.def("cast", &cast, "See convbwd.formats.cast.", py::arg("array"), py::arg("format"), py::arg("source") = py::none(),
        py::arg("saturate") = false);
  m.def("decode", &decode, "See convbwd.formats.decode.", py::arg("array"), py::arg("format") = py::none());
  m.def(
      "as_array",
      [](py::handle argument, const std::string& function, const std::string& name, py::handle dtype) {
        Tensor tensor;
        const Codes codes = read_codes(function.c_str(), dtype);
        return read_array(function.c_str(), name.c_str(), argument, tensor, codes);
      },
      "An array of an argument's memory where that serves as it is, else of a copy. Messages begin with the name of a "
      "function.",
      py::arg("argument"), py::arg("function") = "as_array", py::arg("name") = "argument",
      py::arg("dtype") = py::none());
  m.def("output", &output_of, "Shape and dtype of a convolution's output.", py::arg("input"), py::arg("weight"),
        py::arg("bias") = py::none(), py::arg("stride") = 1, py::arg("padding") = 0, py::arg("dilation") = 1,
        py::arg("transposed") = false, py::arg("output_padding") = 0, py::arg("groups") = 1,
        py::arg("data_format") = py::none(), py::arg("algorithm") = "auto", py::arg("precision") = "default",
        py::arg("cube_math_type") = 0, py::arg("soc") = "a2");
  bind_layouts(m);
  bind_ascend(m);
  m.def(
      "set_num_threads",
      [](py::handle n) {
        const Place place{"set_num_threads", "n"};
        const std::int64_t threads = to_int(place, n);
        if (threads < 1 || threads > INT_MAX) place.fail_value("must be from 1 to " + std::to_string(INT_MAX), n);
        set_num_threads(static_cast<int>(threads));
      },
      "See convbwd.set_num_threads.", py::arg("n"));
  m.def("get_num_threads", &get_num_threads, "See convbwd.get_num_threads.");
  m.def(
      "build_info",
      [] {
        py::dict facts;
        for (const auto& [name, value] : build_info()) facts[py::str(name)] = value;
        return facts;
      },
      "See convbwd.build_info.");
}

// Layer bindings: Ascend's graph operators, whose rules are those of conv/conv3d_backprop.cpp, and the tiles of its
// kernels.
#include "bindings/ascend.h"

#include <pybind11/stl.h>

#include <array>
#include <initializer_list>
#include <string>

#include "bindings/arguments.h"
#include "bindings/layouts.h"
#include "conv/input_tiles.h"
#include "convbwd/conv3d_backprop.hpp"

namespace convbwd {
namespace {

MemoryFormat read_format(const Place& place, py::handle value, std::initializer_list<MemoryFormat> choices) {
  std::string rule = "must be ";
  for (const MemoryFormat format : choices) {
    if (is_text(value, name_of(format))) return format;
    rule += (format == *choices.begin() ? "'" : " or '") + std::string(name_of(format)) + "'";
  }
  place.fail_choice(rule, value);
}

Shape read_ints(const Place& place, py::handle value) {
  if (!is_sequence(value)) place.fail_type("must be a sequence of ints", value);
  return to_ints(place, value);
}

// The attributes, as Python gave them.
struct Attributes {
  py::handle strides, pads, dilations, groups, data_format, filter_format, padding;

  Conv3DBackprop read(const char* function) const {
    Conv3DBackprop op;
    op.function = function;
    op.data_format = read_format({function, "data_format"}, data_format, {MemoryFormat::ndhwc, MemoryFormat::ncdhw});
    if (!filter_format.is_none())
      op.filter_format = read_format({function, "filter_format"}, filter_format,
                                     {MemoryFormat::ncdhw, MemoryFormat::ndhwc, MemoryFormat::dhwcn});
    if (!padding.is_none()) {
      const bool same = is_text(padding, "SAME") || is_text(padding, "same");
      if (!same && !is_text(padding, "VALID") && !is_text(padding, "valid"))
        Place{function, "padding"}.fail_choice("must be None, 'SAME' or 'VALID'", padding);
      if (!pads.is_none()) Place{function, "pads"}.fail_value("must be None where padding is given", pads);
      op.padding = same ? PaddingMode::same : PaddingMode::valid;
    } else {
      op.pads = read_ints({function, "pads"}, pads);
    }
    op.strides = read_ints({function, "strides"}, strides);
    op.dilations = read_ints({function, "dilations"}, dilations);
    op.groups = to_int({function, "groups"}, groups);
    return op;
  }
};

py::array input_gradient(py::handle input_size, py::handle filter, py::handle out_backprop, py::handle strides,
                         py::handle pads, py::handle dilations, py::handle groups, py::handle data_format,
                         py::handle filter_format, py::handle padding, py::handle enable_hf32, py::handle dtype) {
  const char* const function = "conv3d_backprop_input";
  const Codes codes = read_codes(function, dtype);
  Tensor w, dy, y;
  const py::array w_array = read_plain(function, "filter", filter, w, codes);
  const py::array dy_array = read_plain(function, "out_backprop", out_backprop, dy, codes);
  Conv3DBackprop op = Attributes{strides, pads, dilations, groups, data_format, filter_format, padding}.read(function);
  op.enable_hf32 = to_bool({function, "enable_hf32"}, enable_hf32);
  Shape size = read_ints({function, "input_size"}, input_size);
  Request r = conv3d_backprop_input_request(op, size, w, dy);
  if (op.data_format == MemoryFormat::ndhwc) to_channels_last(r.input.shape, 5);
  py::array result = new_array(dy.dtype, r.input.shape, {&w_array, &dy_array}, y, codes);
  without_gil([&] { conv3d_backprop_input(op, size, w, dy, y); });
  return result;
}

py::array filter_gradient(py::handle input, py::handle filter_size, py::handle out_backprop, py::handle strides,
                          py::handle pads, py::handle dilations, py::handle groups, py::handle data_format,
                          py::handle filter_format, py::handle padding, py::handle enable_hf32, py::handle dtype) {
  const char* const function = "conv3d_backprop_filter";
  const Codes codes = read_codes(function, dtype);
  Tensor x, dy, y;
  const py::array x_array = read_plain(function, "input", input, x, codes);
  const py::array dy_array = read_plain(function, "out_backprop", out_backprop, dy, codes);
  Conv3DBackprop op = Attributes{strides, pads, dilations, groups, data_format, filter_format, padding}.read(function);
  op.enable_hf32 = to_bool({function, "enable_hf32"}, enable_hf32);
  const Shape size = read_ints({function, "filter_size"}, filter_size);
  conv3d_backprop_filter_request(op, x, size, dy);  // what is wrong is said before memory is taken
  const DType result_dtype = size_of(dy.dtype) == 1 ? DType::float32 : dy.dtype;
  py::array result = new_array(result_dtype, size, {&x_array, &dy_array}, y, codes);
  without_gil([&] { conv3d_backprop_filter(op, x, size, dy, y); });
  return result;
}

InputTiling tiling_of(const Request& r, std::int64_t cores) {
  const DType dtype = r.grad_output->dtype;
  if (dtype != DType::float16 && dtype != DType::bfloat16 && dtype != DType::float32)
    throw Error(ErrorKind::type,
                std::string(r.function) + ": operands must be float16, bfloat16 or float32, got " + name_of(dtype));
  ConvbwdAscendcProblem p;
  p.batch = r.input.shape[0];
  p.cin = r.input.shape[1];
  p.cout = r.weight.shape[0];
  for (std::size_t a = 0; a < 3; ++a) {
    p.input[a] = r.input.shape[a + 2];
    p.grad_output[a] = r.grad_output->shape[a + 2];
    p.kernel[a] = r.weight.shape[a + 2];
    p.stride[a] = r.stride[a];
    p.dilation[a] = r.dilation[a];
    p.padding[2 * a] = r.padding[2 * a];
    p.padding[2 * a + 1] = r.padding[2 * a + 1];
  }
  p.group = r.groups;
  p.cores = cores;
  p.type = dtype == DType::float16 ? CONVBWD_FLOAT16 : dtype == DType::bfloat16 ? CONVBWD_BF16 : CONVBWD_FLOAT32;
  try {
    return make_input_tiling(p);
  } catch (const Error& error) {  // begins with the name that the tiling has on the device
    const std::string text = error.what();
    throw Error(error.kind(), r.function + text.substr(text.find(':')));
  }
}

// Other numbers than the tiling's. Those before the first about buffers say which gradient it is, and stay.
void change(InputTiling& t, const char* function, const py::dict& changes) {
  for (const auto& [key, number] : changes) {
    const std::string field = py::str(key);
    const Place place{function, field.c_str()};
    const std::int64_t value = to_int(place, number);
    if (value < 0 || value > 0xffffffff) place.fail_value("must be from 0 to 2**32 - 1", number);
    bool known = false;
#define CONVBWD_FIELD(type, name)                                                                         \
  if (field == #name) {                                                                                   \
    if (offsetof(InputTiling, name) < offsetof(InputTiling, al0Pbuffer) && value != std::int64_t{t.name}) \
      place.fail_value("must be " + std::to_string(t.name) + " as the arguments say", number);            \
    t.name = static_cast<type>(value), known = true;                                                      \
  }
    CONVBWD_CONV3D_DX_TILING(CONVBWD_FIELD)
#undef CONVBWD_FIELD
    if (!known) place.fail_value("must be a number of the tiling", key);
  }
}

py::dict numbers(const InputTiling& t) {
  py::dict result;
#define CONVBWD_FIELD(type, name) result[#name] = t.name;
  CONVBWD_CONV3D_DX_TILING(CONVBWD_FIELD)
#undef CONVBWD_FIELD
  return result;
}

// The memory of an array from an element on.
ConvbwdAscendcMemory memory(const py::array& array, std::int64_t offset) {
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(array.data()));
  return {begin + offset * array.itemsize(), begin + array.nbytes()};
}

// The tiles of one gradient, in NCDHW. `shapes`: of input, filter and out_backprop in NCDHW; stride, dilation and
// padding as convolution_backward takes them.
struct Tiles {
  DType dtype;
  std::array<Shape, 3> shapes;
  Shape stride, dilation, padding;
  InputTiling tiling;
  InputTiles walk;
  py::array filter, out_backprop;  // as they were read
  py::array grad_output, weight;   // packed: what is walked through, kept alive

  static Tiles make(py::handle input_size, py::handle filter, py::handle out_backprop, py::handle strides,
                    py::handle pads, py::handle dilations, py::handle data_format, py::handle filter_format,
                    py::handle padding, py::handle dtype, py::handle cores, const py::dict& changes) {
    const char* const function = "Conv3DBackpropInput";
    const Codes codes = read_codes(function, dtype);
    Tensor w, dy;
    const py::array w_array = read_plain(function, "filter", filter, w, codes);
    const py::array dy_array = read_plain(function, "out_backprop", out_backprop, dy, codes);
    const Conv3DBackprop op =
        Attributes{strides, pads, dilations, py::int_(1), data_format, filter_format, padding}.read(function);
    const Request r = conv3d_backprop_input_request(op, read_ints({function, "input_size"}, input_size), w, dy);
    InputTiling tiling = tiling_of(r, to_int({function, "cores"}, cores));
    change(tiling, function, changes);
    const Shape &x_shape = r.input.shape, &w_shape = r.weight.shape, &y_shape = r.grad_output->shape;
    return {dy.dtype,
            {x_shape, w_shape, y_shape},
            r.stride,
            r.dilation,
            r.padding,
            tiling,
            InputTiles(tiling, dy.dtype, dy.dtype, true),
            w_array,
            dy_array,
            {},
            {}};
  }
};

}  // namespace

void bind_ascend(py::module_& m) {
  m.def("conv3d_backprop_input", &input_gradient, "See convbwd.conv3d_backprop_input.", py::arg("input_size"),
        py::arg("filter"), py::arg("out_backprop"), py::arg("strides"), py::arg("pads"), py::arg("dilations"),
        py::arg("groups"), py::arg("data_format"), py::arg("filter_format"), py::arg("padding"), py::arg("enable_hf32"),
        py::arg("dtype"));
  m.def("conv3d_backprop_filter", &filter_gradient, "See convbwd.conv3d_backprop_filter.", py::arg("input"),
        py::arg("filter_size"), py::arg("out_backprop"), py::arg("strides"), py::arg("pads"), py::arg("dilations"),
        py::arg("groups"), py::arg("data_format"), py::arg("filter_format"), py::arg("padding"), py::arg("enable_hf32"),
        py::arg("dtype"));
  py::class_<Tiles>(m, "InputTiles", "See convbwd.Conv3DBackpropInput.")
      .def(py::init(&Tiles::make), py::arg("input_size"), py::arg("filter"), py::arg("out_backprop"),
           py::arg("strides"), py::arg("pads"), py::arg("dilations"), py::arg("data_format"), py::arg("filter_format"),
           py::arg("padding"), py::arg("dtype"), py::arg("cores"), py::arg("changes"))
      .def("copy", [](const Tiles& t) { return t; })
      .def_property_readonly("dtype", [](const Tiles& t) { return name_of(t.dtype); })
      .def_property_readonly("shapes",
                             [](const Tiles& t) {
                               return py::make_tuple(py::tuple(py::cast(t.shapes[0])), py::tuple(py::cast(t.shapes[1])),
                                                     py::tuple(py::cast(t.shapes[2])));
                             })
      .def_property_readonly("filter", [](const Tiles& t) { return t.filter; })
      .def_property_readonly("out_backprop", [](const Tiles& t) { return t.out_backprop; })
      .def_property_readonly("stride", [](const Tiles& t) { return py::tuple(py::cast(t.stride)); })
      .def_property_readonly("dilation", [](const Tiles& t) { return py::tuple(py::cast(t.dilation)); })
      .def_property_readonly("padding", [](const Tiles& t) { return py::tuple(py::cast(t.padding)); })
      .def_property_readonly("tiling", [](const Tiles& t) { return numbers(t.tiling); })
      .def(
          "start",
          [](Tiles& t, std::uint64_t positions, std::uint64_t products, std::uint32_t channels, std::uint32_t din,
             std::int32_t ho) {
            t.walk.set_single_shape(positions, products, channels);
            t.walk.set_start_position(din, ho);
          },
          py::arg("positions"), py::arg("products"), py::arg("channels"), py::arg("din"), py::arg("ho"))
      .def(
          "read_from",
          [](Tiles& t, const py::array& grad_output, std::int64_t grad_output_offset, const py::array& weight,
             std::int64_t weight_offset) {
            t.walk.set_grad_output(memory(grad_output, grad_output_offset));
            t.walk.set_weight(memory(weight, weight_offset));
            t.grad_output = grad_output;
            t.weight = weight;
          },
          py::arg("grad_output"), py::arg("grad_output_offset"), py::arg("weight"), py::arg("weight_offset"))
      .def(
          "iterate",
          [](Tiles& t, bool first) {
            bool more = false;
            without_gil([&] { more = t.walk.iterate(false, first); });
            return more;
          },
          py::arg("first"))
      .def_property_readonly("place",
                             [](const Tiles& t) {
                               const auto& [at, count] = t.walk.place();
                               return py::make_tuple(at[0], count[0], at[1], count[1]);
                             })
      .def(
          "write_to",
          [](const Tiles& t, py::array& gradient, std::int64_t offset) {
            t.walk.get_tensor_c(memory(gradient, offset), 0, false);
          },
          py::arg("gradient"), py::arg("offset"));
}

}  // namespace convbwd

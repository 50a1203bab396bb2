// Tensors of other libraries as NumPy arrays of the same memory. NumPy's own from_dlpack knows no
// bfloat16. The structures are those of the DLPack specification, https://dmlc.github.io/dlpack/latest/c_api.html.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/numpy_view.h"

namespace convbwd {
namespace {
namespace dlpack {

struct Tensor {
  void* data;
  std::int32_t device_type, device_id, ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct Versioned {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(Versioned*);
  std::uint64_t flags;  // bit 0: read-only
  Tensor tensor;
};

constexpr int kCpu = 1, kUnsigned = 1, kFloat = 2, kBfloat = 4, kFloat8E4m3fn = 10;

// Takes over what a capsule holds; the array keeps it alive.
template <class M>
py::array take(py::handle capsule, M* managed, const char* used_name, bool read_only) {
  const Tensor& t = managed->tensor;
  const int code = t.lanes == 1 ? t.code : -1;
  py::dtype dtype{py::dtype::num_of<double>()};
  if (code == kFloat && (t.bits == 64 || t.bits == 32 || t.bits == 16))
    dtype = py::dtype("f" + std::to_string(t.bits / 8));
  else if (code == kUnsigned && (t.bits == 8 || t.bits == 16))  // codes, perhaps
    dtype = py::dtype("u" + std::to_string(t.bits / 8));
  else if ((code == kBfloat && t.bits == 16) || (code == kFloat8E4m3fn && t.bits == 8))
    dtype = py::dtype::from_args(py::module_::import("ml_dtypes").attr(code == kBfloat ? "bfloat16" : "float8_e4m3fn"));
  else
    throw py::type_error(
        "its elements are not float64, float32, float16, bfloat16, float8_e4m3fn, or codes in uint8 or uint16");
  const std::vector<py::ssize_t> shape(t.shape, t.shape + t.ndim);
  if (!t.data && std::find(shape.begin(), shape.end(), 0) == shape.end())
    throw py::type_error("it has elements, but no memory");
  std::vector<py::ssize_t> strides(shape.size());
  py::ssize_t dense = t.bits / 8;
  for (std::size_t a = shape.size(); a-- > 0; dense *= shape[a])
    strides[a] = t.strides ? static_cast<py::ssize_t>(t.strides[a]) * (t.bits / 8) : dense;
  if (PyCapsule_SetName(capsule.ptr(), used_name) != 0) throw py::error_already_set();
  const py::capsule owner(managed, [](void* p) {
    if (auto* const m = static_cast<M*>(p); m->deleter) m->deleter(m);
  });
  // An empty tensor needs no memory, but an array has an address.
  void* const data = t.data ? static_cast<std::byte*>(t.data) + t.byte_offset : static_cast<void*>(managed);
  py::array array(dtype, shape, strides, data, owner);
  if (read_only) py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

}  // namespace dlpack
}  // namespace

// An export without a version does not say whether it may be written to: JAX's may not, those of early PyTorch may.
static bool of_torch(py::handle object) {
  return py::str(py::type::handle_of(object).attr("__module__")).cast<std::string>().starts_with("torch");
}

py::array from_dlpack(py::handle object) {
  const auto device = object.attr("__dlpack_device__")().cast<std::pair<int, int>>();
  if (device.first != dlpack::kCpu) throw py::type_error("it is not in the memory of the CPU");
  // PyTorch exports what is in memory, even where that are the values' negatives.
  if (const py::object is_neg = attribute_if_any(object, "is_neg"); is_neg && is_neg().cast<bool>())
    throw py::type_error("its negative bit is set, which resolve_neg() ends");
  py::object capsule;
  try {
    capsule = object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {  // a library from before DLPack 1.0
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = object.attr("__dlpack__")();
  }
  const auto held = [&](const char* name) -> void* {
    return PyCapsule_IsValid(capsule.ptr(), name) ? PyCapsule_GetPointer(capsule.ptr(), name) : nullptr;
  };
  if (auto* const v = static_cast<dlpack::Versioned*>(held("dltensor_versioned"))) {
    if (v->major != 1) throw py::type_error("it exports DLPack " + std::to_string(v->major) + ", not 1");
    return dlpack::take(capsule, v, "used_dltensor_versioned", v->flags & 1);
  }
  if (auto* const m = static_cast<dlpack::Managed*>(held("dltensor")))
    return dlpack::take(capsule, m, "used_dltensor", !of_torch(object));
  throw py::type_error("it exports no DLPack tensor, or one that was taken before");  // who took it renamed it
}

}  // namespace convbwd

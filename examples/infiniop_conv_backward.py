"""infiniop's ConvBackward by ctypes: the gradients of y = x * w for x = (1, 2, 3), w = (1, 10) and dy = (1, 1).

infiniop_conv_backward.c is the same in C. Run it with the library's path:

    python infiniop_conv_backward.py "$(python -m convbwd --libdir)/libconvbwd_infiniop.so"
"""

import ctypes
import sys
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ssize_t, c_void_p

POINTER = ctypes.POINTER
F32 = 13

library = ctypes.CDLL(sys.argv[1])
library.infiniopGetRecentErrMsg.restype = c_char_p
SIGNATURES = {
    "infiniopCreateHandle": [POINTER(c_void_p)],
    "infiniopDestroyHandle": [c_void_p],
    "infiniopCreateTensorDescriptor": [POINTER(c_void_p), c_size_t, POINTER(c_size_t), POINTER(c_ssize_t), c_int],
    "infiniopDestroyTensorDescriptor": [c_void_p],
    "infiniopCreateConvBackwardDescriptor": [c_void_p, POINTER(c_void_p), *[c_void_p] * 7, c_size_t],
    "infiniopGetConvBackwardWorkspaceSize": [c_void_p, POINTER(c_size_t)],
    "infiniopConvBackward": [c_void_p, c_void_p, c_size_t, *[c_void_p] * 7],
    "infiniopDestroyConvBackwardDescriptor": [c_void_p],
}
for name, argtypes in SIGNATURES.items():
    getattr(library, name).argtypes = argtypes


def call(name: str, *arguments: object) -> None:
    """Call a function of the library; exit with its message where it fails."""
    status = getattr(library, name)(*arguments)
    if status != 0:
        sys.exit(f"{name} failed with {status}: {library.infiniopGetRecentErrMsg().decode()}")


def tensor(*shape: int) -> c_void_p:
    """Describe a contiguous float32 tensor."""
    desc = c_void_p()
    call("infiniopCreateTensorDescriptor", byref(desc), len(shape), (c_size_t * len(shape))(*shape), None, F32)
    return desc


handle, op, size = c_void_p(), c_void_p(), c_size_t()
call("infiniopCreateHandle", byref(handle))
descriptors = tensor(1, 1, 2), tensor(1, 1, 3), tensor(1, 1, 2)  # grad_output, input, weight
pads, strides, dilations = (c_int * 1)(0), (c_int * 1)(1), (c_int * 1)(1)
call("infiniopCreateConvBackwardDescriptor", handle, byref(op), *descriptors, None, pads, strides, dilations, 1)
for desc in descriptors:
    call("infiniopDestroyTensorDescriptor", desc)

dy, x, w = (c_float * 2)(1, 1), (c_float * 3)(1, 2, 3), (c_float * 2)(1, 10)
dx, dw, db = (c_float * 3)(), (c_float * 2)(), (c_float * 1)()
call("infiniopGetConvBackwardWorkspaceSize", op, byref(size))
workspace = ctypes.create_string_buffer(size.value)
call("infiniopConvBackward", op, workspace, size, dx, dw, db, dy, x, w, None)
print(f"dx = {list(dx)}, dw = {list(dw)}, db = {list(db)}")

call("infiniopDestroyConvBackwardDescriptor", op)
call("infiniopDestroyHandle", handle)
sys.exit((list(dx), list(dw), list(db)) != ([1, 11, 10], [3, 5], [2]))

"""
Convolutions for JAX, computed by convbwd on the CPU: under `jit`, `vmap` and `grad`, any number of times.

Forward-mode differentiation (`jvp`, `jacfwd`, `hessian`) is what JAX does not have for functions of this kind;
``jacrev(grad(f))`` is a Hessian without it.

Where JAX has a single CPU, or several threads of Python run compiled functions at once, a call can wait for ever: that
is so of all functions that JAX calls back (`jax.pure_callback`), whose arguments it copies on a thread that may be the
one that waits for them. ``jax.config.update("jax_cpu_enable_async_dispatch", False)`` before the first array is made
prevents it.

>>> import jax, jax.numpy as jnp
>>> import convbwd.jax
>>> loss = lambda w: (convbwd.jax.convolution(jnp.ones((1, 1, 4)), w) ** 2).sum()
>>> print(jax.jit(jax.grad(loss))(jnp.ones((1, 1, 3))))
[[[12. 12. 12.]]]
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from convbwd import _api, _core
from convbwd._interop import bias_gradient, frozen

Options: TypeAlias = tuple[tuple[str, Any], ...]


_OPTIONS = (
    *("stride", "padding", "dilation", "transposed", "output_padding", "groups", "data_format"),
    *("algorithm", "precision", "cube_math_type", "soc"),
)


def _empty(kind: Any) -> NDArray[Any]:
    """Return an array that stands for its shape and dtype, in the memory of one element."""
    return np.broadcast_to(np.zeros((), kind.dtype), kind.shape)


def _call(function: Any, result: jax.ShapeDtypeStruct, *arrays: jax.Array) -> jax.Array:
    """Run a function of NumPy arrays where JAX runs."""
    called: jax.Array = jax.pure_callback(
        lambda *a: np.asarray(function(*(np.asarray(one) for one in a)), result.dtype),
        result,
        *arrays,
        vmap_method="sequential",
    )
    return called


# Three bilinear functions, whose gradients are each other: the output from input and weight (and a bias, or None), the
# input's gradient from that of the output and the weight, the weight's from that of the output and the input. A shape
# is all that they need of what they compute the gradient of.


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _output(x: jax.Array, w: jax.Array, b: jax.Array | None, options: Options) -> jax.Array:
    arrays = (x, w) if b is None else (x, w, b)
    shape, dtype = _core.output(_empty(x), _empty(w), None if b is None else _empty(b), **dict(options))
    return _call(lambda *a: _api.convolution(*a, **dict(options)), jax.ShapeDtypeStruct(shape, dtype), *arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _input_gradient(dy: jax.Array, w: jax.Array, x: jax.ShapeDtypeStruct, options: Options) -> jax.Array:
    def compute(dy: Any, w: Any) -> Any:
        return _api.convolution_backward(dy, _empty(x), w, output_mask=(True, False, False), **dict(options))[0]

    return _call(compute, x, dy, w)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _weight_gradient(dy: jax.Array, x: jax.Array, w: jax.ShapeDtypeStruct, options: Options) -> jax.Array:
    def compute(dy: Any, x: Any) -> Any:
        return _api.convolution_backward(dy, x, _empty(w), output_mask=(False, True, False), **dict(options))[1]

    return _call(compute, w, dy, x)


def _kind(a: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape, a.dtype)


_output.defvjp(
    lambda x, w, b, options: (_output(x, w, b, options), (x, w, b)),
    lambda options, saved, g: (
        _input_gradient(g, saved[1], _kind(saved[0]), options),
        _weight_gradient(g, saved[0], _kind(saved[1]), options),
        None
        if saved[2] is None
        else bias_gradient(jnp, g, saved[2].dtype, saved[1].ndim, dict(options).get("data_format")),
    ),
)
_input_gradient.defvjp(
    lambda dy, w, x, options: (_input_gradient(dy, w, x, options), (dy, w)),
    lambda x, options, saved, g: (
        _output(g, saved[1], None, options),
        _weight_gradient(saved[0], g, _kind(saved[1]), options),
    ),
)
_weight_gradient.defvjp(
    lambda dy, x, w, options: (_weight_gradient(dy, x, w, options), (dy, x)),
    lambda w, options, saved, g: (
        _output(saved[1], g, None, options),
        _input_gradient(saved[0], g, _kind(saved[1]), options),
    ),
)


def convolution(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None, **options: Any) -> jax.Array:
    """
    Convolve as `convbwd.convolution` does, on JAX's arrays.

    Parameters
    ----------
    input, weight, bias : jax.Array
        As in `convbwd.convolution`. Their dtypes may differ; a gradient has that of its operand.
    **options
        The other arguments of `convbwd.convolution` but ``dtype`` and ``like``, by name; they are static.

    Returns
    -------
    jax.Array
        The output.

    Raises
    ------
    ValueError, TypeError
        As `convbwd.convolution`.
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"convbwd.jax.convolution() got an unexpected keyword argument {name!r}")
    for name, array in (("input", input), ("weight", weight), ("bias", bias)):
        if not hasattr(array, "dtype") and not (array is None and name == "bias"):
            raise TypeError(f"convolution: {name} must be an array, got {type(array).__name__}")
    return _output(input, weight, bias, tuple((name, frozen(value)) for name, value in sorted(options.items())))

"""
Convolutions for HIPS autograd, differentiable any number of times.

>>> import autograd, autograd.numpy as np
>>> import convbwd.autograd
>>> loss = lambda w: np.sum(convbwd.autograd.convolution(np.ones((1, 1, 4)), w) ** 2)
>>> autograd.grad(loss)(np.ones((1, 1, 3)))
array([[[12., 12., 12.]]])
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as np
from autograd.extend import defvjp, primitive

from convbwd import _api
from convbwd._interop import bias_gradient, frozen

# Three bilinear functions, whose gradients are each other: the output from input and weight (and a bias, or None), the
# input's gradient from that of the output and the weight, the weight's from that of the output and the input. What they
# return the shape of has no influence.


@primitive  # type: ignore[untyped-decorator]
def _output(x: Any, w: Any, b: Any, options: dict[str, Any]) -> Any:
    return _api.convolution(x, w, b, **options)


@primitive  # type: ignore[untyped-decorator]
def _input_gradient(dy: Any, w: Any, x: Any, options: dict[str, Any]) -> Any:
    return _api.convolution_backward(dy, x, w, output_mask=(True, False, False), **options)[0]


@primitive  # type: ignore[untyped-decorator]
def _weight_gradient(dy: Any, x: Any, w: Any, options: dict[str, Any]) -> Any:
    return _api.convolution_backward(dy, x, w, output_mask=(False, True, False), **options)[1]


defvjp(
    _output,
    lambda y, x, w, b, options: lambda g: _input_gradient(g, w, x, options),
    lambda y, x, w, b, options: lambda g: _weight_gradient(g, x, w, options),
    lambda y, x, w, b, options: lambda g: bias_gradient(np, g, b.dtype, np.ndim(w), options.get("data_format")),
    argnums=(0, 1, 2),
)
defvjp(
    _input_gradient,
    lambda dx, dy, w, x, options: lambda g: _output(g, w, None, options),
    lambda dx, dy, w, x, options: lambda g: _weight_gradient(dy, g, w, options),
    None,
    argnums=(0, 1, 2),
)
defvjp(
    _weight_gradient,
    lambda dw, dy, x, w, options: lambda g: _output(x, g, None, options),
    lambda dw, dy, x, w, options: lambda g: _input_gradient(dy, g, x, options),
    None,
    argnums=(0, 1, 2),
)


def convolution(input: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
    """
    Convolve as `convbwd.convolution` does, differentiably.

    Parameters
    ----------
    input, weight, bias : array
        As in `convbwd.convolution`, or what autograd traces instead of them.
    **options
        The other arguments of `convbwd.convolution` but ``like``, by name.

    Returns
    -------
    array
        The output.

    Raises
    ------
    ValueError, TypeError
        As `convbwd.convolution`.
    """
    if "like" in options:
        raise TypeError("convbwd.autograd.convolution() got an unexpected keyword argument 'like'")
    return _output(input, weight, bias, {name: frozen(value) for name, value in options.items()})

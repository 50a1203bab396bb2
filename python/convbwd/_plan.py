"""Plans: a gradient computation prepared once and carried out many times."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from html import escape
from typing import Any, NoReturn, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from convbwd import _core
from convbwd._api import Gradients, IntOrInts, Mask, Out, Padding
from convbwd._interop import numpy_dtype
from convbwd._layouts import Packed


@runtime_checkable
class ShapeDtype(Protocol):
    """What says its shape and dtype: an array, a tensor of any library, a ``jax.ShapeDtypeStruct``."""

    @property
    def shape(self) -> Sequence[SupportsIndex]:
        """Sizes of the axes."""

    @property
    def dtype(self) -> Any:
        """Type of the elements."""


Spec: TypeAlias = ShapeDtype | Sequence[SupportsIndex] | tuple[Sequence[SupportsIndex], DTypeLike]


def _stand_in(name: str, spec: Any) -> NDArray[Any] | Packed:
    """Return an array to plan with: the one given, or one without memory."""
    if isinstance(spec, np.ndarray | Packed):
        return spec
    try:
        shape, dtype = spec, np.float32
        if isinstance(spec, ShapeDtype):
            shape, dtype = spec.shape, spec.dtype
        elif len(spec) == 2 and isinstance(spec[0], Sequence | np.ndarray):
            shape, dtype = spec
            if dtype is None:
                raise TypeError("a dtype cannot be None")
        sizes = [operator.index(n) for n in shape]
        if any(not 0 <= n < 2**63 for n in sizes):
            raise ValueError(f"an array cannot have the shape {tuple(sizes)}")
        return _core.stand_in(numpy_dtype(dtype), sizes)
    except (TypeError, ValueError, NotImplementedError, ModuleNotFoundError) as error:
        # the last two of a memoryview with axes, and a dtype of ml_dtypes
        kind = ValueError if isinstance(error, ValueError) else TypeError
        expected = "an array, a shape or (shape, dtype)"
        raise kind(f"plan: {name} must be {expected}, got {type(spec).__name__}: {error}") from error


class Plan:
    """
    How a `convolution_backward` of certain shapes and dtypes will be carried out; `plan` makes one.

    A plan is called with arrays and computes what `convolution_backward` does with the plan's parameters. It never
    changes, and many threads may call it at once. The number of threads that it uses is the one that was set when it
    was made.

    """

    __slots__ = ("__weakref__", "_plan", "_run")

    def __init__(self, plan: _core.Plan) -> None:
        self._plan = plan
        self._run = plan.run

    @property
    def workspace_size(self) -> int:
        """
        Bytes that an array or buffer must have to serve as ``workspace``, wherever it begins.

        That is for arrays with the planned strides, and results without gaps. Others may need more; the error says how
        much.
        """
        return self._plan.workspace_size

    @property
    def flops(self) -> float:
        """
        Floating point operations of one call.

        Two for each product of the definition, one for each element that enters the gradient of the bias.
        """
        return float(sum(one["flops"] for one in self._plan.passes()))

    @property
    def bytes_moved(self) -> float:
        """Bytes of operands and results, each read or written once for each gradient: the least that must be moved."""
        return float(sum(one["bytes"] for one in self._plan.passes()))

    def __call__(
        self,
        grad_output: ArrayLike,
        input: ArrayLike,
        weight: ArrayLike,
        *,
        out: Out = None,
        workspace: Any = None,
    ) -> Gradients:
        """
        Compute the gradients.

        Arrays with the strides that were planned, given ``out`` as a tuple and ``workspace``, are the quickest: such a
        call allocates nothing.

        Parameters
        ----------
        grad_output, input, weight : array_like
            Arrays of the planned shapes and dtypes; their strides may differ.
        out : None or sequence of 3 arrays or None, optional
            Where to write the gradients, as in `convolution_backward`.
        workspace : None, ndarray or buffer, optional
            At least `workspace_size` writable bytes of scratch memory, which share none with the arrays. Calls at the
            same time need one each. None takes memory that the library keeps for the thread.

        Returns
        -------
        grad_input, grad_weight, grad_bias : array or None
            As `convolution_backward` returns them; ``out`` itself where it is a tuple of all of them.

        Raises
        ------
        ValueError, TypeError
            If a shape, a dtype or ``workspace`` is not as planned; and as `convolution_backward`.
        """
        return self._run(grad_output, input, weight, out, workspace)

    def __copy__(self) -> Plan:
        """Return the plan, which never changes."""
        return self

    def __deepcopy__(self, memo: object) -> Plan:
        """Return the plan, which never changes."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a plan is for the processor and the build that made it."""
        raise TypeError("a Plan cannot be pickled: make one with plan() in the process that uses it")

    def empty(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]:
        """
        Return new uninitialised arrays to serve as ``out``; None for gradients that the plan leaves out.

        A plan that accumulates adds to what they hold: fill them with zeros first.
        """
        dx, dw, db = (None if one is None else np.empty(*one) for one in self._plan.results())
        return dx, dw, db

    def explain(self, gflops: float | None = None, gbytes: float | None = None) -> str:
        """
        Tell how each gradient is computed: algorithm, tiles, tasks, threads, workspace, operations and bytes.

        The times are estimates for one thread. Algorithms that would take less, and were refused because of the
        precision or their workspace, are named.

        Parameters
        ----------
        gflops, gbytes : float, optional
            What the machine can do, in 1e9 floating point operations and bytes a second. With both, each gradient gets
            the least time that the roofline model allows its products [Williams2009]_, if operands come from memory.
            Winograd's algorithm and Fourier transforms, with fewer products, and caches may stay below it.

        Returns
        -------
        str
            The problem, then a few lines for each gradient.

        Raises
        ------
        ValueError
            If one of ``gflops`` and ``gbytes`` is given without the other, or is not more than 0.
        TypeError
            If one is no number.

        References
        ----------
        .. [Williams2009] S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model
           for multicore architectures", Communications of the ACM 52(4), 2009.
        """
        if (gflops is None) != (gbytes is None):
            raise ValueError("explain: gflops and gbytes must be given together, got one of them")
        for name, value in (("gflops", gflops), ("gbytes", gbytes)):
            if value is not None and not isinstance(value, numbers.Real):
                raise TypeError(f"explain: {name} must be a number, got {type(value).__name__}")
        if gflops is not None and gbytes is not None and not (gflops > 0 and gbytes > 0):
            raise ValueError(f"explain: gflops and gbytes must be more than 0, got {gflops} and {gbytes}")
        passes = self._plan.passes()
        of_passes = {f"{one['result']}: {one['text']}" for one in passes}
        lines = [line for line in self._plan.explain().splitlines() if line not in of_passes]
        for one in passes:
            flops, moved = one["flops"], one["bytes"]
            lines += [f"{one['result']}: {one['text']}"]
            lines += [f"  {flops:.3g} operations, {moved:.3g} bytes, {flops / moved:.3g} operations a byte"]
            if gflops is not None and gbytes is not None:
                compute, memory = flops / gflops / 1e9, moved / gbytes / 1e9
                bound = "computing" if compute > memory else "memory"
                lines[-1] += f"; at least {max(compute, memory):.3g} s, bound by {bound}"
        return "\n".join([*lines, f"workspace: {self.workspace_size} bytes"])

    def __repr__(self) -> str:
        """Return the explanation, indented."""
        return "<convbwd.Plan " + self.explain().replace("\n", "\n  ") + ">"

    def _repr_html_(self) -> str:
        """Return the explanation as a table, with a picture of the tiles of each gradient, for notebooks."""
        rows = "".join(
            f"<tr><td style='text-align:left'><b>{escape(one['result'])}</b></td>"
            f"<td>{_picture(one['image'], one['tile'])}</td>"
            f"<td style='text-align:left'>{escape(one['text'])}<br>{one['flops']:.3g} operations, "
            f"{one['bytes']:.3g} bytes</td></tr>"
            for one in self._plan.passes()
        )
        problem = escape(self._plan.explain().partition("\n")[0])
        return (
            f"<table><caption style='text-align:left'>convbwd.Plan of <code>{problem}</code>, "
            f"workspace {self.workspace_size} bytes</caption>{rows}</table>"
        )


def _picture(image: tuple[int, int, int], tile: tuple[int, int, int]) -> str:
    """Draw the last two axes of an image, and the borders of its tiles, as SVG."""
    if 0 in tile:
        return ""
    (_, high, wide), (_, tile_high, tile_wide) = image, tile
    scale = 96 / max(high, wide)
    # Borders closer than three pixels would be a grey area.
    rows = [y * scale for y in range(0, high, tile_high)] if tile_high * scale >= 3 else [0.0]
    columns = [x * scale for x in range(0, wide, tile_wide)] if tile_wide * scale >= 3 else [0.0]
    width, height = max(wide * scale, 2), max(high * scale, 2)
    lines = [f"M0 {y:.1f}H{width:.1f}" for y in rows[1:]] + [f"M{x:.1f} 0V{height:.1f}" for x in columns[1:]]
    first = (min(tile_wide * scale, width), min(tile_high * scale, height))
    label = f"{high}x{wide} image in tiles of {min(tile_high, high)}x{min(tile_wide, wide)}"
    return (
        f"<svg width='{width + 2:.0f}' height='{height + 2:.0f}' viewBox='-1 -1 {width + 2:.1f} {height + 2:.1f}' "
        f"role='img'><title>{label}</title>"
        f"<rect width='{width:.1f}' height='{height:.1f}' fill='#e8eef7' stroke='#345'/>"
        f"<rect width='{first[0]:.1f}' height='{first[1]:.1f}' fill='#f4a259'/>"
        f"<path d='{''.join(lines)}' stroke='#345' stroke-width='.7'/></svg>"
    )


def plan(
    grad_output: Spec,
    input: Spec,
    weight: Spec,
    bias_sizes: Sequence[SupportsIndex] | None = None,
    stride: IntOrInts = 1,
    padding: Padding = 0,
    dilation: IntOrInts = 1,
    transposed: bool = False,
    output_padding: IntOrInts = 0,
    groups: SupportsIndex = 1,
    output_mask: Mask = (True, True, True),
    *,
    data_format: str | None = None,
    algorithm: str = "auto",
    precision: str = "default",
    cube_math_type: SupportsIndex = 0,
    soc: str = "a2",
    dtype: str | None = None,
    accumulate: bool = False,
    per_sample: bool = False,
) -> Plan:
    """
    Plan a `convolution_backward` from the shapes and dtypes of its arrays.

    Parameters
    ----------
    grad_output, input, weight : array, anything with ``shape`` and ``dtype``, (shape, dtype), or shape
        What the calls will be given. NumPy's arrays are planned for with their strides, others as C-contiguous; a bare
        shape is that of a float32 array. No data is read, and no memory allocated for it.
    bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask, data_format, algorithm
        As in `convolution_backward`.
    precision, cube_math_type, soc, dtype
        As in `convolution_backward`.
    accumulate, per_sample : bool, optional
        As in `convolution_backward`; every call does it.

    Returns
    -------
    Plan
        To be called with the arrays.

    Raises
    ------
    ValueError, TypeError
        As `convolution_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> import convbwd
    >>> plan = convbwd.plan((8, 16, 32, 32), (8, 3, 32, 32), (16, 3, 3, 3), padding=1)
    >>> gradients, workspace = plan.empty(), np.empty(plan.workspace_size, np.uint8)
    >>> dy, x, w = (np.ones(s, np.float32) for s in ((8, 16, 32, 32), (8, 3, 32, 32), (16, 3, 3, 3)))
    >>> plan(dy, x, w, out=gradients, workspace=workspace) is gradients
    True
    """
    return Plan(
        _core.Plan(
            _stand_in("grad_output", grad_output),
            _stand_in("input", input),
            _stand_in("weight", weight),
            bias_sizes,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            output_mask,
            data_format,
            algorithm,
            precision,
            cube_math_type,
            soc,
            dtype,
            accumulate,
            per_sample,
        )
    )

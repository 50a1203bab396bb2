"""Check gradients against finite differences."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class GradcheckError(AssertionError):
    """A gradient differs from finite differences; the message is a table of the worst elements."""


@dataclasses.dataclass(frozen=True)
class Element:
    """One element of a gradient, as it was computed and as finite differences have it."""

    input: int
    index: tuple[int, ...]
    analytic: float
    numeric: float
    tolerance: float

    @property
    def excess(self) -> float:
        """Error over tolerance: more than 1 is a failure. Not finite values, and any error of none, are infinite."""
        error = abs(self.analytic - self.numeric)
        if error == 0:
            return 0.0
        return error / self.tolerance if np.isfinite(error) and self.tolerance > 0 else float("inf")


@dataclasses.dataclass(frozen=True)
class GradcheckReport:
    """
    What `gradcheck` found. Its text is a table of the worst elements.

    Attributes
    ----------
    checked : int
        Elements that were compared.
    failed : int
        Those beyond their tolerance.
    worst : tuple of elements
        The worst of all, worst first. Each has ``input``, ``index``, ``analytic``, ``numeric``, ``tolerance`` and
        ``excess``, the error over the tolerance.
    """

    checked: int
    failed: int
    worst: tuple[Element, ...]

    def __str__(self) -> str:
        """Return a table of the worst elements."""
        lines = [f"{self.failed} of {self.checked} elements beyond their tolerance; the worst:"]
        lines += [f"{'input':>5}  {'index':<18} {'gradient':>15} {'differences':>15} {'error/tolerance':>16}"]
        lines += [
            f"{e.input:>5}  {e.index!s:<18} {e.analytic:>15.7g} {e.numeric:>15.7g} {e.excess:>16.3g}"
            for e in self.worst
        ]
        return "\n".join(lines)


def gradcheck(
    fn: Callable[..., tuple[ArrayLike, Callable[[NDArray[Any]], Sequence[ArrayLike | None]]]],
    inputs: Sequence[ArrayLike],
    *,
    eps: float = 1e-5,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    most: int = 1000,
    seed: int = 0,
    worst: int = 10,
) -> GradcheckReport:
    """
    Compare the gradients of a function, such as a layer of one's own, with central differences.

    Parameters
    ----------
    fn : callable
        ``fn(*inputs)`` returns the output and a function that takes the gradient with respect to the output and
        returns those with respect to the inputs, None for inputs that have none.
    inputs : sequence of array_like
        Where to check. Taken as float64, which differences need.
    eps : float, optional
        Each element is moved by this much up and down.
    rtol, atol : float, optional
        An error of ``atol + rtol * abs(numeric)`` is tolerated. Central differences err by about eps**2 and
        1e-16 / eps, both relative to the size of the output.
    most : int, optional
        At most so many elements of each input are checked, drawn at random.
    seed : int, optional
        Of the random gradient of the output, and of that draw.
    worst : int, optional
        Rows of the table.

    Returns
    -------
    GradcheckReport
        Its text is a table of the worst elements.

    Raises
    ------
    GradcheckError
        If an error is beyond its tolerance; the message is that table.
    ValueError
        If ``fn`` returns a wrong number of gradients, one of a wrong shape, or none that has an element; if ``eps`` is
        not more than 0, ``most`` less than 1, or another number negative.
    TypeError
        If ``fn`` returns anything but an output and a function; if an input or a gradient is complex.

    Examples
    --------
    >>> import numpy as np
    >>> import convbwd
    >>> def layer(x, w):
    ...     y = convbwd.convolution(x, w, padding=1)
    ...     return y, lambda dy: convbwd.convolution_backward(dy, x, w, padding=1)[:2]
    >>> report = convbwd.gradcheck(layer, [np.random.rand(2, 3, 5, 5), np.random.rand(4, 3, 3, 3)])
    >>> report.failed
    0
    """
    if not 0 < eps < math.inf:
        raise ValueError(f"gradcheck: eps must be finite and more than 0, got {eps}")
    most, worst = operator.index(most), operator.index(worst)
    for name, value, least in (("rtol", rtol, 0), ("atol", atol, 0), ("most", most, 1), ("worst", worst, 0)):
        if not value >= least:
            raise ValueError(f"gradcheck: {name} must be at least {least}, got {value}")
    if isinstance(inputs, np.ndarray):
        raise TypeError("gradcheck: inputs must be a sequence of arrays, got ndarray")
    inputs = list(inputs)  # an iterator gives them once
    if any(np.iscomplexobj(a) for a in inputs):
        raise TypeError("gradcheck: inputs must be real, got a complex one")
    rng = np.random.default_rng(seed)
    arrays = [np.array(a, np.float64) for a in inputs]
    returned: Any = fn(*(a.copy() for a in arrays))
    if not (isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1])):
        raise TypeError("gradcheck: fn must return its output and a function for its gradients, in a tuple")
    output, backward = returned
    if output is None or np.iscomplexobj(output):
        got = "None" if output is None else "a complex one"
        raise TypeError(f"gradcheck: the output must be a real array, got {got}")
    cotangent = rng.uniform(0.5, 1.5, np.shape(output)) * rng.choice([-1.0, 1.0], np.shape(output))
    returned = backward(cotangent.copy())
    if not isinstance(returned, Iterable):
        raise TypeError(f"gradcheck: gradients must be a sequence, got {type(returned).__name__}")
    gradients = list(returned)
    if len(gradients) != len(arrays):
        raise ValueError(f"gradcheck: fn must return a gradient for each of {len(arrays)} inputs, got {len(gradients)}")
    if any(np.iscomplexobj(g) for g in gradients):
        raise TypeError("gradcheck: gradients must be real, got a complex one")
    elements = []
    for i, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        if gradient is None:
            continue
        analytic = np.array(gradient, np.float64)  # copies: calls may reuse their memory
        if analytic.shape != array.shape:
            raise ValueError(f"gradcheck: gradient {i} must have shape {array.shape}, got {analytic.shape}")
        for flat in np.sort(rng.permutation(array.size)[:most]):
            index = tuple(int(k) for k in np.unravel_index(flat, array.shape))
            ends = []
            for step in (eps, -eps):
                moved = [a.copy() for a in arrays]
                moved[i][index] += step
                ends.append(np.array(fn(*moved)[0], np.float64))
            numeric = float(np.sum((ends[0] - ends[1]) * cotangent)) / (2 * eps)
            elements.append(Element(i, index, float(analytic[index]), numeric, atol + rtol * abs(numeric)))
    if not elements:
        raise ValueError("gradcheck: fn must return a gradient that has elements, got none")
    elements.sort(key=lambda e: -e.excess)
    failed = sum(e.excess > 1 for e in elements)
    report = GradcheckReport(len(elements), failed, tuple(elements[:worst]))
    if failed:
        raise GradcheckError(str(report))
    return report

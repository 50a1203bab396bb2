"""Hypothesis strategies: valid problems that shrink towards one-dimensional, dense, contiguous float64 ones."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from cases import Case, draw_case

T = TypeVar("T")


class _HypothesisSource:
    """A `cases.Source` whose choices hypothesis makes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))


@st.composite
def cases(draw: st.DrawFn, scale: int = 1, **fixed: Any) -> Case:
    """Draw a valid case, some of its fields fixed by the caller; fixed dtypes are read as they are."""
    plain = {"cube_math_type": 0} if "dtypes" in fixed else {}
    return dataclasses.replace(draw_case(_HypothesisSource(draw), scale), **plain | fixed)

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypedDict

from numpy.typing import ArrayLike, NDArray

class _Plan(TypedDict):
    workspace_bytes: int
    explain: str

__version__: str

def convolution_backward(
    grad_output: ArrayLike,
    input: ArrayLike,
    weight: ArrayLike,
    bias_sizes: Sequence[SupportsIndex] | None = None,
    stride: SupportsIndex | Sequence[SupportsIndex] = 1,
    padding: str | SupportsIndex | Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]] = 0,
    dilation: SupportsIndex | Sequence[SupportsIndex] = 1,
    transposed: bool = False,
    output_padding: SupportsIndex | Sequence[SupportsIndex] = 0,
    groups: SupportsIndex = 1,
    output_mask: Sequence[bool] = (True, True, True),
    data_format: str | None = None,
    algorithm: str = "auto",
    precision: str = "default",
    cube_math_type: SupportsIndex = 0,
    soc: str = "a2",
    dtype: str | None = None,
) -> tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]: ...
def plan(
    grad_output: ArrayLike,
    input: ArrayLike,
    weight: ArrayLike,
    bias_sizes: Sequence[SupportsIndex] | None = None,
    stride: SupportsIndex | Sequence[SupportsIndex] = 1,
    padding: str | SupportsIndex | Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]] = 0,
    dilation: SupportsIndex | Sequence[SupportsIndex] = 1,
    transposed: bool = False,
    output_padding: SupportsIndex | Sequence[SupportsIndex] = 0,
    groups: SupportsIndex = 1,
    output_mask: Sequence[bool] = (True, True, True),
    data_format: str | None = None,
    algorithm: str = "auto",
    precision: str = "default",
    cube_math_type: SupportsIndex = 0,
    soc: str = "a2",
    dtype: str | None = None,
) -> _Plan: ...
def convolution(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: SupportsIndex | Sequence[SupportsIndex] = 1,
    padding: str | SupportsIndex | Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]] = 0,
    dilation: SupportsIndex | Sequence[SupportsIndex] = 1,
    transposed: bool = False,
    output_padding: SupportsIndex | Sequence[SupportsIndex] = 0,
    groups: SupportsIndex = 1,
    data_format: str | None = None,
    algorithm: str = "auto",
    precision: str = "default",
    cube_math_type: SupportsIndex = 0,
    soc: str = "a2",
    dtype: str | None = None,
) -> NDArray[Any]: ...
def cast(array: ArrayLike, format: str, source: str | None = None, saturate: bool = False) -> NDArray[Any]: ...
def packed_shape(format: str, shape: Sequence[int], groups: int, c0: int) -> tuple[int, ...]: ...
def convert_format(
    target: NDArray[Any],
    target_format: str,
    source: NDArray[Any],
    source_format: str,
    shape: Sequence[int],
    groups: int,
    c0: int,
) -> None: ...
def set_num_threads(n: SupportsIndex) -> None: ...
def get_num_threads() -> int: ...
def build_info() -> dict[str, str]: ...

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

class _Pass(TypedDict):
    result: str
    text: str
    image: tuple[int, int, int]
    tile: tuple[int, int, int]
    flops: float
    bytes: float
    sums: tuple[int, ...]

class Plan:
    def __init__(
        self,
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
        output_mask: Sequence[bool] | NDArray[np.bool_] = (True, True, True),
        data_format: str | None = None,
        algorithm: str = "auto",
        precision: str = "default",
        cube_math_type: SupportsIndex = 0,
        soc: str = "a2",
        dtype: str | None = None,
        accumulate: bool = False,
        per_sample: bool = False,
        function: str = "plan",
    ) -> None: ...
    @property
    def workspace_size(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    def run(
        self,
        grad_output: ArrayLike,
        input: ArrayLike,
        weight: ArrayLike,
        out: Sequence[Any] | None,
        workspace: Any,
    ) -> tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]: ...
    def explain(self) -> str: ...
    def passes(self) -> list[_Pass]: ...
    def results(self) -> tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...]: ...

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
    output_mask: Sequence[bool] | NDArray[np.bool_] = (True, True, True),
    data_format: str | None = None,
    algorithm: str = "auto",
    precision: str = "default",
    cube_math_type: SupportsIndex = 0,
    soc: str = "a2",
    dtype: str | None = None,
    out: Sequence[Any] | None = None,
    accumulate: bool = False,
    per_sample: bool = False,
    sums: Sequence[SupportsIndex] | None = None,
) -> tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]: ...
def decode(array: ArrayLike, format: str | None = None) -> NDArray[Any]: ...
def as_array(
    argument: Any, function: str = "as_array", name: str = "argument", dtype: str | None = None
) -> NDArray[Any]: ...
def output(
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
) -> tuple[tuple[int, ...], np.dtype[Any]]: ...
def stand_in(dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]: ...
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
def packed_shape(
    format: str, shape: Sequence[SupportsIndex], groups: SupportsIndex, c0: SupportsIndex
) -> tuple[int, ...]: ...
def convert_format(
    target: NDArray[Any],
    target_format: str,
    source: NDArray[Any],
    source_format: str,
    shape: Sequence[int],
    groups: int,
    c0: int,
) -> None: ...
def conv3d_backprop_input(
    input_size: Sequence[SupportsIndex],
    filter: ArrayLike,
    out_backprop: ArrayLike,
    strides: Sequence[SupportsIndex],
    pads: Sequence[SupportsIndex] | None,
    dilations: Sequence[SupportsIndex],
    groups: SupportsIndex,
    data_format: str,
    filter_format: str | None,
    padding: str | None,
    enable_hf32: bool,
    dtype: str | None,
) -> NDArray[Any]: ...
def conv3d_backprop_filter(
    input: ArrayLike,
    filter_size: Sequence[SupportsIndex],
    out_backprop: ArrayLike,
    strides: Sequence[SupportsIndex],
    pads: Sequence[SupportsIndex] | None,
    dilations: Sequence[SupportsIndex],
    groups: SupportsIndex,
    data_format: str,
    filter_format: str | None,
    padding: str | None,
    enable_hf32: bool,
    dtype: str | None,
) -> NDArray[Any]: ...

class InputTiles:
    def __init__(
        self,
        input_size: Sequence[SupportsIndex],
        filter: ArrayLike,
        out_backprop: ArrayLike,
        strides: Sequence[SupportsIndex],
        pads: Sequence[SupportsIndex] | None,
        dilations: Sequence[SupportsIndex],
        data_format: str,
        filter_format: str | None,
        padding: str | None,
        dtype: str | None,
        cores: SupportsIndex,
        changes: dict[str, SupportsIndex],
    ) -> None: ...
    def copy(self) -> InputTiles: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]: ...
    @property
    def filter(self) -> NDArray[Any]: ...
    @property
    def out_backprop(self) -> NDArray[Any]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def dilation(self) -> tuple[int, ...]: ...
    @property
    def padding(self) -> tuple[int, ...]: ...
    @property
    def tiling(self) -> dict[str, int]: ...
    def start(self, positions: int, products: int, channels: int, din: int, ho: int) -> None: ...
    def read_from(
        self, grad_output: NDArray[Any], grad_output_offset: int, weight: NDArray[Any], weight_offset: int
    ) -> None: ...
    def iterate(self, first: bool) -> bool: ...
    @property
    def place(self) -> tuple[int, int, int, int]: ...
    def write_to(self, gradient: NDArray[Any], offset: int) -> None: ...

def set_num_threads(n: SupportsIndex) -> None: ...
def get_num_threads() -> int: ...
def build_info() -> dict[str, str]: ...

"""
Gradients of convolutions of Dask arrays: images larger than memory, on the threads of a machine or on many machines.

>>> import dask.array as da
>>> import convbwd.dask
>>> x, w = da.ones((1, 2, 64, 64), chunks=(1, 2, 16, 64)), da.ones((4, 2, 3, 3), chunks=-1)
>>> dy = da.ones((1, 4, 64, 64), chunks=(1, 4, 16, 64))
>>> dx, dw, db = convbwd.dask.convolution_backward(dy, x, w, padding=1)
>>> dx.chunks == x.chunks, db.compute()
(True, array([4096., 4096., 4096., 4096.]))
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, TypeAlias

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import ArrayLike, NDArray

from convbwd import _core
from convbwd._api import IntOrInts, Mask, Padding
from convbwd._interop import frozen
from convbwd._layouts import Packed

Range: TypeAlias = tuple[int, int]
Graph: TypeAlias = dict[Any, Any]

_FAN_IN = 8  # partial sums that one task of a tree adds


@dataclasses.dataclass(frozen=True)
class _Axis:
    """One spatial axis of ``y[o] = sum over t of x[o * stride + t * dilation - before] * w[t]``."""

    x: int
    y: int
    stride: int
    dilation: int
    reach: int  # dilation * (kernel - 1)
    before: int

    def read(self, to_x: bool, low: int, high: int) -> Range:
        """Return the positions of y that positions [low, high) of x read, or those of x that positions of y read."""
        if to_x:
            first = min(-((self.reach - self.before - low) // self.stride), (low + self.before) // self.stride)
            first, last, size = first, (high - 1 + self.before) // self.stride, self.y
        else:
            first, size = low * self.stride - self.before, self.x
            last = (high - 1) * self.stride - self.before + self.reach
        return max(0, first), min(size, last + 1)

    def part(self, to_x: bool, low: int, high: int, tile: int) -> tuple[Range, Range]:
        """
        Return the least part around [low, high) of x (or y) whose elements are summed in the order of the whole.

        It has a position that every tap of every phase of the stride reaches, two windows, and whole tiles, if
        these have more than one output. Second, the part of y (or x) that it reads. Tiles read up to as many
        positions beyond the windows as they have outputs: what is there must not change from part to whole,
        even if it is multiplied by zeros.
        """
        unit = self.stride if to_x else 1
        spread = self.dilation * unit if tile > 1 else 0
        step = tile * spread or unit
        if to_x:
            size, least = self.x, 2 * self.stride
            first, last = max(0, self.reach - self.before), min(size, (self.y - 1) * self.stride - self.before + 1)
        else:
            size, least = self.y, 1
            first = max(0, -((self.reach - self.before) // self.stride))
            last = min(size, (self.x - 1 + self.before) // self.stride + 1)
        if last - first < least:
            return (0, self.x if to_x else self.y), (0, self.y if to_x else self.x)
        low = min(low, last - least)
        high = max(high, max(low, first) + least)
        part = low // step * step, min(size, -(-high // step) * step + tile * spread)
        first, last = self.read(to_x, *part)
        return part, (first, (self.y if to_x else self.x) if spread and part[1] == size else last)

    def padding(self, x: Range, y: Range) -> tuple[Range, int]:
        """Return the padding of a convolution of these parts alone, and how far x goes beyond the windows."""
        before = self.before + x[0] - y[0] * self.stride
        after = (y[1] - y[0] - 1) * self.stride + self.reach + 1 - before - (x[1] - x[0])
        return (before, max(after, 0)), max(-after, 0)


def _axes(x: da.Array, y: da.Array, w: da.Array, stride: Any, padding: Any, dilation: Any) -> list[_Axis]:
    """Return the spatial axes of a convolution whose arguments have been checked."""
    n = w.ndim - 2
    strides, dilations = (np.broadcast_to(v, n).tolist() for v in (stride, dilation))
    pads = np.asarray(0 if isinstance(padding, str) else padding)
    before = np.broadcast_to(pads[:, 0] if pads.ndim == 2 else pads[::2] if pads.size == 2 * n else pads, n).tolist()
    axes = []
    for i in range(n):
        reach = dilations[i] * (w.shape[i + 2] - 1)
        if isinstance(padding, str) and padding == "same":
            before[i] = max(0, (y.shape[i + 2] - 1) * strides[i] + reach + 1 - x.shape[i + 2]) // 2
        axes.append(_Axis(x.shape[i + 2], y.shape[i + 2], strides[i], dilations[i], reach, before[i]))
    return axes


@dataclasses.dataclass(frozen=True)
class _Region:
    """A part of an array, put together from the blocks that hold it: for each axis, what of a block goes where."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    cuts: tuple[tuple[tuple[slice, slice], ...], ...]

    def __call__(self, blocks: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if len(blocks) == 1:
            return blocks[0][tuple(source for ((source, _),) in self.cuts)]
        whole = np.empty(self.shape, self.dtype)
        for block, cuts in zip(blocks, itertools.product(*self.cuts), strict=True):
            source, target = zip(*cuts, strict=True)
            whole[target] = block[source]
        return whole


class _Blocks:
    """The blocks of a Dask array, by the regions that they hold."""

    def __init__(self, array: da.Array) -> None:
        self._array = array
        self.ranges = [list(itertools.pairwise(np.cumsum([0, *chunks]).tolist())) for chunks in array.chunks]

    def region(self, *region: Range) -> tuple[_Region, list[Any]]:
        """Return a region and the keys of its blocks."""
        numbers, cuts = [], []
        for blocks, (first, last) in zip(self.ranges, region, strict=True):
            held = [(i, max(first, a), min(last, b), a) for i, (a, b) in enumerate(blocks) if a < last and b > first]
            held = [piece for piece in held if piece[1] < piece[2]]  # without empty blocks
            numbers.append([i for i, _, _, _ in held])
            cuts.append(tuple((slice(low - a, high - a), slice(low - first, high - first)) for _, low, high, a in held))
        keys = list(itertools.product([self._array.name], *numbers))
        return _Region(tuple(b - a for a, b in region), self._array.dtype, tuple(cuts)), keys


@dataclasses.dataclass(frozen=True)
class _Part:
    """A convolution of parts of the arrays: what `convolution_backward` is told of it."""

    options: dict[str, Any]
    source: _Region
    other: _Region | None  # the second operand of a weight gradient
    shape: tuple[int, ...]  # of the unknown
    dtype: np.dtype[Any]
    crop: tuple[Any, ...] = ()


def _stand_in(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of which only shape and dtype will be looked at."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the type in which its sums are formed."""
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _input_gradient(part: _Part, weight: NDArray[Any], blocks: list[NDArray[Any]]) -> NDArray[Any]:
    dx = _core.convolution_backward(
        part.source(blocks),
        _stand_in(part.shape, part.dtype),
        weight,
        output_mask=(True, False, False),
        **part.options,
    )[0]
    assert dx is not None
    return np.ascontiguousarray(dx[part.crop])


def _weight_gradient(part: _Part, outputs: list[NDArray[Any]], inputs: list[NDArray[Any]]) -> NDArray[Any]:
    assert part.other is not None
    if 0 in part.source.shape or 0 in part.other.shape:  # all windows lie in the padding
        return np.zeros(part.shape, part.dtype)
    dw = _core.convolution_backward(
        _wide(part.source(outputs)),
        _wide(part.other(inputs)),
        _stand_in(part.shape, part.dtype),
        output_mask=(False, True, False),
        **part.options,
    )[1]
    assert dw is not None
    return dw


def _bias_gradient(block: NDArray[Any]) -> NDArray[Any]:
    total: NDArray[Any] = np.ascontiguousarray(_wide(block)).sum((0, *range(2, block.ndim)), np.float64)
    return total


def _add(parts: list[NDArray[Any]]) -> NDArray[Any]:
    total = parts[0].astype(np.float64)
    for part in parts[1:]:
        total += part
    return total


def _rounded(total: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return total.astype(dtype)


def _add_tree(graph: Graph, name: str, keys: list[Any], result: Any, dtype: np.dtype[Any]) -> None:
    """Add the sum of what keys name to a graph as `result`, in an order that depends on their number alone."""
    for level in itertools.count():
        parents = []
        for i in range(0, len(keys), _FAN_IN):
            parents.append((f"{name}-sum", *result[1:], level, i))
            graph[parents[-1]] = (_add, keys[i : i + _FAN_IN])
        keys = parents
        if len(keys) == 1:
            break
    graph[result] = (_rounded, keys[0], dtype)


@dataclasses.dataclass(frozen=True)
class _Call:
    """A checked `convolution_backward` of Dask arrays with a batch axis."""

    grad_output: da.Array
    input: da.Array
    weight: da.Array
    axes: list[_Axis]
    groups: int
    options: dict[str, Any]
    sums: tuple[int, ...]
    results: tuple[Any, ...]  # (shape, dtype) of each

    @property
    def transposed(self) -> bool:
        transposed: bool = self.options["transposed"]
        return transposed

    def name(self, result: str) -> str:
        """Return a name for a result, which differs where anything else does."""
        return f"convbwd-{result}-{tokenize(*(getattr(self, field.name) for field in dataclasses.fields(self)))}"

    def group_ranges(self) -> list[Range]:
        """Cut the groups where the chunks of the input are cut."""
        channels = self.input.shape[1] // self.groups
        ends = np.cumsum(self.input.chunks[1]).tolist() if channels else []
        return list(itertools.pairwise(sorted({0, self.groups, *(e // channels for e in ends if e % channels == 0)})))

    def channels(self, array: da.Array, groups: Range, axis: int = 1) -> Range:
        """Return the channels of these groups."""
        each = array.shape[axis] // self.groups
        return groups[0] * each, groups[1] * each

    def part_options(self, groups: Range, x: Sequence[Range], y: Sequence[Range]) -> dict[str, Any]:
        """Return the options of the convolution of parts of x and y, as the equation of `_Axis` names them."""
        pads = [axis.padding(*ranges) for axis, *ranges in zip(self.axes, x, y, strict=True)]
        beyond = tuple(n for _, n in pads) if self.transposed else 0
        return {
            **self.options,
            "padding": tuple(pair for pair, _ in pads),
            "output_padding": beyond,
            "groups": groups[1] - groups[0],
        }

    def input_gradient(self) -> da.Array:
        name = self.name("dx")
        to_x = not self.transposed
        tiles = (1, *(max(1, n) for n in self.sums[-2:]))[-len(self.axes) :]
        dtype = self.results[0][1]
        outputs, groups = _Blocks(self.grad_output), self.group_ranges()
        heads = [self.channels(self.weight, group, axis=0) for group in groups]
        weight = self.weight.rechunk((tuple(b - a for a, b in heads), *[-1] * (self.weight.ndim - 1)))
        chunks = list(self.input.chunks)
        chunks[1] = tuple(b - a for a, b in (self.channels(self.input, g) for g in groups))
        ranges = _Blocks(self.input).ranges
        ranges[1] = groups
        graph: Graph = {}
        for index in np.ndindex(*(len(r) for r in ranges)):
            batch, group, *spatial = (r[i] for r, i in zip(ranges, index, strict=True))
            both = (
                a.part(to_x, low, high, tile) for a, (low, high), tile in zip(self.axes, spatial, tiles, strict=True)
            )
            parts, read = zip(*both, strict=True)
            region, keys = outputs.region(batch, self.channels(self.grad_output, group), *read)
            options = self.part_options(group, *((parts, read) if to_x else (read, parts)))
            inside, channels = [b - a for a, b in (batch, *parts)], self.channels(self.input, group)
            part = _Part(
                {**options, "sums": self.sums},
                region,
                None,
                (inside[0], channels[1] - channels[0], *inside[1:]),
                self.input.dtype,
                (..., *(slice(r[0] - p[0], r[1] - p[0]) for r, p in zip(spatial, parts, strict=True))),
            )
            graph[(name, *index)] = (_input_gradient, part, (weight.name, index[1], *[0] * (weight.ndim - 1)), keys)
        graph = HighLevelGraph.from_collections(name, graph, [self.grad_output, weight])
        return da.Array(graph, name, tuple(chunks), dtype=dtype)

    def weight_parts(self, group: Range) -> Iterator[tuple[_Part, list[Any], list[Any]]]:
        """Cut the sums of a weight's gradient where the chunks of y are cut, as the equation of `_Axis` names it."""
        outputs, inputs = _Blocks(self.grad_output), _Blocks(self.input)
        shape = list(self.weight.shape)
        shape[0] = shape[0] // self.groups * (group[1] - group[0])
        dtype = _wide(np.empty(0, self.results[1][1])).dtype
        batches, _, *cut = (inputs if self.transposed else outputs).ranges
        for batch, *y in itertools.product(batches, *cut):
            x = [a.read(False, *r) for a, r in zip(self.axes, y, strict=True)]
            x = [(low, max(low, high)) for low, high in x]
            of_output, of_input = (x, y) if self.transposed else (y, x)
            source, source_keys = outputs.region(batch, self.channels(self.grad_output, group), *of_output)
            other, other_keys = inputs.region(batch, self.channels(self.input, group), *of_input)
            part = _Part(self.part_options(group, x, y), source, other, tuple(shape), dtype)
            yield part, source_keys, other_keys

    def weight_gradient(self) -> da.Array:
        name = self.name("dw")
        graph: Graph = {}
        sizes, rest = [], [0] * (self.weight.ndim - 1)
        for number, group in enumerate(self.group_ranges()):
            keys: list[Any] = []
            for part, *blocks in self.weight_parts(group):
                keys.append((f"{name}-part", number, len(keys)))
                graph[keys[-1]] = (_weight_gradient, part, *blocks)
            sizes.append(part.shape[0])
            _add_tree(graph, name, keys, (name, number, *rest), self.results[1][1])
        graph = HighLevelGraph.from_collections(name, graph, [self.grad_output, self.input])
        chunks = (tuple(sizes), *((n,) for n in self.weight.shape[1:]))
        return da.Array(graph, name, chunks, dtype=self.results[1][1])

    def bias_gradient(self) -> da.Array:
        name = self.name("db")
        graph: Graph = {}
        shape, dtype = self.results[2]
        channels = self.grad_output.chunks[1]
        if sum(channels) != shape[0]:  # what PyTorch makes of an input without channels
            return da.zeros(shape, dtype)
        for i in range(len(channels)):
            keys: list[Any] = []
            for n, *spatial in np.ndindex(self.grad_output.numblocks[:1] + self.grad_output.numblocks[2:]):
                keys.append((f"{name}-part", i, len(keys)))
                graph[keys[-1]] = (_bias_gradient, (self.grad_output.name, n, i, *spatial))
            _add_tree(graph, name, keys, (name, i), self.results[2][1])
        graph = HighLevelGraph.from_collections(name, graph, [self.grad_output])
        return da.Array(graph, name, (channels,), dtype=self.results[2][1])


def _as_dask(name: str, array: Any) -> da.Array:
    if isinstance(array, Packed):
        raise TypeError(f"convolution_backward: {name} must be a plain array, got Packed, which unpack() makes one")
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):  # Dask has no types of other libraries
        array = _core.as_array(array, "convolution_backward", name)
    result = da.asanyarray(array)
    if np.ma.isMaskedArray(result._meta):
        raise TypeError(f"convolution_backward: {name} must be an array without a mask, got a masked one")
    if any(math.isnan(n) for n in result.shape):
        raise ValueError(
            f"convolution_backward: {name} must have chunks of known sizes, got {result.chunks} "
            "(dask.array.Array.compute_chunk_sizes finds them)"
        )
    return result


def convolution_backward(
    grad_output: da.Array | ArrayLike,
    input: da.Array | ArrayLike,
    weight: da.Array | ArrayLike,
    bias_sizes: Sequence[SupportsIndex] | None = None,
    stride: IntOrInts = 1,
    padding: Padding = 0,
    dilation: IntOrInts = 1,
    transposed: bool = False,
    output_padding: IntOrInts = 0,
    groups: SupportsIndex = 1,
    output_mask: Mask = (True, True, True),
    *,
    algorithm: str = "auto",
    precision: str = "default",
) -> tuple[da.Array | None, da.Array | None, da.Array | None]:
    r"""
    Gradients of a convolution of Dask arrays, a block at a time.

    Nothing is computed before the results are; then each task holds a block and a border around it, as wide as the
    dilated kernel reaches. Any scheduler of Dask serves. All errors of a call are raised by it, before a graph runs.

    Parameters
    ----------
    grad_output : dask array or array_like, shape (N, C_out, \*O)
    input : dask array or array_like, shape (N, C_in, \*I)
        Chunked in any way, independently of each other. Channels are taken group by group: chunks that do not end
        where a group of channels ends are put together. Channels come first; `dask.array.moveaxis` costs no copy.
    weight : dask array or array_like, shape (C_out, C_in / groups, \*k); if transposed (C_in, C_out / groups, \*k)
        Must fit into memory.
    bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
        As in `convbwd.convolution_backward`.
    algorithm, precision : str, optional
        As in `convbwd.convolution_backward`. What "auto" means for ``grad_input`` is what it means for the arrays as a
        whole; for ``grad_weight`` it is chosen block by block.

    Returns
    -------
    grad_input : dask array or None
        With the chunks of ``input`` (but for the channels, see there).
    grad_weight, grad_bias : dask array or None
        In one chunk, or one for each chunk of groups; ``grad_bias`` for each chunk of channels.

        Shapes and dtypes are those of `convbwd.convolution_backward`.

    Raises
    ------
    ValueError, TypeError
        As `convbwd.convolution_backward`; and if the sizes of chunks are not known.

    Notes
    -----
    ``grad_input`` has the bits of `convbwd.convolution_backward` with the same arguments, for any chunks: every block
    is computed with the algorithm and the order of sums of the whole. There are two exceptions. Winograd's algorithm
    and matrix units leave values that they do not serve (tiny, huge or not finite ones, and a few that dwarf all
    others) to the direct kernels; here that happens block by block, there for the result as a whole. And OpenBLAS, in
    builds that have it, does not tell its order. With ``algorithm="direct"`` there is no exception.

    The sums of ``grad_weight`` and ``grad_bias`` are taken for each block, then in float64 over blocks, by a tree whose
    shape follows from the chunks, and rounded to the dtype of the result at the end. So they have the same bits for the
    same chunks, whatever the scheduler and the number of workers, and the error bound of sums in memory.

    All of this holds for workers with one build and one instruction set, which `convbwd.build_info` tells, on
    processors of one maker.

    Examples
    --------
    >>> import dask.array as da
    >>> import convbwd.dask
    >>> x = da.random.default_rng(0).random((1, 1, 64, 32, 32), chunks=(1, 1, 16, 32, 32))
    >>> w = da.ones((2, 1, 3, 3, 3), chunks=-1)
    >>> dy = da.ones((1, 2, 62, 30, 30), chunks=(1, 2, 16, 30, 30))
    >>> dx, dw, db = convbwd.dask.convolution_backward(dy, x, w)
    >>> float(dx[0, 0, 0, 0, 0]), float(dx[0, 0, 32, 16, 16])
    (2.0, 54.0)
    """
    arrays = [_as_dask(name, a) for name, a in (("grad_output", grad_output), ("input", input), ("weight", weight))]
    options: dict[str, Any] = {
        "stride": frozen(stride),  # blocks are computed later
        "dilation": frozen(dilation),
        "transposed": transposed,
        "algorithm": algorithm,
        "precision": precision,
    }
    dy, x, w = arrays
    try:
        plan = _core.Plan(
            _core.stand_in(dy.dtype, dy.shape),
            _core.stand_in(x.dtype, x.shape),
            _core.stand_in(w.dtype, w.shape),
            bias_sizes,
            padding=padding,
            output_padding=output_padding,
            groups=groups,
            output_mask=output_mask,
            **options,
        )
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("plan:", "convolution_backward:", 1)) from None
    passes = {one["result"]: one for one in plan.passes()}
    unbatched = x.ndim < w.ndim
    if unbatched:
        dy, x = dy[None], x[None]
    axes = _axes(*((dy, x) if transposed else (x, dy)), w, stride, padding, dilation)
    sums = passes["grad_input"]["sums"] if "grad_input" in passes else (0,) * 6
    call = _Call(dy, x, w, axes, operator.index(groups), options, sums, plan.results())
    wanted = [bool(flag) for flag in output_mask]
    dx = call.input_gradient() if wanted[0] else None
    return (
        dx[0] if dx is not None and unbatched else dx,
        call.weight_gradient() if wanted[1] else None,
        call.bias_gradient() if wanted[2] else None,
    )

"""Conv3DBackpropInput of Ascend C for notebooks: its tiles as arrays, and pictures of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from convbwd import _core
from convbwd._layouts import pack

_LANES = 16  # output channels of a block of FRACTAL_Z_3D
_COLOURS = ("#cfe0f3", "#e3edf8", "#d6eadf", "#eaf5ee")  # two shades of two hues: neighbours differ


class Tile(NamedTuple):
    """
    A part of a gradient of shape ``(N, C, D, H, W)``, and where it is.

    Positions count a plane row by row, so that a tile may begin and end within a row:
    ``gradient.reshape(N, C, D, H * W)[tile.place]`` has the shape of ``tile.values``.
    """

    image: int
    channels: slice
    plane: int
    positions: slice
    values: NDArray[Any]

    @property
    def place(self) -> tuple[int, slice, int, slice]:
        """The index of the tile in an array of shape (N, C, D, H * W)."""
        return self[:4]


class Picture(str):
    """An SVG document, which notebooks draw."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the document to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self)


class Conv3DBackpropInput:
    """
    The gradient of a 3-D convolution's input, computed tile by tile as kernels of Ascend C do it.

    Parameters
    ----------
    input_size, filter, out_backprop, strides, pads, dilations, data_format, filter_format, padding, dtype
        As in `conv3d_backprop_input`, without groups. The elements are float16, bfloat16 or float32. What devices
        cannot do is refused: pads are less than the kernel, for one.
    cores : int, optional
        Cores of the device that shares are worked out for. Here they are computed one after the other.
    tiling : mapping of str to int, optional
        Numbers to have instead of those that the host tiling works out, above all ``baseM`` and ``baseN``, the
        positions and channels of a tile, and ``singleCoreM`` and ``singleCoreCin``, those of what a core computes
        before it goes on. Channels come in whole blocks of c0, ``singleCoreM`` in whole rows. Numbers that say which
        gradient it is stay as they are.

    Attributes
    ----------
    tiling : mapping of str to int
        The numbers of TConv3DBackpropInputTiling, which are those that CANN works out for an Atlas A2.
    shape : tuple of int
        Of the gradient, (N, C, D, H, W).

    Raises
    ------
    ValueError
        As `conv3d_backprop_input`; if a device cannot do it; if a number of ``tiling`` is unknown or fits no tiles.
    TypeError
        As `conv3d_backprop_input`; if the dtype is none of those above.

    See Also
    --------
    conv3d_backprop_input : The whole gradient at once.

    Examples
    --------
    >>> import numpy as np
    >>> import convbwd
    >>> w, dy = np.ones((8, 32, 1, 3, 3), np.float16), np.ones((1, 8, 1, 6, 7), np.float16)
    >>> op = convbwd.Conv3DBackpropInput(
    ...     (1, 32, 1, 8, 9), w, dy, (1,) * 5, (0,) * 6, data_format="NCDHW", tiling={"baseM": 48, "baseN": 16}
    ... )
    >>> for tile in op.tiles():
    ...     print(tile.channels, tile.positions, tile.values.shape)
    slice(0, 16, None) slice(0, 48, None) (16, 48)
    slice(0, 16, None) slice(48, 72, None) (16, 24)
    slice(16, 32, None) slice(0, 48, None) (16, 48)
    slice(16, 32, None) slice(48, 72, None) (16, 24)
    """

    def __init__(
        self,
        input_size: Sequence[SupportsIndex],
        filter: ArrayLike,
        out_backprop: ArrayLike,
        strides: Sequence[SupportsIndex],
        pads: Sequence[SupportsIndex] | None,
        dilations: Sequence[SupportsIndex] = (1, 1, 1, 1, 1),
        data_format: str = "NDHWC",
        *,
        filter_format: str | None = None,
        padding: str | None = None,
        dtype: str | None = None,
        cores: SupportsIndex = 1,
        tiling: Mapping[str, SupportsIndex] | None = None,
    ) -> None:
        self._tiles = _core.InputTiles(
            input_size,
            filter,
            out_backprop,
            strides,
            pads,
            dilations,
            data_format,
            filter_format,
            padding,
            dtype,
            cores,
            dict(tiling or {}),
        )
        self._format = data_format
        self._dtype = self._tiles.filter.dtype
        self._grad_output = pack(_plain(self._tiles.out_backprop, data_format), "NDC1HWC0")
        self._weight = pack(_plain(self._tiles.filter, filter_format or data_format), "FRACTAL_Z_3D")
        self.tiling: Mapping[str, int] = MappingProxyType(self._tiles.tiling)
        self.shape: tuple[int, ...] = self._tiles.shapes[0]
        for name, unit, of in (("singleCoreM", "wi", "rows"), ("singleCoreCin", "c0", "blocks of channels")):
            if self.tiling[name] == 0 or self.tiling[name] % self.tiling[unit] != 0:
                raise ValueError(
                    f"Conv3DBackpropInput: {name} must be whole {of} of {unit} = {self.tiling[unit]}, "
                    f"got {self.tiling[name]}"
                )

    def tiles(self) -> Iterator[Tile]:
        """
        Compute the tiles, one at a time, in the order in which a core does.

        Yields
        ------
        Tile
            With its values, rounded to the dtype of the operands.
        """
        gradient = self._empty()
        for place in self._walk(gradient):
            yield Tile(*place, gradient[place].copy())

    def run(self) -> NDArray[Any]:
        """
        Compute all tiles.

        Returns
        -------
        ndarray
            The gradient, of the shape and format that the operator was given.
        """
        gradient = self._empty()
        for _ in self._walk(gradient):
            pass
        gradient = gradient.reshape(self.shape)
        return np.ascontiguousarray(np.moveaxis(gradient, 1, -1)) if self._format == "NDHWC" else gradient

    def _empty(self) -> NDArray[Any]:
        n, c, d, h, w = self.shape
        return np.zeros((n, c, d, h * w), self._dtype)

    def _walk(self, gradient: NDArray[Any]) -> Iterator[tuple[int, slice, int, slice]]:
        """Do what a kernel does: for each image, plane, range of rows and of channels, write the tiles."""
        walk, t = self._tiles.copy(), self.tiling
        c0, plane = t["c0"], t["hi"] * t["wi"]
        taps = t["hk"] * t["wk"]
        block = taps * -(-t["cout"] // _LANES) * _LANES * c0  # weights of a block of input channels
        for image, din, m, n in np.ndindex(
            t["batch"], t["di"], -(-plane // t["singleCoreM"]), -(-t["cin"] // t["singleCoreCin"])
        ):
            first, channel = m * t["singleCoreM"], n * t["singleCoreCin"]
            ho = first // t["wi"] - t["backpropPadUp"]
            row = -(-max(ho, 0) // t["strideH"])
            walk.start(
                min(t["singleCoreM"], plane - first),
                t["dk"] * taps * t["cout1"] * c0,
                min(t["singleCoreCin"], t["cin"] - channel),
                din,
                ho,
            )
            dy = (image * t["dout"] * t["cout1"] * t["ho"] + row) * t["wo"] * c0
            walk.read_from(self._grad_output, dy, self._weight, channel // c0 * block)
            begin = True
            while walk.iterate(begin):
                begin = False
                walk.write_to(gradient, (image * t["cin"] + channel) * t["di"] * plane + first)
                p0, positions, c, channels = walk.place
                yield (
                    image,
                    slice(channel + c, channel + c + channels),
                    din,
                    slice(first + p0, first + p0 + positions),
                )

    def _places(self) -> list[tuple[slice, slice]]:
        """Channels and positions of the tiles of any plane, without computing them."""
        t = self.tiling
        plane = t["hi"] * t["wi"]

        def parts(size: int, share: int, base: int) -> list[list[slice]]:
            ends = [(a, min(a + share, size)) for a in range(0, size, share)]
            return [[slice(i, min(i + base, b)) for i in range(a, b, base)] for a, b in ends]

        by_m = parts(plane, t["singleCoreM"], t["baseM"])
        by_n = parts(t["cin"], t["singleCoreCin"], t["baseN"])
        return [
            (c, p)
            for ms in by_m
            for ns in by_n
            for c, p in (
                [(c, p) for c in ns for p in ms] if t["iterateOrder"] == 1 else [(c, p) for p in ms for c in ns]
            )
        ]

    def reads(self, tile: Tile) -> NDArray[np.bool_]:
        """
        Which positions of ``out_backprop`` a tile is a sum of.

        Parameters
        ----------
        tile : Tile
            One of this operator's.

        Returns
        -------
        ndarray of bool, shape (D, H, W) of ``out_backprop``
        """
        _, (_, _, *kernel), (_, _, *size) = self._tiles.shapes
        stride, dilation, before = (
            np.array(values)[:, None] for values in (self._tiles.stride, self._tiles.dilation, self._tiles.padding[::2])
        )
        positions = np.arange(tile.positions.start, tile.positions.stop)
        place = np.stack([np.full_like(positions, tile.plane), *np.divmod(positions, self.shape[4])])
        result = np.zeros(size, np.bool_)
        for tap in np.ndindex(*kernel):
            at, rest = np.divmod(place + before - np.array(tap)[:, None] * dilation, stride)
            met = ((rest == 0) & (at >= 0) & (at < np.array(size)[:, None])).all(axis=0)
            result[tuple(at[:, met])] = True
        return result

    def picture(self, tile: Tile | None = None) -> Picture:
        """
        Draw which tile covers what.

        Parameters
        ----------
        tile : Tile, optional
            To be emphasised, beside the positions of ``out_backprop`` that it is a sum of.

        Returns
        -------
        Picture
            A plane of the gradient with its tiles, numbered in the order of their computation, for the first range of
            channels; its channels, cut into those of a tile; and, for a tile, the planes of ``out_backprop``.
        """
        height, width = self.shape[3:]
        places = self._places()
        scale = min(300 / max(height, width), 28.0)
        parts = [_text(0, -8, f"gradient: {height} x {width} positions")]
        chosen = (tile.channels, tile.positions) if tile is not None else None
        numbered = [(i, p) for i, (c, p) in enumerate(places) if c == places[0][0]]
        for shade, (_, p) in enumerate(numbered):
            share = p.start // self.tiling["singleCoreM"] % 2
            fill = "#f4a259" if chosen and p == chosen[1] else _COLOURS[shade % 2 + 2 * share]
            parts.append(_outline(p, width, scale, fill))
        parts += [_grid(height, width, 0, scale), *(_number(i, p, width, scale) for i, p in numbered)]
        x = width * scale + 40
        channels = sorted({(c.start, c.stop) for c, _ in places})
        tall = max(height * scale, 60.0)
        parts.append(_text(x, -8, f"{self.shape[1]} channels"))
        for i, (a, b) in enumerate(channels):
            y0, y1 = (tall * c / self.shape[1] for c in (a, b))
            fill = "#f4a259" if chosen and chosen[0].start == a else _COLOURS[i % 2]
            parts.append(
                f"<rect x='{x:.1f}' y='{y0:.1f}' width='36' height='{y1 - y0:.1f}' fill='{fill}' stroke='#345'/>"
            )
            parts.append(_text(x + 42, (y0 + y1) / 2 + 4, f"{a}-{b - 1}"))
        x, tall = x + 110, max(tall, height * scale)
        if tile is not None:
            reads = self.reads(tile)
            for d in range(len(reads)):
                if reads[d].any():
                    parts.append(_cells(reads[d], x, scale, f"out_backprop, plane {d}"))
                    tall = max(tall, reads.shape[1] * scale)
                    x += max(reads.shape[2] * scale, 130) + 20
        return Picture(
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{x + 2:.0f}' height='{tall + 26:.0f}' "
            f"viewBox='-1 -24 {x + 2:.1f} {tall + 26:.1f}' font-family='sans-serif' font-size='12'>"
            f"{''.join(parts)}</svg>"
        )

    def _facts(self) -> str:
        return (
            f"N, C, D, H, W = {self.shape}, {self._tiles.dtype}; {len(self._places())} tiles in each plane, "
            f"of up to {self.tiling['baseM']} positions x {self.tiling['baseN']} channels"
        )

    def __repr__(self) -> str:
        """Return the shape and dtype of the gradient, and the size of tiles."""
        return f"<convbwd.Conv3DBackpropInput: {self._facts()}>"

    def _repr_html_(self) -> str:
        return f"<div><b>Conv3DBackpropInput</b>: {self._facts()}<br>{self.picture()}</div>"


def _plain(array: NDArray[Any], format: str) -> NDArray[Any]:
    return array.transpose([format.index(axis) for axis in "NCDHW"])


def _text(x: float, y: float, text: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' fill='#345'>{text}</text>"


def _outline(positions: slice, width: int, scale: float, fill: str) -> str:
    """Draw a run of positions, which is up to three rectangles, as one polygon."""
    (r0, c0), (r1, c1) = divmod(positions.start, width), divmod(positions.stop - 1, width)
    c1 += 1
    if r0 == r1:
        corners = [(c0, r0), (c1, r0), (c1, r0 + 1), (c0, r0 + 1)]
    else:
        corners = [(c0, r0), (width, r0), (width, r1), (c1, r1), (c1, r1 + 1), (0, r1 + 1), (0, r0 + 1), (c0, r0 + 1)]
    points = " ".join(f"{x * scale:.1f},{y * scale:.1f}" for x, y in corners)
    return f"<polygon points='{points}' fill='{fill}' stroke='#345' stroke-width='.8'/>"


def _number(i: int, positions: slice, width: int, scale: float) -> str:
    """Write the number of a tile in the longest of its rows that is nearest to its middle, if there is room."""
    ends = [
        (row, max(positions.start - row * width, 0), min(positions.stop - row * width, width))
        for row in range(positions.start // width, (positions.stop - 1) // width + 1)
    ]
    longest = max(b - a for _, a, b in ends)
    rows = [(row, a, b) for row, a, b in ends if b - a == longest]
    if longest * scale < 24 or len(rows) * scale < 11:
        return ""
    (first, a, b), last = rows[0], rows[-1][0]
    return (
        f"<text x='{(a + b) / 2 * scale:.1f}' y='{(first + last + 1) / 2 * scale + 4:.1f}' text-anchor='middle' "
        f"fill='#123'>{i}</text>"
    )


def _grid(height: int, width: int, x: float, scale: float) -> str:
    """Draw the borders of positions, unless they would be a grey area."""
    if scale < 8:
        return ""
    lines = [f"M{x:.1f} {i * scale:.1f}h{width * scale:.1f}" for i in range(1, height)]
    lines += [f"M{x + i * scale:.1f} 0v{height * scale:.1f}" for i in range(1, width)]
    return f"<path d='{''.join(lines)}' stroke='#345' stroke-opacity='.25' stroke-width='.5'/>"


def _cells(mask: NDArray[np.bool_], x: float, scale: float, title: str) -> str:
    """Draw a plane, and in it the positions of a mask."""
    height, width = mask.shape
    parts = [
        _text(x, -8, title),
        f"<rect x='{x:.1f}' y='0' width='{width * scale:.1f}' height='{height * scale:.1f}' fill='#fff' "
        "stroke='#345'/>",
    ]
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], line.astype(np.int8), [0]))))
        parts += [
            f"<rect x='{x + a * scale:.1f}' y='{row * scale:.1f}' width='{(b - a) * scale:.1f}' "
            f"height='{scale:.1f}' fill='#f4a259'/>"
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]
    return "".join([*parts, _grid(height, width, x, scale)])

"""A small convolutional network in plain NumPy, trained with the gradients of convbwd. Written to be copied from.

`python -m convbwd` runs it on handwritten digits; `examples/digits.ipynb` tells it as a story.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

import convbwd

Array: TypeAlias = NDArray[Any]


class Conv:
    """One convolution with its bias: dense, strided, depthwise or transposed, as its arguments say.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws the initial weight.
    weight_shape : tuple of int
        (C_out, C_in / groups, kh, kw); transposed: (C_in, C_out / groups, kh, kw).
    stride, padding, groups, transposed
        As in `convbwd.convolution`.
    """

    dw: Any
    db: Any

    def __init__(
        self,
        rng: np.random.Generator,
        weight_shape: tuple[int, int, int, int],
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        transposed: bool = False,
    ) -> None:
        self.stride, self.padding, self.groups, self.transposed = stride, padding, groups, transposed
        self.options: Any = {"stride": stride, "padding": padding, "groups": groups, "transposed": transposed}
        c_out = weight_shape[1] * groups if transposed else weight_shape[0]
        # He's scale: the variance of an output is that of the products summed in it.
        products = math.prod(weight_shape) / c_out / (stride**2 if transposed else 1)
        self.weight: Array = rng.normal(0, math.sqrt(2 / products), weight_shape).astype(np.float32)
        self.bias: Array = np.zeros(c_out, np.float32)
        self.needs_dx = True

    def forward(self, x: Array) -> Array:
        self.x = x
        return convbwd.convolution(x, self.weight, self.bias, **self.options)

    def backward(self, dy: Array) -> Array | None:
        mask = (self.needs_dx, True, True)
        dx, self.dw, self.db = convbwd.convolution_backward(dy, self.x, self.weight, output_mask=mask, **self.options)
        return dx


class ReLU:
    """max(x, 0)."""

    def forward(self, x: Array) -> Array:
        self.positive = x > 0
        return x * self.positive

    def backward(self, dy: Array) -> Array:
        return dy * self.positive


class Network:
    """Layers one after the other; `conv_seconds` adds up the time spent in the convolutions."""

    def __init__(self, *layers: Conv | ReLU) -> None:
        self.layers = layers
        self.convs = [layer for layer in layers if isinstance(layer, Conv)]
        self.convs[0].needs_dx = False  # nobody asks for the gradient of the images
        self.conv_seconds = 0.0

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            x = self._timed(layer, layer.forward, x)
        return x

    def backward(self, dy: Array) -> None:
        for layer in reversed(self.layers):
            dy = self._timed(layer, layer.backward, dy)

    def parameters(self) -> list[Array]:
        return [p for conv in self.convs for p in (conv.weight, conv.bias)]

    def gradients(self) -> list[Array]:
        return [g for conv in self.convs for g in (conv.dw, conv.db)]

    def _timed(self, layer: Conv | ReLU, step: Any, x: Array) -> Any:
        start = perf_counter()
        x = step(x)
        if isinstance(layer, Conv):
            self.conv_seconds += perf_counter() - start
        return x


class Adam:
    """Adam (Kingma and Ba, 2014): steps scaled by running means of each gradient and of its square."""

    def __init__(self, parameters: list[Array]) -> None:
        self.parameters, self.steps = parameters, 0
        self.means = [np.zeros_like(p) for p in parameters]
        self.squares = [np.zeros_like(p) for p in parameters]

    def step(self, gradients: list[Array], rate: float) -> None:
        self.steps += 1
        for p, g, m, v in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            p -= rate * (m / (1 - 0.9**self.steps)) / (np.sqrt(v / (1 - 0.999**self.steps)) + 1e-8)


LAYER_NAMES = ("dense", "strided", "depthwise", "transposed", "whole image")


def digits_network(conv: type[Conv] = Conv, seed: int = 0) -> Network:
    """Make the network for 1x8x8 images and ten classes, its convolutions as in `LAYER_NAMES`."""
    rng = np.random.default_rng(seed)
    return Network(
        conv(rng, (24, 1, 3, 3), padding=1),  # dense: 24x8x8
        ReLU(),
        conv(rng, (48, 24, 3, 3), stride=2, padding=1),  # strided: 48x4x4
        ReLU(),
        conv(rng, (48, 1, 3, 3), padding=1, groups=48),  # depthwise: 48x4x4
        ReLU(),
        conv(rng, (48, 24, 2, 2), stride=2, transposed=True),  # transposed: 24x8x8
        ReLU(),
        conv(rng, (10, 24, 8, 8)),  # whole image: one score a class, 10x1x1
    )


class Digits(NamedTuple):
    """Images (N, 1, 8, 8) in [-1, 1] and labels 0 to 9, four fifths to train on, one fifth held out."""

    images: Array
    labels: Array
    held_out_images: Array
    held_out_labels: Array


def load_digits(seed: int = 0) -> Digits:
    """Load the 1797 handwritten digits that ship inside scikit-learn."""
    from sklearn import datasets

    data = datasets.load_digits()
    images, labels = data.images[:, None].astype(np.float32) / 8 - 1, data.target
    order = np.random.default_rng(seed).permutation(len(labels))
    train, held_out = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    return Digits(images[train], labels[train], images[held_out], labels[held_out])


def cross_entropy(scores: Array, labels: Array) -> tuple[float, Array]:
    """Return the mean cross-entropy of softmax(scores) and its gradient."""
    z = scores.reshape(len(labels), -1)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    one = np.arange(len(labels)), labels
    loss = -float(np.log(p[one]).mean())
    p[one] -= 1
    return loss, (p / len(labels)).reshape(scores.shape)


def accuracy(network: Network, images: Array, labels: Array) -> float:
    scores = network.forward(images).reshape(len(labels), -1)
    return float((scores.argmax(axis=1) == labels).mean())


def train_epoch(
    network: Network, optimiser: Adam, digits: Digits, rng: np.random.Generator, rate: float, batch: int = 64
) -> float:
    """Go once through the training images in random order; return the mean loss."""
    losses = []
    for i in np.array_split(rng.permutation(len(digits.labels)), len(digits.labels) // batch):
        loss, dscores = cross_entropy(network.forward(digits.images[i]), digits.labels[i])
        network.backward(dscores)
        optimiser.step(network.gradients(), rate)
        losses.append(loss)
    return float(np.mean(losses))


def train(network: Network, digits: Digits, epochs: int, seed: int = 0) -> Iterator[float]:
    """Train under a learning rate that falls along a cosine; yields the mean loss of each epoch."""
    optimiser, rng = Adam(network.parameters()), np.random.default_rng(seed)
    for epoch in range(epochs):
        rate = 0.003 * (1 + math.cos(math.pi * epoch / epochs)) / 2
        yield train_epoch(network, optimiser, digits, rng, rate)


def check_gradients(conv: Conv) -> dict[str, dict[str, float]]:
    """Compare dx, dw and db, computed in float64 and in float32, with central finite differences in float64.

    The point is the input that the layer saw last. A convolution is linear in each operand, so differences over
    a whole unit have no truncation error.

    Returns
    -------
    dict
        Largest error of each gradient, relative to its largest entry: `errors["float32"]["dw"]`.
    """
    operands = x, weight, bias = [a.astype(np.float64) for a in (conv.x, conv.weight, conv.bias)]
    dy = np.random.default_rng(0).standard_normal(convbwd.convolution(x, weight, bias, **conv.options).shape)
    expected = {}
    for name, operand in zip(("dx", "dw", "db"), operands, strict=True):
        expected[name] = np.zeros_like(operand)
        for i in np.ndindex(operand.shape):
            value = operand[i]
            for sign in (1, -1):
                operand[i] = value + sign / 2
                expected[name][i] += sign * np.vdot(dy, convbwd.convolution(x, weight, bias, **conv.options))
            operand[i] = value
    errors: dict[str, dict[str, float]] = {}
    for dtype in ("float64", "float32"):
        dy_, x_, weight_ = (a.astype(dtype) for a in (dy, x, weight))
        gradients: Any = convbwd.convolution_backward(dy_, x_, weight_, **conv.options)
        errors[dtype] = {
            name: float(np.abs(gradient - e).max() / np.abs(e).max())
            for (name, e), gradient in zip(expected.items(), gradients, strict=True)
        }
    return errors


class Im2colConv(Conv):
    """The same layer the usual NumPy way: every window is copied into a column, then one matrix product.

    A transposed convolution is the same with input and output exchanged.
    """

    def forward(self, x: Array) -> Array:
        self.x = x
        if not self.transposed:
            self.columns = self._columns(x)
            sizes = [(i + 2 * self.padding - k) // self.stride + 1 for i, k in self._sizes(x)]
            y = self._unrows(self._matrix() @ self.columns, len(x), sizes)
        else:
            sizes = [(i - 1) * self.stride - 2 * self.padding + k for i, k in self._sizes(x)]
            y = self._image(self._matrix().mT @ self._rows(x), len(x), sizes, x.shape[2:])
        return y + self.bias[:, None, None]

    def backward(self, dy: Array) -> Array | None:
        self.db = dy.sum(axis=(0, 2, 3))
        columns, rows = (self._columns(dy), self._rows(self.x)) if self.transposed else (self.columns, self._rows(dy))
        self.dw = (rows @ columns.mT).reshape(self.weight.shape)
        if not self.needs_dx:
            return None
        if self.transposed:
            return self._unrows(self._matrix() @ columns, len(dy), self.x.shape[2:])
        return self._image(self._matrix().mT @ rows, len(dy), self.x.shape[2:], dy.shape[2:])

    def _sizes(self, x: Array) -> Iterator[tuple[int, int]]:
        return zip(x.shape[2:], self.weight.shape[2:], strict=True)

    def _matrix(self) -> Array:
        """View the weight as (groups, rows, columns)."""
        return self.weight.reshape(self.groups, len(self.weight) // self.groups, -1)

    def _rows(self, y: Array) -> Array:
        """Bring (N, C, h, w) into (groups, C / groups, N * h * w)."""
        return y.swapaxes(0, 1).reshape(self.groups, y.shape[1] // self.groups, -1)

    def _unrows(self, rows: Array, n: int, sizes: Any) -> Array:
        return rows.reshape(-1, n, *sizes).swapaxes(0, 1)

    def _columns(self, x: Array) -> Array:
        """Copy every window into a column, im2col: (groups, C / groups * kh * kw, N * oh * ow)."""
        s, p = self.stride, self.padding
        padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
        windows = sliding_window_view(padded, self.weight.shape[2:], axis=(2, 3))[:, :, ::s, ::s]
        kernel_elements = self.weight[0].size
        return windows.transpose(1, 4, 5, 0, 2, 3).reshape(self.groups, kernel_elements, -1)

    def _image(self, columns: Array, n: int, sizes: Any, windows: Any) -> Array:
        """Add the columns up where their windows lie, col2im."""
        (h, w), (oh, ow), (kh, kw), s, p = sizes, windows, self.weight.shape[2:], self.stride, self.padding
        taps = columns.reshape(-1, kh, kw, n, oh, ow)
        padded = np.zeros((len(taps), n, h + 2 * p, w + 2 * p), columns.dtype)
        for i, j in np.ndindex(kh, kw):
            padded[:, :, i : i + s * oh : s, j : j + s * ow : s] += taps[:, i, j]
        return padded[:, :, p : p + h, p : p + w].swapaxes(0, 1)

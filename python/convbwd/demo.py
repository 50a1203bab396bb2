"""A small convolutional network in plain NumPy, trained with the gradients of convbwd. Written to be copied from.

`python -m convbwd` runs it on handwritten digits; `examples/digits.ipynb` tells it as a story.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

import convbwd
from convbwd import _im2col

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
        p, stride, kernel = self.padding, self.stride, self.weight.shape[2:]
        if not self.transposed:
            sizes = [(i + 2 * p - k) // stride + 1 for i, k in zip(x.shape[2:], kernel, strict=True)]
            self.columns = _im2col.columns(x, kernel, *self._window(), self.groups, sizes)
            y = _im2col.unrows(_im2col.matrix(self.weight, self.groups) @ self.columns, len(x), sizes)
        else:
            sizes = [(i - 1) * stride - 2 * p + k for i, k in zip(x.shape[2:], kernel, strict=True)]
            columns = _im2col.matrix(self.weight, self.groups).mT @ _im2col.rows(x, self.groups)
            y = _im2col.image(columns, len(x), sizes, kernel, *self._window(), x.shape[2:])
        return y + self.bias[:, None, None]

    def backward(self, dy: Array) -> Array | None:
        self.db = dy.sum(axis=(0, 2, 3))
        kernel, matrix = self.weight.shape[2:], _im2col.matrix(self.weight, self.groups)
        x, y = (dy, self.x) if self.transposed else (self.x, dy)
        rows = _im2col.rows(y, self.groups)
        if self.transposed:
            self.columns = _im2col.columns(x, kernel, *self._window(), self.groups, y.shape[2:])
        self.dw = (rows @ self.columns.mT).reshape(self.weight.shape)
        if not self.needs_dx:
            return None
        if self.transposed:
            return _im2col.unrows(matrix @ self.columns, len(y), y.shape[2:])
        return _im2col.image(matrix.mT @ rows, len(x), x.shape[2:], kernel, *self._window(), y.shape[2:])

    def _window(self) -> tuple[_im2col.Ints, _im2col.Pairs, _im2col.Ints]:
        """Stride, padding and dilation for both dimensions."""
        pad = (self.padding, self.padding)
        return (self.stride, self.stride), (pad, pad), (1, 1)

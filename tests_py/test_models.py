"""Models of PyTorch train the same whichever library computes the gradients of their convolutions."""

import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

import convbwd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

STEPS = 20
# How far a loss may lie from PyTorch's, relative to the first one. In float32 rounding grows from step to step where a
# ReLU is at its corner: PyTorch's own losses, with oneDNN and without, differ by up to 1e-4 of that for this
# ResNet-18, at learning rates of 0.005 to 0.02.
TOLERANCE = {"float64": 1e-12, "float32": 1e-3}


def normalised(*convolution: Any, conv: Any = nn.Conv2d, norm: Any = nn.BatchNorm2d, **options: Any) -> Any:
    """Return a convolution without bias and the normalisation of its output."""
    return nn.Sequential(conv(*convolution, bias=False, **options), norm(convolution[1]))


class Residual(nn.Module):
    """The basic block of a ResNet: two 3x3 convolutions beside a shortcut, which is 1x1 where the stride is 2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = normalised(inputs, outputs, 3, stride=stride, padding=1)
        self.second = normalised(outputs, outputs, 3, padding=1)
        self.shortcut = normalised(inputs, outputs, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def resnet18() -> Any:
    """ResNet-18 with an eighth of the channels, for 32x32 images."""
    stem = [normalised(3, 8, 7, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [(8, 8, 1), (8, 16, 2), (16, 32, 2), (32, 64, 2)]
    blocks = [Residual(*args) for i, o, s in widths for args in ((i, o, s), (o, o, 1))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class UNet(nn.Module):
    """Three resolutions; transposed convolutions on the way up, whose results are joined with those of the way down."""

    def __init__(self) -> None:
        super().__init__()

        def double(inputs: int, outputs: int) -> Any:
            layers = [(inputs, outputs), (outputs, outputs)]
            return nn.Sequential(*(m for a, b in layers for m in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())))

        self.down = nn.ModuleList([double(1, 8), double(8, 16)])
        self.bottom = double(16, 32)
        self.rise = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)])
        self.up = nn.ModuleList([double(32, 16), double(16, 8)])
        self.head = nn.Conv2d(8, 10, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for stage in self.down:
            kept.append(stage(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for rise, stage in zip(self.rise, self.up, strict=True):
            x = stage(torch.cat([kept.pop(), rise(x)], 1))
        return self.head(x).mean((2, 3))


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution, a normalisation over channels, and two pointwise ones beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.pointwise = nn.Sequential(
            nn.Conv2d(channels, 4 * channels, 1), nn.GELU(), nn.Conv2d(4 * channels, channels, 1)
        )

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + self.pointwise(y)


def convnext() -> Any:
    """Make a patchifying stem and two blocks."""
    blocks = [ConvNeXtBlock(24), ConvNeXtBlock(24)]
    return nn.Sequential(
        nn.Conv2d(3, 24, 4, stride=4), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)
    )


def net3d() -> Any:
    """Strided, dilated and grouped convolutions of volumes."""
    parts = {"conv": nn.Conv3d, "norm": nn.BatchNorm3d}
    return nn.Sequential(
        normalised(1, 8, 3, padding=1, **parts), nn.ReLU(),
        normalised(8, 16, 3, stride=2, padding=1, **parts), nn.ReLU(),
        normalised(16, 16, (1, 3, 3), padding=(0, 2, 2), dilation=(1, 2, 2), groups=4, **parts), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "ResNet-18": (resnet18, (8, 3, 64, 64)),
    "U-Net": (UNet, (2, 1, 32, 32)),
    "ConvNeXt": (convnext, (4, 3, 32, 32)),
    "3-D": (net3d, (2, 1, 12, 16, 16)),
}


def train(make: Callable[[], Any], shape: tuple[int, ...]) -> tuple[list[float], float]:
    """Return the losses of some steps on one batch, from fixed weights, and the seconds of all but the first."""
    torch.manual_seed(0)
    model, images, labels = make(), torch.randn(shape), torch.arange(shape[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses, start = [], 0.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        start = start or time.perf_counter()
    return losses, time.perf_counter() - start


@pytest.fixture
def default_dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let tensors have a dtype, for one test."""
    torch.set_default_dtype(getattr(torch, request.param))
    yield request.param
    torch.set_default_dtype(torch.float32)


def test_a_pass_under_way_survives_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*args: Any, **kwargs: Any) -> Any:
        convbwd.torch.disable()  # as another thread may
        return convbwd.convolution_backward(*args, **kwargs)

    counted = Mock(wraps=ended)
    monkeypatch.setattr(convbwd.torch, "convolution_backward", counted)
    layer, image = nn.Conv2d(3, 4, 3), torch.ones(2, 3, 8, 8)
    convbwd.torch.enable()
    for _ in range(2):  # with this library, and without
        layer.zero_grad()
        layer(image).square().sum().backward()
        gradient = layer.weight.grad.clone()
        if counted.call_count == 1:
            first = gradient
    assert counted.call_count == 1
    torch.testing.assert_close(first, gradient)


@pytest.mark.parametrize("default_dtype", TOLERANCE, indirect=True)
@pytest.mark.parametrize("name", MODELS)
def test_the_losses_are_the_same(
    default_dtype: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, shape = MODELS[name]
    theirs, seconds_off = train(make, shape)
    counted = Mock(wraps=convbwd.convolution_backward)
    monkeypatch.setattr(convbwd.torch, "convolution_backward", counted)
    with convbwd.torch.enable():
        ours, seconds_on = train(make, shape)
    with capsys.disabled():
        steps = f"{STEPS - 1} steps in {seconds_off:.2f} s with PyTorch's gradients, {seconds_on:.2f} s with convbwd's"
        print(f"\n{name}, {default_dtype}: loss {ours[0]:.4f} to {ours[-1]:.4f}; {steps}")
    convolutions = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    assert counted.call_count == STEPS * sum(isinstance(module, convolutions) for module in make().modules())
    assert theirs[-1] < 0.8 * theirs[0], "little was learned, so little was compared"
    assert ours == pytest.approx(theirs, rel=0, abs=TOLERANCE[default_dtype] * theirs[0])

"""What objects of other people's classes do while their arguments are read: raise, lie, and say nothing in Unicode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import convbwd

DY, X, W = np.ones((2, 4, 6, 6)), np.ones((2, 4, 8, 8)), np.ones((4, 4, 3, 3))


class Misshapen(np.ndarray):
    """Says that it has the shape of the weights."""

    shape = property(lambda self: W.shape)


class Copied(np.ndarray):
    """Copies itself as something else."""

    def copy(self, *_: Any) -> Any:
        return np.ones((1, 2), np.float16)


class Packing:
    """Raises where its format is asked for."""

    def __init__(self, exception: type[BaseException]) -> None:
        self.exception = exception

    @property
    def __convbwd_packing__(self) -> None:
        raise self.exception


class Exported:
    """Says where it is in no language of DLPack."""

    def __dlpack_device__(self) -> str:
        return "here"

    def __dlpack__(self, **_: Any) -> None:
        raise AssertionError


class Mute(list):
    """Raises and represents itself with a text that is not Unicode."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ValueError("\ud800")

    def __repr__(self) -> str:
        return "\ud800"


def misaligned(a: np.ndarray) -> np.ndarray:
    memory = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    memory[...] = a
    return memory


def test_a_result_has_the_size_of_its_memory() -> None:
    memory = np.zeros(8)
    with pytest.raises(ValueError, match=r"out\[1\]\.shape must be .* = \(4, 4, 3, 3\), got \(1,\)"):
        convbwd.convolution_backward(
            DY, X, W, output_mask=(False, True, False), out=(None, memory[:1].view(Misshapen), None)
        )
    np.testing.assert_array_equal(memory, 0)


def test_copies_are_those_of_numpy() -> None:
    x = misaligned(np.arange(float(X.size)).reshape(X.shape))
    expected = convbwd.convolution_backward(DY, np.array(x), W)
    for result, of_copy in zip(expected, convbwd.convolution_backward(DY, x.view(Copied), W), strict=True):
        np.testing.assert_array_equal(of_copy, result)
    np.testing.assert_array_equal(convbwd.formats.decode(x.view(Copied)), x)
    np.testing.assert_array_equal(convbwd.formats.decode(x.T.view(Copied)), x.T)


@pytest.mark.parametrize("exception", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_exceptions_of_attributes_are_not_lost(exception: type[BaseException]) -> None:
    with pytest.raises(exception):
        convbwd.convolution_backward(DY, Packing(exception), W)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: convbwd.convolution_backward(DY, Exported(), W), TypeError, "input must be an array, got Exported"),
        (lambda: convbwd.convolution_backward(DY, Mute(), W), TypeError, r"got Mute: \ud800"),
        (lambda: convbwd.convolution_backward(DY, X, W, output_mask=Mute()), ValueError, r"3 bools, got \ud800"),
    ],
)
def test_messages_about_objects_that_say_nothing(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as raised:
        call()
    assert message in str(raised.value)


def test_a_process_ends_while_a_daemon_thread_computes() -> None:
    script = """
import threading, convbwd, numpy as np
x, w = np.ones((8, 64, 64, 64), np.float32), np.ones((64, 64, 3, 3), np.float32)
begun = threading.Event()
def compute():
    while True:
        convbwd.convolution(x, w)
        begun.set()
threading.Thread(target=compute, daemon=True).start()
begun.wait()
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr

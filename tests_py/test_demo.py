"""The demo: what README promises of it, in a shortened form."""

import re
import subprocess
import sys

import numpy as np
import pytest

import convbwd
from convbwd import demo


def run(*arguments, code=None):
    start = ["-c", code] if code else ["-m", "convbwd", *arguments]
    return subprocess.run([sys.executable, *start], capture_output=True, text=True, timeout=300)


def test_demo_checks_gradients_and_learns():
    pytest.importorskip("sklearn")
    pytest.importorskip("rich")
    done = run("digits", "--epochs", "5")
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"accuracy on the held-out digits: ([\d.]+)%", done.stdout)[1]) >= 97
    assert re.search(r"time in convolutions: \d+% of [\d.]+ s", done.stdout)
    assert re.search(r"one epoch: [\d.]+ s with convbwd, [\d.]+ s with NumPy im2col", done.stdout)
    assert [name for name in demo.LAYER_NAMES if name in done.stdout] == list(demo.LAYER_NAMES)


def test_demo_refuses_no_epochs():
    done = run("--epochs", "0")
    assert done.returncode == 2
    assert "--epochs: must be at least 1, got 0" in done.stderr


def test_other_commands_take_no_epochs():
    for arguments, message in (
        (["info", "--epochs", "5"], "unrecognized arguments: --epochs"),
        (["--epochs", "5", "info"], "--epochs is an option of digits"),
        (["none"], "argument command: invalid choice: 'none'"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and done.stdout == ""
        assert message in done.stderr


def test_version():
    done = run("--version")
    assert done.returncode == 0 and done.stdout == f"{convbwd.__version__}\n"


def test_demo_names_the_extra_that_is_missing():
    done = run(code="import sys; sys.modules['rich'] = None; from convbwd.__main__ import main; main([])")
    assert done.returncode == 2
    assert "pip install 'convbwd[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("hide", ["", "import sys; sys.modules['rich'] = None; "], ids=["with rich", "without rich"])
def test_info(hide):
    done = run(code=f"{hide}from convbwd.__main__ import main; main(['info'])")
    assert done.returncode == 0, done.stderr
    assert re.search(r"threads\W+\d+", done.stdout)


def test_im2col_computes_the_same():
    """The comparison of times would mean nothing otherwise."""
    ours, im2col = demo.digits_network(), demo.digits_network(demo.Im2colConv)
    rng = np.random.default_rng(0)
    images, dscores = rng.standard_normal((3, 1, 8, 8), np.float32), rng.standard_normal((3, 10, 1, 1), np.float32)
    np.testing.assert_allclose(ours.forward(images), im2col.forward(images), rtol=1e-4, atol=1e-5)
    ours.backward(dscores)
    im2col.backward(dscores)
    for a, b in zip(ours.gradients(), im2col.gradients(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


def test_gradient_check_finds_a_wrong_gradient(monkeypatch):
    network = demo.digits_network()
    network.forward(np.ones((1, 1, 8, 8), np.float32))
    right = demo.convbwd.convolution_backward

    def wrong(*args, **kwargs):
        dx, dw, db = right(*args, **kwargs)
        return dx, dw * (1 + 1e-4), db

    monkeypatch.setattr(demo.convbwd, "convolution_backward", wrong)
    errors = demo.check_gradients(network.convs[0])
    assert errors["float64"]["dx"] < 1e-11 < 1e-5 < errors["float64"]["dw"]

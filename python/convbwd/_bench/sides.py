"""What is timed: this build of convbwd and what it is compared with, each behind the same interface."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import convbwd
from convbwd import _im2col
from convbwd._bench.problem import Array, Case, Mask, Operands
from convbwd._bench.worker import PASSED_ON, best_of

ALGORITHMS = ("direct", "blas", "reference")


class Unavailable(Exception):
    """A side that cannot compute a case, and why."""


class Runner(NamedTuple):
    """One case on one side."""

    call: Callable[[Mask], Any]
    """Computes the gradients asked for; the arrays may be of another library's kind."""
    turn: Callable[[Mask, int], float]
    """Returns the least seconds of some calls in a row."""


Side = Callable[[Case, Operands], Runner]


def in_process(call: Callable[[Mask], Any]) -> Runner:
    """Make a runner of a function of this process."""
    return Runner(call, lambda mask, calls: best_of(partial(call, mask), calls))


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def to_numpy(results: Any) -> list[Array | None]:
    """Bring the results of a runner into NumPy."""
    results = [r.float() if str(getattr(r, "dtype", None)) == "torch.bfloat16" else r for r in results]
    return [None if r is None else np.asarray(r) for r in results]


def ours(keywords: Mapping[str, Any]) -> Side:
    """Make the side of this build; keywords are passed to `convbwd.convolution_backward`."""

    def prepare(case: Case, arrays: Operands) -> Runner:
        options = {**case.options, **keywords}
        return in_process(lambda mask: convbwd.convolution_backward(*arrays, output_mask=mask, **options))

    return prepare


def torch(threads: int, channels_last: bool = False) -> Side:
    """Make the side of PyTorch's operator; channels_last is the layout that oneDNN prefers."""
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)

    def tensor(a: Array) -> Any:
        # NumPy's bfloat16 is foreign to PyTorch; float32 carries every value of it.
        t = torch.from_numpy(a.astype(np.float32)).bfloat16() if a.dtype.name == "bfloat16" else torch.from_numpy(a)
        layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
        if not channels_last:
            return t
        if t.ndim not in layouts:
            raise Unavailable("PyTorch has no channels_last for 1-D images")
        return t.contiguous(memory_format=layouts[t.ndim])

    def prepare(case: Case, arrays: Operands) -> Runner:
        if not case.symmetric:
            raise Unavailable("PyTorch's operator pads both ends alike")
        tensors = [tensor(a) for a in arrays]
        padding = [before for before, _ in case.padding]
        extra = list(case.output_padding) or [0] * len(padding)
        lists = list(case.stride), padding, list(case.dilation), case.transposed, extra, case.groups
        run = torch.ops.aten.convolution_backward.default
        return in_process(lambda mask: run(*tensors, [case.out_channels], *lists, mask))

    return prepare


def jax(threads: int) -> Side:
    """Make the side of JAX: the compiled vjp of `jax.lax.conv_general_dilated`."""
    if threads != cpus():
        raise ValueError(
            f"JAX computes with a thread for each of the {cpus()} CPUs that the process may use: "
            f"compare at --threads {cpus()}, or restrict the process (taskset), got --threads {threads}"
        )
    jax: Any = import_module("jax")
    lax = jax.lax
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")

    def prepare(case: Case, arrays: Operands) -> Runner:
        dims, groups = len(case.kernel), case.groups
        plain = {"rhs_dilation": case.dilation, "feature_group_count": groups}

        def forward(x: Any, w: Any, b: Any) -> Any:
            if case.transposed:
                # The transpose of a convolution is one of the flipped kernel over the dilated image.
                w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
                w = lax.rev(w.reshape(-1, *w.shape[2:]), range(2, dims + 2))
                reach = [d * (k - 1) for d, k in zip(case.dilation, case.kernel, strict=True)]
                ends = zip(reach, case.padding, case.output_padding or (0,) * dims, strict=True)
                padding = [(r - before, r - after + extra) for r, (before, after), extra in ends]
                y = lax.conv_general_dilated(x, w, (1,) * dims, padding, lhs_dilation=case.stride, **plain)
            else:
                y = lax.conv_general_dilated(x, w, case.stride, case.padding, **plain)
            return y + b.reshape(-1, *(1,) * dims)

        def backward(mask: Mask, dy: Any, x: Any, w: Any, b: Any) -> Any:
            gradients = jax.vjp(forward, x, w, b)[1](dy)
            return [g if asked else None for g, asked in zip(gradients, mask, strict=True)]

        compiled = jax.jit(backward, static_argnums=0)
        operands = [jax.device_put(a) for a in arrays]
        bias = jax.device_put(np.zeros(case.out_channels, arrays[2].dtype))
        return in_process(lambda mask: jax.block_until_ready(compiled(mask, *operands, bias)))

    return prepare


def im2col(case: Case, arrays: Operands) -> Runner:
    """Compute with NumPy alone; the threads are those of its BLAS, which the environment has set."""
    geometry = case.geometry
    return in_process(lambda mask: _im2col.convolution_backward(*arrays, **geometry, mask=mask))


def other_process(package: Path, keywords: Mapping[str, Any], environment: Mapping[str, str], stack: ExitStack) -> Side:
    """
    Make the side of a build of convbwd that has a process of its own.

    Parameters
    ----------
    package : Path
        Folder of the package, or the one that holds it.
    keywords, environment : mapping
        As for `ours`; variables to set for the process.
    stack : ExitStack
        Ends the process when it is closed.
    """
    if not (package / "__init__.py").is_file():
        package /= "convbwd"
    if not (package / "__init__.py").is_file():
        raise ValueError(f"{package.parent} is not the folder of a convbwd package and holds none")
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": str(package.parent.absolute())},
        )
    )
    requests, answers = process.stdin, process.stdout
    assert requests is not None and answers is not None

    def answer() -> Any:
        try:
            value = pickle.load(answers)
        except EOFError:
            raise ValueError(f"the process that computes with {package} ended with code {process.wait()}") from None
        if isinstance(value, PASSED_ON):
            raise value
        return value

    def ask(*request: Any) -> Any:
        pickle.dump(request, requests)
        requests.flush()
        return answer()

    found = Path(answer())
    if found.resolve() != package.resolve():
        raise ValueError(f"asked for the build in {package}, but the import finds {found}")

    def prepare(case: Case, arrays: Operands) -> Runner:
        ask("prepare", arrays, {**case.options, **keywords})
        return Runner(partial(ask, "call"), partial(ask, "turn"))

    return prepare


NAMES = "torch, torch-channels-last, jax, numpy, direct, blas, reference, build:<package folder>, isa:<instruction set>"


def apart(name: str) -> bool:
    """Return whether a side computes in a process of its own."""
    return name.startswith(("build:", "isa:"))


def make_side(name: str, keywords: Mapping[str, Any], threads: int, stack: ExitStack) -> Side:
    """
    Make one of the sides that `NAMES` lists; what it needs lives as long as the stack.

    Raises
    ------
    ValueError
        If there is none of that name, or it cannot run as asked.
    ModuleNotFoundError
        If it needs a package that is not installed.
    """
    kind, _, argument = name.partition(":")
    if apart(name):
        if kind == "isa" and argument not in (isas := convbwd.build_info()["isas"].split()):
            raise ValueError(f"{name}: the instruction sets of this machine are {', '.join(isas)}")
        package = Path(convbwd.__file__).parent if kind == "isa" else Path(argument)
        environment = {"CONVBWD_NUM_THREADS": str(threads)} | ({"CONVBWD_ISA": argument} if kind == "isa" else {})
        return other_process(package, keywords, environment, stack)
    if name in ALGORITHMS:
        return ours({"algorithm": name})
    if name in ("torch", "torch-channels-last"):
        return torch(threads, channels_last=name != "torch")
    if name == "jax":
        return jax(threads)
    if name == "numpy":
        return im2col
    raise ValueError(f"there is no {name!r} to compare with; there are {NAMES}")

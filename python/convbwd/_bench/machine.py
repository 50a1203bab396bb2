"""The machine that is measured on: its facts, and what it can do at most."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import convbwd
from convbwd._bench.problem import Array, parse_problem
from convbwd._bench.sides import cpus
from convbwd._bench.timing import interleave
from convbwd._bench.worker import best_of

# Fresh pages cost more than many convolutions. With these settings of glibc freed memory stays in the process.
HOT_MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
# What the BLAS libraries behind NumPy read when they are loaded.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
ISA_FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "bf16", "sve", "sve2", "sme"),
)
GENERATION = ("cpu family", "model", "CPU implementer", "CPU part")  # of /proc/cpuinfo, x86-64 and aarch64
PACKAGES = ("numpy", "ml_dtypes", "torch", "jax", "jaxlib")
# Work that comes close to the peak in a few milliseconds, so that it can be timed beside every shape.
MATRIX = 768  # rows and columns of the matrices whose product is timed
DENSE = "ci64x56x56co64k3x3p1"
PEAK_SECONDS = 1.0
BANDWIDTH_SECONDS = 0.7
LEAST_BYTES = 256 << 20  # of the arrays that the bandwidth is measured with


def in_environment(threads: int, hot_malloc: bool) -> None:
    """Start this process again, unless it has the settings of malloc and of BLAS that it is measured with."""
    wanted = dict.fromkeys(BLAS_THREADS, str(threads)) | (HOT_MALLOC if hot_malloc else {})
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **wanted})


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _caches() -> dict[str, int]:
    """Bytes of the caches that the first CPU sees, by level; of data or unified."""
    sizes = {}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        size, kind = _read(f"{folder}/size").strip(), _read(f"{folder}/type").strip()
        if size.endswith("K") and kind != "Instruction":
            sizes[f"L{_read(f'{folder}/level').strip()}"] = int(size[:-1]) << 10
    return sizes


def _memory(field: str) -> int:
    """Bytes that /proc/meminfo states, 0 where it does not."""
    lines = [line.split() for line in _read("/proc/meminfo").splitlines()]
    return next((int(words[1]) << 10 for words in lines if words[0] == f"{field}:"), 0)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts(repository: Path | None = None) -> dict[str, Any]:
    """Return what a result means nothing without; repository is the folder whose commit was built, where known."""
    info = dict(line.split(":", 1) for line in _read("/proc/cpuinfo").partition("\n\n")[0].splitlines() if ":" in line)
    info = {name.strip(): value.strip() for name, value in info.items()}
    flags = info.get("flags", info.get("Features", "")).split()
    commit = None
    if repository is not None:
        git = ["git", "-C", str(repository), "describe", "--always", "--dirty"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None
    return {
        "date": date.today().isoformat(),
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "generation": {name: info[name] for name in GENERATION if name in info},  # names of virtual CPUs hide it
        "cpus": cpus(),
        "flags": [flag for flag in ISA_FLAGS if flag in flags],
        "caches": _caches(),
        "memory": _memory("MemTotal"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "convbwd": convbwd.build_info(),
        "commit": commit,
        "malloc": {name: os.environ.get(name) for name in HOT_MALLOC},
    }


class Work(NamedTuple):
    """Something to time, and what it amounts to: operations or bytes."""

    name: str
    amount: float
    run: Callable[[], Any]

    def turn(self, calls: int) -> float:
        """Return the least seconds of some calls in a row."""
        return best_of(self.run, calls)


class Roofline(NamedTuple):
    """What limits a convolution here: the products, or the bytes that must be moved."""

    peak: float
    """Operations a second."""
    bandwidth: float
    """Bytes a second, to and from memory beyond the caches."""
    peak_by: Work
    """What reached the peak. Clock rates change: timed beside a shape, it tells the peak of that moment."""
    bandwidth_by: str

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return the least time: the greater one of those for the operations and for the bytes."""
        return max(flops / self.peak, nbytes / self.bandwidth)

    def at(self, probe: float) -> Roofline:
        """Return the limits while `peak_by` takes so many seconds."""
        return self._replace(peak=self.peak_by.amount / probe)

    def __str__(self) -> str:
        """Say what the limits are and how they were found, in two lines."""
        return (
            f"peak {self.peak / 1e9:.1f} GF/s ({self.peak_by.name})\n"
            f"bandwidth {self.bandwidth / 1e9:.1f} GB/s ({self.bandwidth_by})"
        )


def measure(dtype: str, threads: int) -> Roofline:
    """Measure peak and bandwidth for a dtype; convbwd, and NumPy's BLAS, must have been set to the threads."""
    peak, work = _best(_peak_work(dtype), PEAK_SECONDS)
    with ThreadPoolExecutor(threads) as pool:
        bandwidth, copy = _best(_bandwidth_work(threads, pool), BANDWIDTH_SECONDS)
    return Roofline(peak, bandwidth, work, copy.name)


def _best(work: list[Work], seconds: float) -> tuple[float, Work]:
    """Return the highest rate of some pieces of work, in turns, and that work."""
    times = interleave([w.turn for w in work], seconds).min(axis=1)
    rates = [w.amount / t for w, t in zip(work, times, strict=True)]
    return max(rates), work[rates.index(max(rates))]


def _peak_work(dtype: str) -> list[Work]:
    """Return matrix products and a dense convolution of this library, also by a matrix unit if there is one."""
    case = parse_problem(DENSE)
    arrays = case.arrays(dtype)
    mask = (True, True, False)
    dense = partial(convbwd.convolution_backward, *arrays, **case.options, output_mask=mask)
    # 16-bit types are multiplied as float32, unless there are instructions for them.
    wide = np.float64 if dtype == "float64" else np.float32
    a = np.random.default_rng(0).standard_normal((MATRIX, MATRIX)).astype(wide)
    c = np.empty_like(a)
    amount = 2.0 * MATRIX**3
    work = [
        *(
            Work(f"convbwd, {DENSE}, {by}", case.flops(mask), partial(dense, algorithm=by))
            for by in ("direct", "matrix")
        ),
        Work(f"NumPy, {MATRIX}x{MATRIX} {c.dtype} product", amount, lambda: np.matmul(a, a, out=c)),
    ]
    torch = sys.modules.get("torch")
    if torch is not None:  # it is among those compared with
        t = torch.from_numpy(a).to(getattr(torch, dtype))
        u = torch.empty_like(t)
        work.append(Work(f"PyTorch, {MATRIX}x{MATRIX} {dtype} product", amount, lambda: torch.matmul(t, t, out=u)))
    return work


def _bandwidth_work(threads: int, pool: ThreadPoolExecutor) -> list[Work]:
    """Return a copy and a sum of large arrays, counting what is read and written, not what that fetches."""
    wanted = max(LEAST_BYTES, 2 * max(_caches().values(), default=0))
    total = min(wanted, (_memory("MemAvailable") or 4 * wanted) // 4)
    a, b, c = np.ones((3, total // 12 // threads * threads), np.float32)
    parts = [tuple(v.reshape(threads, -1)[i] for v in (a, b, c)) for i in range(threads)]

    def copy(part: tuple[Array, ...]) -> None:
        np.copyto(part[0], part[1])

    def add(part: tuple[Array, ...]) -> None:
        np.add(part[1], part[2], out=part[0])

    # NumPy releases the GIL in both.
    of = f"of {a.nbytes >> 20} MiB arrays"
    return [
        Work(f"NumPy, copy {of}", 2 * a.nbytes, lambda: list(pool.map(copy, parts))),
        Work(f"NumPy, sum {of}", 3 * a.nbytes, lambda: list(pool.map(add, parts))),
    ]

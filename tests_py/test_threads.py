"""Threads: results do not depend on their number, calls do not disturb each other, fork and the environment work."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import convbwd
from cases import Case, RandomSource, bits, call_backward, call_forward, draw_case

# Large enough that the engine has more tasks than one.
LARGE = {
    "dense": ((4, 32, 24, 24), (48, 32, 3, 3), {"padding": 1}),
    "strided": ((3, 24, 29, 31), (40, 24, 3, 3), {"stride": 2, "padding": ((0, 1), (2, 1))}),
    "pointwise": ((2, 64, 28, 28), (96, 64, 1, 1), {}),
    "grouped": ((2, 48, 20, 20), (48, 12, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise": ((4, 64, 30, 30), (64, 1, 3, 3), {"groups": 64, "padding": 1}),
    "few channels": ((2, 3, 60, 60), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    "many images, few pixels": ((64, 16, 6, 6), (16, 16, 3, 3), {}),
    "few outputs, long sums": ((8, 2, 64, 64), (2, 2, 3, 3), {}),
    "one dimension": ((2, 16, 3000), (24, 16, 5), {"dilation": 2}),
    "three dimensions": ((2, 8, 10, 12, 14), (16, 8, 3, 3, 3), {"padding": 1}),
    "transposed": ((2, 32, 14, 14), (32, 24, 4, 4), {"transposed": True, "stride": 2, "padding": 1}),
}


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = convbwd.get_num_threads()
    yield
    convbwd.set_num_threads(threads)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", LARGE)
def test_the_bits_do_not_depend_on_the_number_of_threads(rng: np.random.Generator, name: str, dtype: str) -> None:
    x_shape, w_shape, geometry = LARGE[name]
    x, w = rng.standard_normal(x_shape).astype(dtype), rng.standard_normal(w_shape).astype(dtype)
    outcomes = set()
    dy = None
    for threads in (1, 2, 3, 7, 1):
        convbwd.set_num_threads(threads)
        y = convbwd.convolution(x, w, **geometry)
        dy = rng.standard_normal(y.shape).astype(dtype) if dy is None else dy
        gradients = convbwd.convolution_backward(dy, x, w, **geometry)
        outcomes.add(b"".join(a.tobytes() for a in (y, *gradients) if a is not None))
    assert len(outcomes) == 1


def _bits(case: Case) -> list[bytes | None]:
    operands = case.operands()
    return bits([*call_backward(case, operands, "auto"), call_forward(case, operands, "auto")])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_eight_python_threads_at_once(threads: int) -> None:
    cases = [draw_case(RandomSource(seed), scale=1 + seed % 4) for seed in range(48)]
    expected = [_bits(case) for case in cases]
    convbwd.set_num_threads(threads)
    gate = threading.Barrier(8)

    def work(offset: int) -> list[int]:
        gate.wait()
        order = [(offset * 6 + i) % len(cases) for i in range(len(cases))]
        return [i for i in order if _bits(cases[i]) != expected[i]]

    with ThreadPoolExecutor(8) as pool:
        assert [bad for bads in pool.map(work, range(8)) for bad in bads] == []


def test_the_number_of_threads_may_change_while_others_compute() -> None:
    case = draw_case(RandomSource(7), scale=4)
    expected = _bits(case)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            for threads in (1, 4, 2):
                convbwd.set_num_threads(threads)

    with ThreadPoolExecutor(4) as pool:
        changing = pool.submit(change)
        try:
            computing = [pool.submit(lambda: [_bits(case) == expected for _ in range(40)]) for _ in range(3)]
            assert all(all(future.result()) for future in computing)
        finally:
            done.set()
        changing.result()


def test_the_gil_is_released_while_computing() -> None:
    x, w = np.ones((1, 64, 64, 64), np.float32), np.ones((64, 64, 3, 3), np.float32)
    go = threading.Lock()
    ran = []

    def other() -> None:
        with go:
            ran.append(True)

    interval = sys.getswitchinterval()
    go.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    sys.setswitchinterval(1e6)  # from here on the other thread runs only if this one lets go of the interpreter itself
    try:
        go.release()
        for _ in range(200):
            convbwd.convolution(x, w)
            if ran:
                break
        released = bool(ran)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert released


def _run(code: str, **environment: str) -> str:
    """Run code in a fresh interpreter; return what it prints."""
    keep = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=keep | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_FORK = """
import multiprocessing, os, warnings
import convbwd, numpy as np

warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
x, w = np.random.default_rng(0).standard_normal((4, 16, 20, 20)), np.ones((16, 16, 3, 3))
convbwd.set_num_threads(3)

def bits(_=None):
    y = convbwd.convolution(x, w)
    return [a.tobytes() for a in (y, *convbwd.convolution_backward(y, x, w))]

expected = bits()  # the pool has threads now, which a forked child does not inherit
with multiprocessing.get_context("fork").Pool(2) as pool:
    children = pool.map(bits, range(4))
assert all(child == expected for child in children)
assert bits() == expected

def grandchild(_):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return bits() == expected and pool.map(bits, range(1)) == [expected] and convbwd.get_num_threads() == 3

from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
    assert all(pool.map(grandchild, range(2)))
print("ok")
"""


def test_works_after_fork() -> None:
    assert _run(_FORK) == "ok"


_FORK_WHILE_COMPUTING = """
import os, threading, warnings
import convbwd, numpy as np

warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
x, w = np.ones((2, 16, 30, 30), np.float32), np.ones((16, 16, 3, 3), np.float32)
convbwd.set_num_threads(2)
expected = convbwd.convolution(x, w).tobytes()
stop = threading.Event()

def compute():
    while not stop.is_set():
        convbwd.convolution(x, w)

thread = threading.Thread(target=compute)
thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(convbwd.convolution(x, w).tobytes() != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
thread.join()
print("ok")
"""


def test_fork_while_another_thread_computes() -> None:
    assert _run(_FORK_WHILE_COMPUTING) == "ok"


_THREADS = "import convbwd; print(convbwd.get_num_threads())"


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({"CONVBWD_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"CONVBWD_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
    ],
)
def test_environment(environment: dict[str, str], threads: int) -> None:
    assert int(_run(_THREADS, **environment)) == threads


@pytest.mark.parametrize("value", ["", "0", "-1", "many", "99999999999999999999"])
@pytest.mark.parametrize("variable", ["CONVBWD_NUM_THREADS", "OMP_NUM_THREADS"])
def test_nonsense_in_the_environment_is_harmless(variable: str, value: str) -> None:
    compute = "import numpy as np; assert convbwd.convolution(np.ones((1, 1, 9)), np.ones((1, 1, 3)))[0, 0, 0] == 3"
    assert int(_run(f"{_THREADS}; {compute}", **{variable: value})) >= 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no CPU affinity")
def test_default_is_what_the_process_may_use() -> None:
    pin = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
    assert int(_run(pin + _THREADS)) == 1
    assert 1 <= int(_run(_THREADS)) <= len(os.sched_getaffinity(0))


def test_set_num_threads_wins_over_the_environment() -> None:
    code = "import convbwd; convbwd.set_num_threads(2); print(convbwd.get_num_threads())"
    assert int(_run(code, CONVBWD_NUM_THREADS="3")) == 2


def test_set_num_threads_round_trip() -> None:
    for threads in (1, 4, np.int64(2)):
        convbwd.set_num_threads(threads)
        assert convbwd.get_num_threads() == threads

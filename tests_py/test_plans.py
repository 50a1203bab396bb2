"""Plans, `out`, `accumulate` and `per_sample`: other ways to the same bits."""

import copy
import pickle
import re
import subprocess
import sys
import threading
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import convbwd
from cases import DTYPES, Case, arrange, bits, call_backward
from strategies import cases

TINY = ((1, 8, 8, 8), (1, 3, 8, 8), (8, 3, 3, 3))
WRITABLE = ("contiguous", "permuted", "sliced", "reversed")


def tiny(rng: np.random.Generator, dtype: Any = np.float32) -> list[np.ndarray]:
    """Return grad_output, input and weight of a small problem."""
    return [rng.standard_normal(shape).astype(dtype) for shape in TINY]


def plan_of(case: Case, operands: Any, **more: Any) -> convbwd.Plan:
    """Plan a case, from shapes and dtypes alone in every second one."""
    specs = [(a.shape, a.dtype) for a in operands[:3]] if case.seed % 2 else operands[:3]
    return convbwd.plan(*specs, output_mask=case.mask, **case.arguments(), **more)


@given(case=cases(), layouts=st.tuples(*[st.sampled_from(WRITABLE)] * 3))
def test_all_ways_lead_to_the_same_bits(case: Case, layouts: tuple[str, str, str]) -> None:
    operands = case.operands()
    expected = call_backward(case, operands, "auto")
    plan = plan_of(case, operands)
    memory = np.full(plan.workspace_size + 1 + 64, 0x5A, np.uint8)
    if all(np.array_equal(a.strides, np.empty(a.shape, a.dtype).strides) for a in operands[:3]):
        out = plan.empty()
        assert plan(*operands[:3], out=out, workspace=memory[1 : 1 + plan.workspace_size]) is out
        assert bits(out) == bits(expected)
        assert memory[0] == 0x5A and (memory[1 + plan.workspace_size :] == 0x5A).all()
    assert bits(plan(*operands[:3])) == bits(expected)

    rng = np.random.default_rng(case.seed)
    out = tuple(
        None if e is None else arrange(rng, np.zeros(e.shape), e.dtype, layout)
        for e, layout in zip(expected, layouts, strict=True)
    )
    for call in (
        plan,
        lambda *a, out: convbwd.convolution_backward(*a, out=out, output_mask=case.mask, **case.arguments()),
    ):
        got = call(*operands[:3], out=out)
        assert all(g is o for g, o in zip(got, out, strict=True))
        assert bits(got) == bits(expected)
        for o in out:
            if o is not None:
                o[...] = 0


@given(
    case=cases().filter(lambda case: "hifloat8" not in case.dtypes), layouts=st.tuples(*[st.sampled_from(WRITABLE)] * 3)
)
def test_accumulate_adds_in_the_dtype_of_the_result(case: Case, layouts: tuple[str, str, str]) -> None:
    operands = case.operands()
    gradients = call_backward(case, operands, "auto")
    rng = np.random.default_rng(case.seed)
    before = [None if g is None else rng.standard_normal(g.shape).astype(g.dtype) for g in gradients]
    expected = [None if g is None else g + b for g, b in zip(gradients, before, strict=True)]
    for planned in (False, True):
        out = [
            None if b is None else arrange(rng, b, b.dtype, layout) for b, layout in zip(before, layouts, strict=True)
        ]
        if planned:
            plan_of(case, operands, accumulate=True)(*operands[:3], out=out)
        else:
            convbwd.convolution_backward(
                *operands[:3], output_mask=case.mask, out=out, accumulate=True, **case.arguments()
            )
        assert bits(out) == bits(expected)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_accumulate_in_many_rows(rng: np.random.Generator, threads: int, dtype: type) -> None:
    dy, x, w = (rng.standard_normal(s).astype(dtype) for s in ((2, 3, 150, 140), (2, 4, 150, 140), (3, 4, 1, 1)))
    (dx, *_), before = convbwd.convolution_backward(dy, x, w), rng.standard_normal(x.shape).astype(dtype)
    expected = dx + before
    old = convbwd.get_num_threads()
    convbwd.set_num_threads(threads)
    try:
        layouts = ("sliced", "reversed", "permuted")
        for out in (before.copy(), *(arrange(rng, before, before.dtype, layout) for layout in layouts)):
            mask = (True, False, False)
            convbwd.convolution_backward(dy, x, w, output_mask=mask, out=(out, None, None), accumulate=True)
            assert bits([out]) == bits([expected])
    finally:
        convbwd.set_num_threads(old)


def test_accumulate_adds_values_not_codes(rng: np.random.Generator) -> None:
    codes = [convbwd.formats.cast(a, "hifloat8") for a in tiny(rng)]
    dx, dw, db = convbwd.convolution_backward(*codes, padding=1, dtype="hifloat8")
    assert dx is not None and dw is not None and db is not None
    out = (codes[1].copy(), dw.copy(), db.copy())
    convbwd.convolution_backward(*codes, padding=1, dtype="hifloat8", out=out, accumulate=True)
    total = sum(convbwd.formats.cast(a, "float32", source="hifloat8") for a in (dx, codes[1]))
    assert bits(out) == bits([convbwd.formats.cast(total, "hifloat8"), dw + dw, db + db])


@given(case=cases().filter(lambda case: case.batch is not None))
def test_per_sample_gradients_are_those_of_each_image(case: Case) -> None:
    operands = case.operands()
    dx, dw, db = convbwd.convolution_backward(*operands[:3], output_mask=case.mask, per_sample=True, **case.arguments())
    assert case.batch is not None
    whole = call_backward(case, operands, "auto")
    assert bits([dx]) == bits([whole[0]])
    for result, shape in ((dw, operands[2].shape), (db, operands[3].shape)):
        assert result is None or result.shape == (case.batch, *shape)
    for n in range(case.batch):
        one = call_backward(case, [operands[0][n : n + 1], operands[1][n : n + 1], operands[2]], "auto")
        got = [None if r is None else r[n] for r in (dw, db)]
        assert bits(got) == bits(one[1:])


@pytest.mark.parametrize("accumulate", [False, True])
def test_per_sample_into_strided_results(rng: np.random.Generator, accumulate: bool) -> None:
    dy, x, w = rng.standard_normal((5, 6, 9, 9)), rng.standard_normal((5, 4, 9, 9)), rng.standard_normal((6, 4, 3, 3))
    _, dw, db = convbwd.convolution_backward(dy, x, w, padding=1, per_sample=True)
    assert dw is not None and db is not None
    np.testing.assert_allclose(dw.sum(0), convbwd.convolution_backward(dy, x, w, padding=1)[1], rtol=1e-12)
    start = rng.standard_normal(dw.shape), rng.standard_normal(db.shape)
    out = (None, arrange(rng, start[0], float, "permuted"), arrange(rng, start[1], float, "reversed"))
    mask = (False, True, True)
    convbwd.convolution_backward(dy, x, w, padding=1, per_sample=True, output_mask=mask, out=out, accumulate=accumulate)
    expected = [g + s if accumulate else g for g, s in zip((dw, db), start, strict=True)]
    assert bits(out[1:]) == bits(expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_per_sample_bits_do_not_depend_on_threads(rng: np.random.Generator, threads: int) -> None:
    dy, x, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 24, 20, 20), (4, 16, 20, 20), (24, 16, 3, 3)))
    before = convbwd.get_num_threads()
    try:
        results = []
        for n in (1, threads):
            convbwd.set_num_threads(n)
            results.append(bits(convbwd.convolution_backward(dy, x, w, padding=1, per_sample=True)))
    finally:
        convbwd.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.parametrize("more", [{}, {"accumulate": True}, {"per_sample": True}])
def test_a_plan_call_allocates_nothing(rng: np.random.Generator, more: dict[str, bool]) -> None:
    dy, x, w = tiny(rng)
    plan = convbwd.plan(dy, x, w, padding=1, **more)
    out, workspace = plan.empty(), np.zeros(plan.workspace_size, np.uint8)

    def peak_of(call: Any) -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before

    class Nothing:
        def __call__(self, dy: Any, x: Any, w: Any, *, out: Any = None, workspace: Any = None) -> None:
            pass

    # What Python itself takes to pass keywords to an object counts for both.
    calls = [lambda f=f: f(dy, x, w, out=out, workspace=workspace) for f in (Nothing(), plan)]
    tracemalloc.start()
    try:
        peaks = [peak_of(call) for call in calls * 2]
    finally:
        tracemalloc.stop()
    assert peaks[2] == peaks[3]


@pytest.mark.parametrize("strided", [False, True])
def test_a_plan_keeps_its_threads_and_its_workspace(rng: np.random.Generator, strided: bool) -> None:
    shapes = ((4, 32, 28, 28), (4, 32, 28, 28), (32, 32, 3, 3))
    operands = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    before = convbwd.get_num_threads()
    try:
        convbwd.set_num_threads(1)
        plan = convbwd.plan(*shapes, padding=1)
        if strided:
            operands = [arrange(rng, a, a.dtype, "permuted") for a in operands]
        size = convbwd.plan(*operands, padding=1).workspace_size
        convbwd.set_num_threads(4)
        assert convbwd.plan(*operands, padding=1).workspace_size > size > 0
        workspace, out = np.empty(size, np.uint8), plan.empty()
        expected = bits(plan(*operands))
        for given in (None, list(out), out, [None, out[1], None]):
            got = plan(*operands, out=given, workspace=workspace)
            assert isinstance(got, tuple) and bits(got) == expected
            assert given is None or all(o is None or g is o for g, o in zip(got, given, strict=True))
            for o in out:
                o[...] = 0
    finally:
        convbwd.set_num_threads(before)


def test_a_workspace_stays_while_a_call_runs(rng: np.random.Generator) -> None:
    operands = [rng.standard_normal(s).astype(np.float32) for s in ((4, 64, 56, 56), (4, 64, 56, 56), (64, 64, 3, 3))]
    plan = convbwd.plan(*operands, padding=1)
    out, workspace = plan.empty(), bytearray(plan.workspace_size)
    refused, done = threading.Event(), threading.Event()

    def resize() -> None:
        while not done.is_set():
            try:
                workspace.append(0)
                workspace.pop()
            except BufferError:
                refused.set()

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        for more in ({"out": out}, {}):  # as planned, and with new arrays
            refused.clear()
            for _ in range(100):
                plan(*operands, workspace=workspace, **more)
                if refused.is_set():
                    break
            assert refused.is_set()
    finally:
        done.set()
        thread.join()
    workspace.clear()


def test_plans_serve_many_threads_at_once(rng: np.random.Generator) -> None:
    operands = tiny(rng)
    plan = convbwd.plan(*operands, padding=1)
    expected = bits(plan(*operands))
    got: list[Any] = []

    def work() -> None:
        for _ in range(50):
            got.append(bits(plan(*operands, out=plan.empty(), workspace=bytearray(plan.workspace_size))))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [expected] * 200


def test_specs() -> None:
    class Like:
        shape, dtype = TINY[1], "float32"

    reference = convbwd.plan(*(np.empty(s, np.float32) for s in TINY), padding=1)
    for specs in (TINY, (TINY[0], Like(), (TINY[2], np.float32)), [list(s) for s in TINY]):
        assert convbwd.plan(*specs, padding=1).explain() == reference.explain()
    half = convbwd.plan(*((s, ml_dtypes.bfloat16) for s in TINY), padding=1)
    assert [a.dtype for a in half.empty() if a is not None] == [DTYPES["bfloat16"]] * 3
    huge = convbwd.plan((1 << 20, 64, 510, 510), (1 << 20, 64, 512, 512), (64, 64, 3, 3))
    assert huge.flops == 2 * 2 * (1 << 20) * 64 * 64 * 9 * 510**2 + (1 << 20) * 64 * 510**2
    assert huge.workspace_size < 1 << 28


def test_what_a_plan_tells() -> None:
    plan = convbwd.plan((2, 32, 64, 64), (2, 32, 64, 64), (32, 32, 3, 3), padding=1)
    image, weight = 2 * 32 * 64 * 64, 32 * 32 * 9
    assert plan.flops == 2 * 2 * image * 32 * 9 + image
    assert plan.bytes_moved == 4 * (2 * (2 * image + weight) + image + 32)
    text = plan.explain(gflops=100, gbytes=10)
    assert all(f"\n{name}: " in text for name in ("grad_input", "grad_weight", "grad_bias"))
    assert "bound by computing" in text and "bound by memory" in text
    assert len(re.findall(r" tasks? on \d+ threads?,", text)) == 3
    assert str(plan.workspace_size) in repr(plan)
    html = plan._repr_html_()
    assert html.count("<tr>") == 3 and "<svg" in html and "grad_bias" in html


@pytest.mark.parametrize(
    ("limits", "kind", "message"),
    [
        ((100,), ValueError, "gflops and gbytes must be given together"),
        ((None, 10), ValueError, "gflops and gbytes must be given together"),
        ((0, 10), ValueError, "gflops and gbytes must be more than 0, got 0 and 10"),
        ((1, float("nan")), ValueError, "gflops and gbytes must be more than 0, got 1 and nan"),
        ((1, "10"), TypeError, "gbytes must be a number, got str"),
    ],
)
def test_what_limits_must_be(limits: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^explain: {message}"):
        convbwd.plan(*TINY, padding=1).explain(*limits)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (None, TypeError, "NoneType"),
        ("abc", TypeError, "str"),
        (np.ones(TINY[0]).tolist(), TypeError, "list"),
        ((1.0, 8, 8, 8), TypeError, "tuple: 'float'"),
        ((1, -8, 8, 8), ValueError, r"tuple: an array cannot have the shape \(1, -8, 8, 8\)"),
        ((1 << 70, 8, 8, 8), ValueError, "tuple: an array cannot have the shape"),
        ((1 << 62, 8, 8, 8), ValueError, "tuple: "),
        ((TINY[0], None), TypeError, "tuple: a dtype cannot be None"),
        (memoryview(np.ones((2, 2))), TypeError, "memoryview"),
        ((TINY[0], "float33"), TypeError, "tuple: data type 'float33' not understood"),
    ],
)
def test_what_may_be_planned_from(spec: Any, error: type[Exception], message: str) -> None:
    for name, specs in (("grad_output", (spec, *TINY[1:])), ("weight", (*TINY[:2], spec))):
        with pytest.raises(error, match=rf"^plan: {name} must be an array, a shape or \(shape, dtype\), got {message}"):
            convbwd.plan(*specs, padding=1)


def test_a_plan_never_changes() -> None:
    plan = convbwd.plan(*TINY, padding=1)
    for name in ("workspace_size", "flops", "bytes_moved", "other"):
        with pytest.raises(AttributeError):
            setattr(plan, name, 0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"out": 3}, TypeError, "out must be None or a sequence of 3 arrays"),
        ({"out": [None, None]}, ValueError, "out must hold 3 arrays, or None for some, got 2"),
        ({"out": [[1.0], None, None]}, TypeError, r"out\[0\] must be an array, got list"),
        (
            {"out": [None, np.empty((8, 3, 3, 4), np.float32), None]},
            ValueError,
            r"out\[1\].shape must be .*\(8, 3, 3, 3\)",
        ),
        (
            {"out": [None, None, np.empty((8, 1), np.float32)]},
            ValueError,
            r"out\[2\].shape must be .*\(8,\), got \(8, 1\)",
        ),
        ({"out": [None, None, np.empty(8)]}, TypeError, r"out\[2\].dtype must be .*float32, got float64"),
        ({"out": [None, None, np.empty(8, int)]}, TypeError, r"out\[2\].dtype must be float64, "),
        ({"out": [None, None, np.broadcast_to(np.float32(1), (8,))]}, ValueError, r"out\[2\] must be writeable"),
        ({"out": [None, None, np.ndarray(8, np.float32, bytearray(33), 1)]}, ValueError, r"out\[2\] must be aligned"),
        ({"accumulate": True}, TypeError, r"out\[0\] must be an array where accumulate is True"),
        ({"accumulate": 1}, TypeError, "accumulate must be a bool"),
        ({"per_sample": "no"}, TypeError, "per_sample must be a bool"),
    ],
)
def test_what_out_must_be(rng: np.random.Generator, change: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^convolution_backward: {message}"):
        convbwd.convolution_backward(*tiny(rng), padding=1, **change)


def test_out_where_nothing_is_wanted(rng: np.random.Generator) -> None:
    with pytest.raises(TypeError, match=r"out\[2\] must be None where output_mask leaves that gradient out"):
        convbwd.convolution_backward(
            *tiny(rng), padding=1, output_mask=[True, True, False], out=(None, None, np.empty(8, np.float32))
        )


@pytest.mark.parametrize(("channels", "large"), [(63, False), (64, True), (128, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_large_results_begin_with_a_line_of_the_cache(channels: int, large: bool, dtype: Any) -> None:
    image = np.ones((1, channels, 16, 4 * 16 // np.dtype(dtype).itemsize), dtype)  # 1 KiB a channel
    weight = np.ones((channels, 1, 1, 1), dtype)
    for _ in range(4):
        result = convbwd.convolution(image, weight, groups=channels)
        assert result.nbytes == channels << 10
        assert result.flags.owndata is not large
        assert result.flags.c_contiguous
        assert not large or result.ctypes.data % 64 == 0
        np.testing.assert_array_equal(result, image)


def test_copies_of_a_plan_are_the_plan() -> None:
    plan = convbwd.plan(*TINY, padding=1)
    assert copy.copy(plan) is plan
    assert copy.deepcopy([plan])[0] is plan
    with pytest.raises(TypeError, match="a Plan cannot be pickled"):
        pickle.dumps(plan)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_dtypes_of_ml_dtypes_by_name_in_a_process_that_has_not_imported_it(dtype: str) -> None:
    specs = tuple((shape, dtype) for shape in TINY)
    script = f"import convbwd; convbwd.plan(*{specs!r}, padding=1)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_overlapping_elements_are_refused(rng: np.random.Generator) -> None:
    twice = np.lib.stride_tricks.as_strided(np.empty(3, np.float32), (1, 3, 8, 8), (12, 4, 0, 0))
    with pytest.raises(
        ValueError,
        match=r"^convolution_backward: out\[0\] must have elements that do not overlap each other.*\(1, 3, 8, 8\)",
    ):
        convbwd.convolution_backward(*tiny(rng), padding=1, out=(twice, None, None))


def test_shared_memory_is_refused_and_leaves_everything_as_it_was(rng: np.random.Generator) -> None:
    operands = tiny(rng)
    plan = convbwd.plan(*operands, padding=1)
    free, workspace = plan.empty(), np.zeros(plan.workspace_size + 10_000, np.uint8)
    inside = workspace[64 : 64 + 32].view(np.float32)
    before = [a.copy() for a in operands]
    calls = [
        ((operands[1], None, None), {}, r"out\[0\] must not share memory with input"),
        ((None, operands[2][::-1], None), {}, r"out\[1\] must not share memory with weight"),
        ((None, None, operands[0][0, :, 0, 0]), {}, r"out\[2\] must not share memory with grad_output"),
        ((free[0], None, np.ravel(free[0])[:8]), {}, r"out\[2\] must not share memory with out\[0\]"),
        ((*free[:2], inside), {"workspace": workspace}, "workspace must not share memory"),
        ((None, None, inside), {"workspace": workspace}, "workspace must not share memory"),
        (free, {"workspace": operands[1].view(np.uint8).ravel()}, "workspace must"),
    ]
    for out, more, message in calls:
        with pytest.raises(ValueError, match=message):
            plan(*operands, out=out, **more)
        if not more:
            with pytest.raises(ValueError, match=message):
                convbwd.convolution_backward(*operands, padding=1, out=out)
    assert bits(operands) == bits(before)


def test_interleaved_results_do_not_overlap(rng: np.random.Generator) -> None:
    operands = [rng.standard_normal(s) for s in ((2, 4, 6, 6), (2, 4, 6, 6), (4, 4, 1, 1))]
    buffer = np.zeros((2, 4, 6, 6, 2))
    buffer[..., 1] = operands[1]
    dx = convbwd.convolution_backward(operands[0], buffer[..., 1], operands[2], out=(buffer[..., 0], None, None))[0]
    assert bits([dx]) == bits(convbwd.convolution_backward(*operands)[:1])


def test_what_a_plan_call_refuses(rng: np.random.Generator) -> None:
    dy, x, w = tiny(rng)
    plan = convbwd.plan(dy, x, w, padding=1)
    with pytest.raises(
        ValueError, match=r"plan: input must be as planned, float32 of shape \(1, 3, 8, 8\), got .*\(2, 3, 8, 8\)"
    ):
        plan(dy, np.concatenate([x, x]), w)
    with pytest.raises(TypeError, match=r"plan: weight must be as planned, float32 .*, got float64"):
        plan(dy, x, w.astype(float))
    last = convbwd.plan((1, 8, 8, 8), (1, 8, 8, 3), w.shape, padding=1, data_format="NHWC")
    with pytest.raises(
        ValueError, match=r"input must be as planned, float32 of shape \(1, 8, 8, 3\), got .*\(1, 3, 8, 8\)"
    ):
        last(np.zeros((1, 8, 8, 8), np.float32), x, w)
    for memory, message in (
        (np.empty(plan.workspace_size - 64, np.uint8), f"workspace must have {plan.workspace_size} bytes, got"),
        (np.empty(2 * plan.workspace_size, np.uint8)[::2], "workspace must be None or a writable"),
        (bytes(plan.workspace_size), "workspace must be None or a writable"),
        (np.empty(plan.workspace_size, object), "workspace must not hold Python objects, got an array of dtype object"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"plan: {message}"):
            plan(dy, x, w, out=plan.empty(), workspace=memory)
    with pytest.raises(ValueError, match=r"^plan: weight.shape\[1\] must be input channels / groups"):
        convbwd.plan(dy, x, w, padding=1, groups=3)
    with pytest.raises(ValueError, match="per_sample needs images with a batch axis"):
        convbwd.plan(dy[0], x[0], w, padding=1, per_sample=True)

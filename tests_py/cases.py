"""Problems that every test can draw, build and check: shared by the hypothesis strategies, the tests and the fuzzer.

A `Case` is one valid call with everything that a user may vary; `draw_case` draws one from a source of integers,
`check` runs it forward and backward and compares with the float64 reference.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

import convbwd
from convbwd import _reference
from numerics import MEMORY, TABLES, decode, encode, read_as, rounded

T = TypeVar("T")
Array = np.ndarray[Any, Any]

DTYPES = {name: dtype for name, dtype in MEMORY.items() if name not in TABLES}  # those that may be mixed
LAYOUTS = ("contiguous", "permuted", "sliced", "reversed", "broadcast", "unaligned", "record", "readonly")
FORMATS = {1: ("NCL", "NLC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
ALGORITHMS = ("auto", "direct", "reference", "matrix", *(["blas"] if convbwd.build_info()["blas"] != "none" else []))
PRECISIONS = ("default", "strict", "fast")
MASKS = tuple((dx, dw, db) for dx in (True, False) for dw in (True, False) for db in (True, False))


class Source(Protocol):
    """Where random choices come from: a NumPy generator here, hypothesis in strategies.py."""

    def integer(self, low: int, high: int) -> int:
        """Return an integer of low .. high."""

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""


class RandomSource:
    """A `Source` that draws from a seeded NumPy generator."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        """Return an integer of low .. high."""
        return int(self._rng.integers(low, high + 1))

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.integer(0, len(options) - 1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One valid call; sizes are the user's, channels are those of one group."""

    input_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    transposed: bool = False
    batch: int | None = 1  # None: one image without the batch axis
    groups: int = 1
    in_channels: int = 1
    out_channels: int = 1
    channels_last: bool = False
    mask: tuple[bool, bool, bool] = (True, True, True)
    dtypes: tuple[str, str, str] = ("float32",) * 3  # grad_output, input, weight
    cube_math_type: int = 0
    soc: str = "a2"
    layouts: tuple[str, str, str] = ("contiguous",) * 3
    data: str = "normal"  # or "integers", "nonfinite"
    precision: str = "default"
    spelling: int = 0  # which of the equivalent forms the arguments take
    seed: int = 0

    @property
    def output_size(self) -> tuple[int, ...]:
        """Spatial sizes of the forward result."""
        reach = [d * (k - 1) + 1 - sum(p) for k, p, d in zip(self.kernel, self.padding, self.dilation, strict=True)]
        sizes = zip(self.input_size, reach, self.stride, self.output_padding, strict=True)
        return tuple((i - 1) * s + r + op if self.transposed else (i - r) // s + 1 for i, r, s, op in sizes)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        first, second = self.in_channels, self.out_channels
        return (
            self.groups * (first if self.transposed else second),
            second if self.transposed else first,
            *self.kernel,
        )

    @property
    def bias_dtype(self) -> str:
        """Dtype of the bias."""
        return "float32" if self.dtypes[2] in TABLES else self.dtypes[2]

    def image_shape(self, channels: int, size: tuple[int, ...]) -> tuple[int, ...]:
        """Shape, as the user hands it over, of an image with that many channels a group."""
        c = self.groups * channels
        image = (*size, c) if self.channels_last else (c, *size)
        return image if self.batch is None else (self.batch, *image)

    def canonical(self, image: Array) -> Array:
        """View an image of this case as (N, C, *spatial)."""
        image = image[None] if self.batch is None else image
        return np.moveaxis(image, -1, 1) if self.channels_last else image

    def operands(self) -> tuple[Array, Array, Array, Array]:
        """Return grad_output, input, weight, bias with the dtypes, layouts and kind of data of this case."""
        rng = np.random.default_rng(self.seed)
        shapes = (
            self.image_shape(self.out_channels, self.output_size),
            self.image_shape(self.in_channels, self.input_size),
            self.weight_shape,
            (self.groups * self.out_channels,),
        )
        recipe = zip(shapes, (*self.dtypes, self.bias_dtype), (*self.layouts, self.layouts[2]), strict=True)
        grad_output, input, weight, bias = (make_operand(rng, s, d, lay, self.data) for s, d, lay in recipe)
        return grad_output, input, weight, bias

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments that both functions take, in one of their equivalent spellings."""
        form = (tuple, list, np.array)[self.spelling % 3]
        short = self.spelling % 2 == 0

        def spell(values: tuple[int, ...]) -> Any:
            if len(set(values)) > 1 or not short:
                return form(values)
            return form(values[:1]) if self.spelling % 4 else values[0]

        symmetric = all(before == after for before, after in self.padding)
        flat = tuple(p for pair in self.padding for p in pair)
        first, last = FORMATS[len(self.kernel)]
        return {
            "stride": spell(self.stride),
            "padding": spell(flat[::2]) if symmetric and self.spelling % 5 else form(flat if short else self.padding),
            "dilation": spell(self.dilation),
            "transposed": self.transposed,
            "output_padding": spell(self.output_padding),
            "groups": self.groups,
            "data_format": last if self.channels_last else first if short else None,
            "cube_math_type": convbwd.CubeMathType(self.cube_math_type) if short else self.cube_math_type,
            "soc": self.soc,
            "dtype": "hifloat8" if "hifloat8" in self.dtypes else None,
            "precision": self.precision,
        }


def wider(a: str, b: str) -> str:
    """Return the dtype that a result of these two operands has."""
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return max(a, b, key=lambda name: MEMORY[name].itemsize)


def make_operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, layout: str, data: str) -> Array:
    """Return random values of a shape and dtype in a memory layout."""
    drawn = tuple(1 if layout == "broadcast" and rng.random() < 0.5 else size for size in shape)
    values = rng.integers(-3, 4, drawn).astype(float) if data == "integers" else rng.standard_normal(drawn)
    if data == "nonfinite":
        chance = rng.random(drawn)
        values[chance < 0.1] = 0
        rare = chance > 1 - min(0.2, 1.5 / max(values.size, 1))
        values[rare] = rng.choice([np.inf, -np.inf, np.nan], drawn)[rare]
    elements = encode(values, dtype)
    return np.broadcast_to(elements, shape) if layout == "broadcast" else arrange(rng, elements, elements.dtype, layout)


def arrange(rng: np.random.Generator, values: Array, dtype: Any, layout: str) -> Array:
    """Return the values as an array of the dtype in a memory layout, with NaN in the memory between its elements."""
    shape = values.shape
    if layout == "permuted":
        order = rng.permutation(values.ndim)
        result = np.empty([shape[axis] for axis in order], dtype).transpose(np.argsort(order))
    elif layout == "sliced":
        hole = 0x80 if dtype == np.uint8 else np.nan
        result = np.full([2 * size + 1 for size in shape], hole, dtype)[tuple(slice(1, 2 * s + 1, 2) for s in shape)]
    elif layout == "reversed":
        flips = tuple(slice(None, None, int(step)) for step in rng.choice([1, -1], len(shape)))
        result = np.empty(shape, dtype)[flips]
    elif layout == "unaligned":
        result = np.ndarray(shape, dtype, bytearray(values.size * np.dtype(dtype).itemsize + 1), 1)
    elif layout == "record":  # strides that are not multiples of the element size
        result = np.zeros(shape, [("other", "u1"), ("value", dtype)])["value"]
    else:
        result = np.empty(shape, dtype)
    result[...] = values
    result.flags.writeable = layout != "readonly"
    return result


def draw_case(source: Source, scale: int = 1) -> Case:
    """Draw a valid call; `scale` multiplies the largest channel counts and output sizes."""
    n = source.integer(1, 3)
    transposed = source.choice((False, True))
    largest_kernel, largest_output = {1: (9, 10), 2: (5, 5), 3: (3, 3)}[n]
    largest_output = round(largest_output * scale ** (2 / (n + 1)))
    kernel, stride, dilation, padding, sizes, extra = [], [], [], [], [], []
    for _ in range(n):
        k, s, d = source.integer(1, largest_kernel), source.integer(1, 4), source.integer(1, 3)
        outputs = source.integer(1, largest_output)
        # Rows that no window reaches: fewer than a stride after a convolution, than output padding allows after a
        # transposed one.
        rest = source.integer(0, (max(s, d) if transposed else s) - 1)
        padded = (outputs - 1) * s + d * (k - 1) + 1 + rest
        before = source.integer(0, min(padded - 1, d * k))
        after = source.integer(0, min(padded - 1 - before, d * k))
        kernel.append(k)
        stride.append(s)
        dilation.append(d)
        padding.append((before, after))
        sizes.append(outputs if transposed else padded - before - after)
        extra.append(rest if transposed else 0)
    most = 6 * scale
    style = source.choice(("dense", "grouped", "depthwise", "multiplier", "divider"))
    if style in ("dense", "grouped"):
        groups = 1 if style == "dense" else source.integer(2, 4)
        in_channels, out_channels = (source.integer(1, most // groups + 1) for _ in range(2))
    else:
        groups = source.integer(1, most)
        in_channels, out_channels = 1 + (style == "divider"), 1 + (style == "multiplier")
    batch = source.integer(-1, 3)
    dtypes = draw_dtypes(source)
    return Case(
        input_size=tuple(sizes),
        kernel=tuple(kernel),
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
        output_padding=tuple(extra),
        transposed=transposed,
        batch=batch if batch >= 0 else None,
        groups=groups,
        in_channels=in_channels,
        out_channels=out_channels,
        channels_last=source.choice((False, True)),
        mask=source.choice(MASKS),
        dtypes=dtypes,
        cube_math_type=0 if "float64" in dtypes else source.choice((0, 0, 0, 1, 2, 3)),
        soc=source.choice(("a2", "950")),
        layouts=(source.choice(LAYOUTS), source.choice(LAYOUTS), source.choice(LAYOUTS)),
        data=source.choice(("normal", "integers")),
        precision=source.choice(PRECISIONS),
        spelling=source.integer(0, 59),
        seed=source.integer(0, 2**32 - 1),
    )


def draw_dtypes(source: Source) -> tuple[str, str, str]:
    """Draw the dtypes of grad_output, input, weight: mostly one for all, sometimes mixed."""
    names = tuple(DTYPES)
    if source.integer(0, 3):
        return (source.choice(tuple(MEMORY)),) * 3
    return source.choice(names), source.choice(names), source.choice(names)


def call_backward(case: Case, operands: Sequence[Array], algorithm: str) -> list[Array | None]:
    """Call convolution_backward as the case says."""
    results = convbwd.convolution_backward(
        *operands[:3], output_mask=case.mask, algorithm=algorithm, **case.arguments()
    )
    assert isinstance(results, tuple) and len(results) == 3, f"three results expected, got {results!r}"
    return list(results)


def call_plan(case: Case, operands: Sequence[Array], algorithm: str) -> list[Array | None]:
    """Call a plan as the case says, with a workspace full of NaN: a result that changes has read what nobody wrote."""
    plan = convbwd.plan(*operands[:3], output_mask=case.mask, algorithm=algorithm, **case.arguments())
    return list(plan(*operands[:3], workspace=np.full(plan.workspace_size, 0xFF, np.uint8)))


def call_forward(case: Case, operands: Sequence[Array], algorithm: str) -> Array:
    """Call convolution as the case says, with a bias where the mask asks for the gradient of one."""
    bias = operands[3] if case.mask[2] else None
    return convbwd.convolution(*operands[1:3], bias, algorithm=algorithm, **case.arguments())


def reference(case: Case, operands: Sequence[Array]) -> list[Array]:
    """Return grad_input, grad_weight, grad_bias and the output, channels-first and batched, in wide arithmetic."""
    dtype = np.longdouble if "float64" in case.dtypes else np.float64
    values = [decode(a, d) for a, d in zip(operands, (*case.dtypes, case.bias_dtype), strict=True)]
    return exact_results(case, values, dtype)


def exact_results(case: Case, values: Sequence[Array], dtype: Any = np.float64) -> list[Array]:
    """Return the same of operands given in float64, which are rounded as the case's mode says."""
    how = read_as(case.dtypes, case.cube_math_type, case.soc)
    dy, x, w = (rounded(v, to).astype(dtype) for v, to in zip(values[:3], how, strict=True))
    b = values[3].astype(dtype)
    dy, x = case.canonical(dy), case.canonical(x)
    geometry = (case.stride, case.padding, case.dilation, case.transposed)
    gradients = list(_reference.convolution_backward(dy, x, w, *geometry, case.groups))
    gradients[2] = case.canonical(values[0]).sum(axis=(0, *range(2, x.ndim)), dtype=dtype)  # never rounded
    bias = b if case.mask[2] else None
    return [*gradients, _reference.convolution(x, w, bias, *geometry, case.output_padding, case.groups)]


def compare(
    name: str, case: Case, algorithm: str, result: Array, dtype: str, exact: Array, magnitude: Array, terms: int
) -> None:
    """Check one result, already channels-first and batched, against the wide reference."""
    got = decode(result, dtype)
    exact64 = exact.astype(np.float64)
    nearest = rounded(exact64, dtype)
    if case.data == "integers":
        wrong = ~((got == nearest) | np.isnan(got) & np.isnan(nearest))
        assert not wrong.any(), (
            f"{name}: integers differ at {first(wrong)}: got {got[wrong][0]}, not {nearest[wrong][0]}"
        )
        return
    wide = algorithm == "reference" or dtype == "float64"
    bound = (4 + math.sqrt(terms)) * np.finfo(np.float64 if wide else np.float32).eps * magnitude
    # Rounding is monotonic: the result lies between the rounded ends of the interval around the exact value.
    low, high = exact - bound, exact + bound
    if MEMORY[dtype].itemsize < (8 if wide else 4):
        low, high = (finite_or_infinite(rounded(v.astype(np.float64), dtype), exact64) for v in (low, high))
        got = np.where(np.isfinite(exact64), finite_or_infinite(got, exact64), got)
    finite = np.isfinite(exact)
    spread = finite & np.isfinite(low) & np.isfinite(high) & ~np.isfinite(got)
    if algorithm in ("direct", "reference") or (algorithm, case.precision) == ("auto", "strict"):
        assert not spread.any(), f"{name}: {got[spread][0]} at {first(spread)}, where all operands are finite"
        same = np.where(np.isnan(nearest), np.isnan(got), got == nearest)
        wrong = ~finite & ~same
        assert not wrong.any(), f"{name}: {got[wrong][0]} at {first(wrong)}, not {exact[wrong][0]}"
    else:
        lost = ~finite & np.isfinite(got)
        assert not lost.any(), f"{name}: {got[lost][0]} at {first(lost)}, not {exact[lost][0]}"
    wrong = finite & ~spread & ~((low <= got) & (got <= high))
    if wrong.any():
        ratio = float(np.max(np.abs(got - exact)[wrong] / np.maximum(bound[wrong], 1e-300)))
        where = f"got {got[wrong][0]} at {first(wrong)}, not {exact[wrong][0]}"
        raise AssertionError(f"{name}: {where}: {ratio:.3g} times the bound, {wrong.sum()} of {wrong.size}")


def finite_or_infinite(values: Array, exact: Array) -> Array:
    """Return values with infinity for NaN, which is what a type without infinity has for what is beyond it."""
    return np.where(np.isnan(values), np.copysign(np.inf, exact), values)


def bits(results: Sequence[Array | None]) -> list[bytes | None]:
    """Return the bytes of results; all NaNs count as one."""
    return [None if r is None else _one_nan(r).tobytes() for r in results]


def _one_nan(result: Array) -> Array:
    """Return an array with one pattern of bits for all NaNs; codes of HiFloat8 have but one anyway."""
    return result if result.dtype == np.uint8 else np.where(np.isnan(result), np.array(np.nan, result.dtype), result)


def first(wrong: Array) -> tuple[int, ...]:
    """Return the first index where a mask is true."""
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def check(case: Case, algorithm: str = "auto") -> None:
    """Run a case both ways: values, dtypes, shapes, masks; inputs untouched; the bits independent of input layouts."""
    operands = case.operands()
    before = [a.tobytes() for a in operands]
    results = [*call_backward(case, operands, algorithm), call_forward(case, operands, algorithm)]
    assert before == [a.tobytes() for a in operands], "an operand was written to"

    plain = [np.ascontiguousarray(a) for a in operands]
    repeated = [*call_plan(case, plain, algorithm), call_forward(case, plain, algorithm)]
    assert bits(results) == bits(repeated), f"the layouts {case.layouts} or the workspace change the bits"

    dy, x, w = case.dtypes
    outputs = case.batch if case.batch is not None else 1
    outputs *= math.prod(case.input_size if case.transposed else case.output_size)
    taps = math.prod(case.kernel)
    narrow = dy in TABLES
    expectations = (
        ("grad_input", operands[1].shape, wider(x, dy), case.out_channels * taps),
        ("grad_weight", operands[2].shape, "float32" if narrow else wider(w, dy), outputs),
        (
            "grad_bias",
            operands[3].shape,
            "float32" if narrow else dy,
            case.canonical(operands[0]).shape[0] * math.prod(case.output_size),
        ),
        ("output", operands[0].shape, wider(x, w), case.in_channels * taps + 1),
    )
    with np.errstate(all="ignore"):  # the arithmetic of NaN and Inf is the point of some cases
        exact = reference(case, operands)
        magnitude = exact_results(
            case, [np.abs(decode(a, d)) for a, d in zip(operands, (*case.dtypes, case.bias_dtype), strict=True)]
        )
        for i, (result, asked, (name, shape, dtype, terms)) in enumerate(
            zip(results, (*case.mask, True), expectations, strict=True)
        ):
            if not asked:
                assert result is None, f"{name} is masked out but came back"
                continue
            assert isinstance(result, np.ndarray), f"{name} is {result!r}"
            assert result.shape == shape, f"{name} has shape {result.shape}, not {shape}"
            assert result.dtype == MEMORY[dtype], f"{name} has dtype {result.dtype}, not {dtype}"
            assert result.flags.c_contiguous and result.flags.writeable, f"{name}: {result.flags}"
            assert not any(np.may_share_memory(result, a) for a in operands), f"{name} shares memory with an operand"
            got = case.canonical(result) if name in ("grad_input", "output") else result
            compare(name, case, algorithm, got, dtype, exact[i], magnitude[i], terms)

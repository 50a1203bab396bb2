"""Conv3DBackpropInput of Ascend C: its tiling is CANN's, its tiles together are the gradient."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import convbwd
from cases import RandomSource
from convbwd import _core
from tiling_reference import Reference

ONES = (1, 1, 1, 1, 1)


def size_of_output(x, k, stride, pads, dilation):
    before, after = pads[::2], pads[1::2]
    return tuple(
        (n + b + a - (k - 1) * d - 1) // s + 1
        for n, k, s, b, a, d in zip(x, k, stride, before, after, dilation, strict=True)
    )


def draw_problem(source):
    """Return sizes of a convolution that a device might take."""
    large = source.integer(0, 2) == 0
    kernel = tuple(source.choice([1, 1, 2, 3, 3, 5, 7, 31] if large else [1, 2, 3]) for _ in range(3))
    dilation = tuple(source.choice([1, 1, 1, 2, 3, 30]) for _ in range(3))
    strides = [1, 1, 2, 3, 4, 17] if large else [1, 2, 3]
    stride = (
        source.integer(1, kernel[0] + (source.integer(0, 9) == 0)),
        source.choice(strides),
        source.choice(strides),
    )
    pads = tuple(source.integer(0, kernel[i // 2] - 1) for i in range(6))
    least = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    most = (16, 256, source.choice([256, 4000])) if large else (4, 40, 40)
    x = tuple(max(low, source.integer(1, high)) for low, high in zip(least, most, strict=True))
    channels = [source.choice([1, 3, 16, 17, 64, 130, 512, 1280] if large else [1, 5, 16, 33]) for _ in range(2)]
    return source.integer(1, 17), *channels, x, kernel, stride, pads, dilation


def test_tiling_is_canns():
    """Number for number, on 2,000 problems that devices take; what they refuse is refused."""
    source, legal, refused = RandomSource(0), 0, 0
    while legal < 2000:
        n, ci, co, x, k, stride, pads, dilation = draw_problem(source)
        y = size_of_output(x, k, stride, pads, dilation)
        dtype, cores = source.choice(["float16", "float32"]), source.choice([1, 1, 2, 8, 20, 24])
        expected = Reference(n, ci, x, co, y, k, stride, pads, dilation, dtype == "float32", cores).tiling()
        zero = np.zeros((), dtype)

        def tiling(
            n=n, ci=ci, co=co, x=x, k=k, y=y, stride=stride, pads=pads, dilation=dilation, zero=zero, cores=cores
        ):
            w, dy = np.broadcast_to(zero, (co, ci, *k)), np.broadcast_to(zero, (n, co, *y))
            spaced = [(1, 1, *values) for values in (stride, dilation)]
            args = ((n, ci, *x), w, dy, spaced[0], pads, spaced[1], "NCDHW", None, None, None, cores, {})
            return _core.InputTiles(*args).tiling

        if isinstance(expected, str):
            refused += 1
            with pytest.raises(ValueError, match=r"^Conv3DBackpropInput: "):
                tiling()
            continue
        legal += 1
        t = tiling()
        single = ["Batch", "Group", "Din", "Ho", "M", "Cout", "Cout1", "Cin", "Cin1"]
        assert [t[f"singleCore{name}"] for name in single] == expected["single"]
        assert [t[f"base{name}"] for name in ["M", "K", "N", "D", "Batch", "Group"]] == expected["base"]
        assert [t[f"{name}Pbuffer"] for name in ["al0", "bl0", "cl0", "al1", "bl1"]] == expected["pb"]
        assert [t[f"step{name}"] for name in ["M", "N", "Ka", "Kb", "Batch", "Group"]] == expected["step"]
        assert [t["iterateOrder"], t["hf32Flag"]] == expected["other"]
        assert t["initOutputFlag"] == expected["initOutputFlag"]
        for side in ("tail", "up", "down", "left", "right"):
            assert t[f"backpropPad{side.capitalize()}"] == expected["backpropPad"][side]
        names = "batch cin cout di hi wi dout ho wo dk hk wk strideD strideH strideW dilationD dilationH dilationW"
        assert [t[name] for name in names.split()] == [n, ci, co, *x, *y, *k, *stride, *dilation]
        assert [t[f"pad{side}"] for side in ["Front", "Back", "Up", "Down", "Left", "Right"]] == list(pads)
    assert refused > 20


PROBLEMS = {  # batch, channels, sizes, kernel, stride, padding, dilation, tiling
    "padded": (2, 5, 9, (4, 6, 7), (2, 3, 2), (1, 1, 1), (1, 0, 1, 1, 0, 1), (1, 1, 1), {}),
    "strided": (1, 18, 20, (5, 9, 8), (3, 3, 3), (2, 2, 2), (1,) * 6, (1, 1, 1), {"baseM": 25}),
    "dilated": (1, 33, 5, (3, 8, 6), (1, 3, 2), (1, 2, 1), (0, 0, 2, 1, 1, 0), (1, 2, 3), {"baseN": 16}),
    "blocks": (
        *(1, 40, 17, (2, 8, 6), (1, 2, 2), (1, 1, 1), (0,) * 6, (1, 1, 1)),
        {"baseM": 16, "baseN": 16, "singleCoreM": 24, "singleCoreCin": 32},
    ),
    "ragged": (
        *(1, 34, 17, (3, 8, 6), (2, 3, 2), (1, 3, 2), (1, 0, 1, 2, 0, 1), (1, 1, 1)),
        {"baseM": 7, "baseN": 16, "singleCoreM": 18, "singleCoreCin": 16},
    ),
}


def make(name, dtype, data_format="NCDHW", **options):
    """Return the operator and the gradient by definition, from small integers."""
    n, ci, co, x, k, stride, pads, dilation, tiling = PROBLEMS[name]
    rng = np.random.default_rng(0)
    w = rng.integers(-3, 4, (co, ci, *k)).astype(dtype)
    dy = rng.integers(-3, 4, (n, co, *size_of_output(x, k, stride, pads, dilation))).astype(dtype)
    dx = convbwd.conv3d_backprop_input(
        (n, ci, *x), w.astype(float), dy.astype(float), (1, 1, *stride), pads, (1, 1, *dilation), data_format="NCDHW"
    )
    last = data_format == "NDHWC"
    order = (lambda a: np.moveaxis(a, 1, -1)) if last else (lambda a: a)
    lead = (lambda values: (1, *values, 1)) if last else (lambda values: (1, 1, *values))
    size = (n, *x, ci) if last else (n, ci, *x)
    op = convbwd.Conv3DBackpropInput(
        size, order(w), order(dy), lead(stride), pads, lead(dilation), data_format, tiling={**tiling, **options}
    )
    return op, dx


DTYPES = {"float16": np.float16, "float32": np.float32}


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_tiles_are_the_gradient(name, dtype):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else DTYPES[dtype]
    op, dx = make(name, dtype)
    n, c, d, h, w = op.shape
    gradient, times = np.full((n, c, d, h * w), np.nan), np.zeros((n, c, d, h * w), int)
    for tile in op.tiles():
        assert tile.values.dtype == dtype
        assert tile.values.shape[0] <= op.tiling["baseN"] and tile.values.shape[1] <= op.tiling["baseM"]
        gradient[tile.place] = tile.values
        times[tile.place] += 1
    assert (times == 1).all()
    np.testing.assert_array_equal(gradient.reshape(op.shape), dx.astype(dtype).astype(float))
    np.testing.assert_array_equal(op.run().astype(float), dx.astype(dtype).astype(float))


def test_random_tilings_of_random_problems():
    source, done = RandomSource(1), 0
    while done < 150:
        n, ci, co, x, k, stride, pads, dilation = draw_problem(source)
        y = size_of_output(x, k, stride, pads, dilation)
        refused = isinstance(Reference(n, ci, x, co, y, k, stride, pads, dilation, fp32=True).tiling(), str)
        if refused or n * ci * co * np.prod(x) * np.prod(k) > 3e6:
            continue
        done += 1
        rng = np.random.default_rng(done)
        w, dy = rng.integers(-3, 4, (co, ci, *k)).astype("f"), rng.integers(-3, 4, (n, co, *y)).astype("f")
        call = ((n, ci, *x), w, dy, (1, 1, *stride), pads, (1, 1, *dilation))
        rows, blocks = source.integer(1, x[1]), source.integer(1, 3)
        tiling = {
            "baseM": source.integer(1, rows * x[2]),
            "baseN": 8 * source.integer(1, blocks),
            "singleCoreM": rows * x[2],
            "singleCoreCin": 8 * blocks,
            "iterateOrder": source.integer(0, 1),
        }
        op = convbwd.Conv3DBackpropInput(*call, data_format="NCDHW", tiling=tiling)
        np.testing.assert_array_equal(op.run(), convbwd.conv3d_backprop_input(*call, data_format="NCDHW"), str(call[0]))


def test_tiles_of_reals_are_near():
    rng = np.random.default_rng(1)
    w, dy = rng.standard_normal((20, 18, 3, 3, 3), np.float32), rng.standard_normal((1, 20, 3, 5, 4), np.float32)
    size, rest = (1, 18, 5, 9, 8), {"strides": (1, 1, 2, 2, 2), "pads": (1,) * 6, "data_format": "NCDHW"}
    got = convbwd.Conv3DBackpropInput(size, w, dy, **rest).run()
    exact = convbwd.conv3d_backprop_input(size, w.astype(float), dy.astype(float), **rest)
    bound = convbwd.conv3d_backprop_input(size, abs(w), abs(dy), **rest)
    assert (abs(got - exact) <= 32 * np.finfo(np.float32).eps * bound).all()


def test_formats_agree():
    first, dx = make("padded", np.float32)
    last, _ = make("padded", np.float32, "NDHWC")
    np.testing.assert_array_equal(last.run(), np.moveaxis(dx, 1, -1))
    assert [t.place for t in first.tiles()] == [t.place for t in last.tiles()]


def test_codes_of_bfloat16():
    w, dy = (np.full(s, 0x3F80, np.uint16) for s in ((1, 1, 1, 2, 2), (1, 1, 1, 3, 3)))  # ones
    op = convbwd.Conv3DBackpropInput((1, 1, 1, 4, 4), w, dy, ONES, (0,) * 6, data_format="NCDHW", dtype="bfloat16")
    np.testing.assert_array_equal(op.run()[0, 0, 0, 1], [0x4000, 0x4080, 0x4080, 0x4000])  # 2, 4, 4, 2


def test_reads_are_what_a_tile_depends_on():
    op, _ = make("ragged", np.float32)
    n, ci, co, x, k, stride, pads, dilation, _ = PROBLEMS["ragged"]
    w = np.ones((co, ci, *k))
    shape = size_of_output(x, k, stride, pads, dilation)
    for tile in list(op.tiles())[::5]:
        reads = op.reads(tile)
        assert reads.shape == shape
        for at in np.ndindex(shape):
            dy = np.zeros((n, co, *shape))
            dy[0, 0, *at] = 1
            dx = convbwd.conv3d_backprop_input(
                (n, ci, *x), w, dy, (1, 1, *stride), pads, (1, 1, *dilation), data_format="NCDHW"
            )
            assert dx.reshape(n, ci, x[0], -1)[tile.place].any() == reads[at]


def test_pictures(tmp_path):
    op, _ = make("blocks", np.float16)
    tiles = list(op.tiles())
    by_positions = {(t.positions.start, t.positions.stop) for t in tiles}
    for picture in (op.picture(), op.picture(tiles[1])):
        root = ElementTree.fromstring(picture)
        assert len(root.findall("{*}polygon")) == len(by_positions)
        assert picture._repr_svg_() == picture
        picture.save(tmp_path / "picture.svg")
        assert (tmp_path / "picture.svg").read_text(encoding="utf-8") == picture
    assert op.picture().count("#f4a259") == 0 < op.picture(tiles[1]).count("#f4a259")
    assert "out_backprop, plane 0" in op.picture(tiles[1])
    html = op._repr_html_()
    assert op.picture() in html and f"{len(tiles) // 2} tiles in each plane" in html


def test_numbers_of_a_tiling_are_read_only():
    op, _ = make("blocks", np.float16)
    with pytest.raises(TypeError):
        op.tiling["baseM"] = 16


@pytest.mark.parametrize("order", [0, 1])
def test_tiles_come_in_the_order_of_their_numbers(order):
    op, dx = make("blocks", np.float16, iterateOrder=order)
    assert [(t.channels, t.positions) for t in op.tiles() if t.plane == 0] == op._places()
    np.testing.assert_array_equal(op.run(), dx)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tiling": {"baseX": 3}}, "must be a number of the tiling, got 'baseX'"),
        ({"tiling": {"baseM": 0}}, "got baseM = 0"),
        ({"tiling": {"baseM": -1}}, "baseM must be from 0"),
        ({"tiling": {"singleCoreM": 0}}, "singleCoreM must be whole rows"),
        ({"tiling": {"baseN": 24}}, "whole blocks of c0 = 16"),
        ({"tiling": {"singleCoreM": 5}}, "singleCoreM must be whole rows of wi = 8, got 5"),
        ({"tiling": {"singleCoreCin": 8}}, "singleCoreCin must be whole blocks of channels of c0 = 16, got 8"),
        (
            {"pads": (0, 0, 3, 0, 0, 0), "out_backprop": np.zeros((1, 2, 1, 9, 6), np.float16)},
            "the padding of the height",
        ),
        ({"pads": (0, 0, 1, 0, 0, 0)}, r"out_backprop.shape must be \(1, 2, 1, 7, 6\), got \(1, 2, 1, 6, 6\)"),
        ({"input_size": (1, 6, 1, 8, 8)}, "group must be 1, got 2"),
        ({"cores": 0}, "cores must be from 1"),
        ({"tiling": {"batch": 2}}, "batch must be 1 as the arguments say, got 2"),
        ({"tiling": {"cin": 17}}, "cin must be "),
        ({"tiling": {"padFront": 1}}, "padFront must be 0 as the arguments say, got 1"),
    ],
)
def test_what_is_refused(changes, message):
    arguments = {
        "input_size": (1, 3, 1, 8, 8),
        "filter": np.zeros((2, 3, 1, 3, 3), np.float16),
        "out_backprop": np.zeros((1, 2, 1, 6, 6), np.float16),
        "strides": ONES,
        "pads": (0,) * 6,
        "data_format": "NCDHW",
    }
    assert convbwd.Conv3DBackpropInput(**arguments).run().shape == (1, 3, 1, 8, 8)
    with pytest.raises(ValueError, match=message):
        convbwd.Conv3DBackpropInput(**{**arguments, **changes})


def test_repr():
    op = convbwd.Conv3DBackpropInput(
        (1, 32, 1, 8, 9), np.zeros((8, 32, 1, 3, 3), "f2"), np.zeros((1, 8, 1, 6, 7), "f2"), ONES, (0,) * 6,
        data_format="NCDHW", tiling={"baseM": 48, "baseN": 16},
    )  # fmt: skip
    facts = "N, C, D, H, W = (1, 32, 1, 8, 9), float16; 4 tiles in each plane, of up to 48 positions x 16 channels"
    assert repr(op) == f"<convbwd.Conv3DBackpropInput: {facts}>"
    assert facts in op._repr_html_()


def test_types_that_are_refused():
    w, dy = np.zeros((2, 3, 1, 3, 3)), np.zeros((1, 2, 1, 6, 6))
    with pytest.raises(
        TypeError, match="Conv3DBackpropInput: operands must be float16, bfloat16 or float32, got float64"
    ):
        convbwd.Conv3DBackpropInput((1, 3, 1, 8, 8), w, dy, ONES, (0,) * 6, data_format="NCDHW")
    with pytest.raises(TypeError, match="baseM must be an int, got str"):
        convbwd.Conv3DBackpropInput(
            (1, 3, 1, 8, 8), w.astype("f"), dy.astype("f"), ONES, (0,) * 6, data_format="NCDHW", tiling={"baseM": "3"}
        )


def test_notebook():
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("matplotlib")
    notebook = nbformat.read(Path(__file__).resolve().parent.parent / "examples" / "tiles.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    notebook = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert "the tiles are the gradient: True" in "".join(o.get("text", "") for o in outputs)
    assert sum("image/svg+xml" in o.get("data", {}) for o in outputs) == 3

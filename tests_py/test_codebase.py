"""Rules about the source itself."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import convbwd
from convbwd.__main__ import main

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
SOURCES = sorted(p.relative_to(CSRC) for p in CSRC.rglob("*") if p.suffix in (".cpp", ".hpp", ".h", ".inl"))
FACES = ("ascendc", "cann", "infiniop")
LAYERS = {
    "include/convbwd/types.hpp": 0,
    "include/convbwd/layouts.hpp": 1,
    **{f"include/{face}": 0 for face in FACES},  # of somebody else: they know nothing of the library
    "base": 1,
    "kernels": 2,
    "format": 3,
    "engine": 4,
    "conv": 5,
    "include": 5,
    "bindings": 6,
    **{face: 6 for face in FACES},
}
ROOTS = ("", "include/", *(f"include/{face}/" for face in FACES))  # of what an include names


def layer(path: str) -> tuple[str, int]:
    """Return the layer of a file below csrc and its height."""
    name = max((name for name in LAYERS if f"{path}/".startswith(f"{name}/")), key=len)
    return name, LAYERS[name]


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_includes_point_downwards(source: Path) -> None:
    name, height = layer(source.as_posix())
    for include in re.findall(r'^\s*#\s*include\s+"([^"]+)"', (CSRC / source).read_text(), re.MULTILINE):
        path = next((root + include for root in ROOTS if (CSRC / (root + include)).is_file()), None)
        assert path, f"{source} includes {include}, which is not a path below csrc"
        other, below = layer(path)
        # `conv` implements the public C++ interface, which stands beside it.
        allowed = other == name or below < height or {name, other} == {"conv", "include"}
        assert allowed, f"{source} ({name}) includes {include} ({other})"


@pytest.mark.parametrize("source", [s for s in SOURCES if s.suffix in (".hpp", ".h")], ids=str)
def test_headers_are_guarded(source: Path) -> None:
    code = [line for line in (CSRC / source).read_text().splitlines() if line and not line.startswith("//")]
    assert code[0] == "#pragma once"


@pytest.mark.parametrize("source", [s for s in SOURCES if s.parts[0] == "include"], ids=str)
def test_public_headers_include_only_public_headers(source: Path) -> None:
    root = CSRC / "include" / ("" if source.parts[1] == "convbwd" else source.parts[1])
    for include in re.findall(r'#include "([^"]+)"', (CSRC / source).read_text()):
        assert (root / include).is_file()


def test_there_is_one_version() -> None:
    cmake = re.search(r"project\(\s*convbwd\s+VERSION\s+([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert cmake is not None
    version = cmake[1]
    assert convbwd.__version__ == convbwd.build_info()["version"] == importlib.metadata.version("convbwd") == version
    released = re.search(r"^## \[?(\d[\d.]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released is not None
    assert released[1] == version


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("cmakedir", ["convbwdConfig.cmake", *(f"convbwd_{face}Targets.cmake" for face in FACES)]),
        ("libdir", ["libconvbwd.so", *(f"libconvbwd_{face}.so" for face in FACES)]),
        (
            "includes",
            [
                "convbwd/convbwd.hpp",
                "lib/conv_backprop/conv3d_bp_input_api.h",
                "aclnnop/aclnn_convolution_backward.h",
                "infiniop/ops/conv_backward.h",
            ],
        ),
        ("ascend-home", ["include/acl/acl.h", "lib64/libascendcl.so", "lib64/libopapi.so", "lib64/libnnopbase.so"]),
        ("infini-root", ["include/infiniop.h", "lib/libinfiniop.so", "lib/libinfinirt.so"]),
    ],
)
def test_installed_files_are_found(option: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([f"--{option}"])
    places = [Path(place.removeprefix("-I")) for place in capsys.readouterr().out.split()]
    for name in names:
        assert any((place / name).is_file() for place in places), f"{name} is not in {places}"


REFUSED = """
import ctypes, sys
from ctypes import byref, c_int, c_size_t, c_void_p
library = ctypes.CDLL(sys.argv[1])
library.infiniopGetRecentErrMsg.restype = ctypes.c_char_p
handle, op, descriptors = c_void_p(), c_void_p(), []
assert library.infiniopCreateHandle(byref(handle)) == 0
float32 = 13
describe = library.infiniopCreateTensorDescriptor
for shape in (1, 1, 7), (1, 1, 3), (1, 1, 2):  # grad_output, which has 2; input, weight
    descriptors.append(c_void_p())
    assert describe(byref(descriptors[-1]), c_size_t(3), (c_size_t * 3)(*shape), None, float32) == 0
attributes = [(c_int * 1)(0), (c_int * 1)(1), (c_int * 1)(1)]
create = library.infiniopCreateConvBackwardDescriptor
status = create(handle, byref(op), *descriptors, None, *attributes, c_size_t(1))
print(status, library.infiniopGetRecentErrMsg().decode())
"""


@pytest.mark.parametrize(
    ("option", "name"), [("libdir", "libconvbwd_infiniop.so"), ("infini-root", "lib/libinfiniop.so")]
)
def test_what_the_engine_refuses_comes_back_as_a_status(
    option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([f"--{option}"])
    library = Path(capsys.readouterr().out.strip()) / name
    done = subprocess.run([sys.executable, "-c", REFUSED, library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(r"11 .*\(1, 1, 2\)", done.stdout), done.stdout


def test_everything_public_is_documented() -> None:
    for name in convbwd.__all__:
        documentation = getattr(convbwd, name).__doc__ if name != "__version__" else "a string"
        assert documentation, f"{name} has no docstring"

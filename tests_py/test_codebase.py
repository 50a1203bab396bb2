"""Rules about the source itself."""

import importlib.metadata
import re
from pathlib import Path

import pytest

import convbwd

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
SOURCES = sorted(p.relative_to(CSRC) for p in CSRC.rglob("*") if p.suffix in (".cpp", ".hpp", ".h", ".inl"))
LAYERS = {
    "include/convbwd/types.hpp": 0,
    "base": 1,
    "kernels": 2,
    "format": 3,
    "engine": 4,
    "conv": 5,
    "include": 5,
    "bindings": 6,
}


def layer(path: str) -> tuple[str, int]:
    """Return the layer of a file below csrc and its height."""
    name = path if path in LAYERS else path.partition("/")[0]
    return name, LAYERS[name]


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_includes_point_downwards(source: Path) -> None:
    name, height = layer(source.as_posix())
    for include in re.findall(r'^\s*#\s*include\s+"([^"]+)"', (CSRC / source).read_text(), re.MULTILINE):
        path = f"include/{include}" if include.startswith("convbwd/") else include
        assert (CSRC / path).is_file(), f"{source} includes {include}, which is not a path below csrc"
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
    for include in re.findall(r'#include "([^"]+)"', (CSRC / source).read_text()):
        assert include.startswith("convbwd/")


def test_there_is_one_version() -> None:
    cmake = re.search(r"project\(\s*convbwd\s+VERSION\s+([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert cmake is not None
    version = cmake[1]
    assert convbwd.__version__ == convbwd.build_info()["version"] == importlib.metadata.version("convbwd") == version
    released = re.search(r"^## \[?(\d[\d.]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released is not None
    assert released[1] == version


def test_everything_public_is_documented() -> None:
    for name in convbwd.__all__:
        documentation = getattr(convbwd, name).__doc__ if name != "__version__" else "a string"
        assert documentation, f"{name} has no docstring"

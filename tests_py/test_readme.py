"""What the documentation shows: its examples run, and the names in it exist."""

import doctest
import re
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import convbwd
from convbwd import _api, _ascend, _double, _gradcheck, _plan, _tiles, formats

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
README = (ROOT / "README.md").read_text()
DESIGN = "".join((CSRC / name).read_text() for name in ("README.md", "MEASUREMENTS.md"))


def blocks(language: str) -> list[str]:
    """Return the code blocks of README.md in a language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no {language} block"
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


MODULES = [_api, _ascend, _double, _gradcheck, _plan, _tiles, formats]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_docstring_examples_run(module: ModuleType) -> None:
    tried = doctest.testmod(module)
    assert tried.attempted > 0 and tried.failed == 0


def test_cpp_example_is_the_one_that_is_tested() -> None:
    consume = ROOT / "tests_cpp" / "consume"
    assert blocks("cmake") == [(consume / "CMakeLists.txt").read_text()]
    for code in blocks("cpp"):
        assert textwrap.indent(code, "  ") in (consume / "main.cpp").read_text()


def test_error_message_is_what_a_mistake_gives() -> None:
    message = re.search(r"^ *(convolution_backward: .+)$", README, re.MULTILINE)
    assert message is not None
    with pytest.raises(ValueError, match=f"^{re.escape(message[1])}$"):
        convbwd.convolution_backward(np.ones((2, 8, 7, 7)), np.ones((2, 16, 9, 9)), np.ones((8, 4, 3, 3)), groups=2)


def test_commands_exist() -> None:
    commands = " ".join(blocks("sh"))
    for script in re.findall(r"\.ci/\w+|bench/\w+\.py", commands):
        assert (ROOT / script).is_file(), script


PAGES = ["README.md", "csrc/README.md", "csrc/MEASUREMENTS.md", "bench/README.md", "docs/names.md", "docs/accuracy.md"]


@pytest.mark.parametrize("path", PAGES)
def test_links_lead_somewhere(path: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / path).read_text()):
        assert ((ROOT / path).parent / target).exists(), target


def test_files_named_in_the_design_exist() -> None:
    for name in re.findall(r"(?:\.\./)?\w+(?:/\w+)+\.(?:cpp|hpp|h|inl|py|cmake)\b", DESIGN):
        assert (CSRC / name).is_file(), name


def test_names_in_the_design_exist() -> None:
    sources = "\n".join(p.read_text() for p in CSRC.rglob("*") if p.suffix in (".cpp", ".hpp", ".h", ".inl"))
    sources += "".join(p.read_text() for p in (ROOT / "tests_py").glob("*.py") if p != Path(__file__))
    for code in re.findall(r"`([^`\n]+)`", DESIGN):
        for name in re.findall(r"\b[A-Za-z]\w*", code) if re.fullmatch(r"[\w:]+(?:\(.*\))?", code) else []:
            assert re.search(rf"\b{name}\b", sources), f"the design names {name}, which no source has"

"""Every code block of the documentation runs, and prints what the page shows below it."""

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import convbwd

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OPTIONAL = re.compile(rf"^(?:import|from) ({'|'.join(convbwd._OPTIONAL)})\b", re.MULTILINE)
PYTHON = ("python", "{plan}")
OTHER = ("{toctree}", "{eval-rst}", "{include}", "{literalinclude}", "{modules}", "{picture}")  # not code of the page


class Block(NamedTuple):
    """A code block, and the text that is shown as its output."""

    language: str
    code: str
    line: int
    output: str | None


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    text = page.read_text()
    found: list[Block] = []
    end = 0
    for match in re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        language, code = match[1], match[2]
        line = text.count("\n", 0, match.start()) + 2
        if language == "text":
            assert found and not text[end : match.start()].strip(), f"{page}:{line}: output of which code?"
            found[-1] = found[-1]._replace(output=code)
        elif language not in OTHER:
            assert language in (*PYTHON, "sh"), f"{page}:{line}: nothing tests blocks of {language!r}"
            found.append(Block(language, code, line, None))
        end = match.end()
    return found


def run_sh(code: str) -> str:
    """Run what runs this package; of the rest check that it is what other tests run."""
    output = ""
    for line in code.splitlines():
        words = shlex.split(line)
        if words[:3] == ["python", "-m", "convbwd"]:
            command = [sys.executable, *words[1:]]
            output += subprocess.run(command, capture_output=True, text=True, check=True).stdout
        elif words[:2] == ["pip", "install"]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            name, _, wanted = words[2].rstrip("]").partition("[")
            assert name == "convbwd" and set(filter(None, wanted.split(","))) <= set(extras), line
        else:
            assert line in (ROOT / "README.md").read_text(), f"neither run here nor a command of README.md: {line}"
    return output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").with_suffix("").as_posix())
def test_code_runs_and_prints_what_is_shown(page: Path) -> None:
    drawn = blocks(page)
    for name in OPTIONAL.findall("".join(block.code for block in drawn if block.language in PYTHON)):
        pytest.importorskip(name)
    names: dict[str, Any] = {}
    for language, code, line, output in drawn:
        printed = io.StringIO()
        if language in PYTHON:
            # Line numbers in errors are those of the page.
            compiled = compile("\n" * (line - 1) + code, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(compiled, {} if language == "{plan}" else names)
        else:
            printed.write(run_sh(code))
        assert bool(printed.getvalue()) == (output is not None) or language == "sh", f"{page}:{line}: output not shown"
        if output is not None:
            same = doctest.OutputChecker().check_output(output, printed.getvalue(), doctest.ELLIPSIS)
            assert same, f"{page}:{line}: shown\n{output}\nprinted\n{printed.getvalue()}"

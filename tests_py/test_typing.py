"""What a type checker, and the import system, see of the package."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import convbwd

ROOT = Path(__file__).parents[1]
PACKAGE = Path(convbwd.__file__).parent
USER = Path(__file__).with_name("user.py")
PROGRAMS = {"demo"}  # to be run and copied from, not to be called
MODULES = ["convbwd", *(f"convbwd.{m.name}" for m in pkgutil.iter_modules([str(PACKAGE)]) if m.name[0] != "_")]


def public_names(module: ModuleType) -> set[str]:
    """Return the dotted names that a module offers."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in own if name[0] != "_"])
    return {f"{module.__name__}.{name}" for name in names}


def dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """Return what an expression of names and dots means, "" for others."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (base := dotted(node.value, aliases)):
        return f"{base}.{node.attr}"
    return ""


@pytest.mark.parametrize("name", [m for m in MODULES if m.rpartition(".")[2] not in PROGRAMS])
def test_the_user_names_everything_public(name: str) -> None:
    parent = name.rpartition(".")[2]
    if parent in convbwd._OPTIONAL:
        pytest.importorskip(parent)
    public = public_names(importlib.import_module(name))
    assert public
    used = {dotted(node, {"formats": "convbwd.formats"}) for node in ast.walk(ast.parse(USER.read_text()))}
    assert public <= used, f"tests_py/user.py does not use {sorted(public - used)}"


def test_the_user_runs() -> None:
    for name in convbwd._OPTIONAL:
        pytest.importorskip(name)
    importlib.import_module("user").main()


def test_strict_type_check(tmp_path: Path) -> None:
    assert (PACKAGE / "py.typed").is_file()
    # A link, because mypy refuses a search path that is also that of installed packages.
    (tmp_path / "convbwd").symlink_to(PACKAGE)
    (tmp_path / "user.py").write_text(USER.read_text())
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports=silent", "--cache-dir", "/dev/null"]
    command = [sys.executable, "-m", "mypy", *config, "user.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_import_loads_nothing_else() -> None:
    # What makes the import quick, which a time would not tell reliably; and without any warning.
    code = "import sys, numpy; before = set(sys.modules); import convbwd; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] not in ("convbwd", "numpy")}
    assert loaded <= {"__future__", "copy", "dataclasses", "html", "html.entities"}
    optional = {name for name in done.stdout.split() if name.startswith("convbwd.") and "._" not in name}
    assert optional == {"convbwd.formats"}

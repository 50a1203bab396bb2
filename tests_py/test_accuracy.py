"""The accuracy command: what it measures is true and complete."""

import importlib.util
from pathlib import Path

import pytest

from cases import ALGORITHMS
from convbwd import _accuracy
from convbwd.__main__ import main


def test_every_algorithm_keeps_the_bound() -> None:
    rows = list(_accuracy.measure(lengths=(36, 288)))
    measured = {(r.result, r.dtype, r.length) for r in rows}
    assert len(measured) == 2 * len(_accuracy.DTYPES) * 2
    for key in measured:
        mine = [r for r in rows if (r.result, r.dtype, r.length) == key]
        names = {r.algorithm for r in mine}
        assert names - {"torch"} == {*ALGORITHMS} - {"matrix"}
        if importlib.util.find_spec("torch") and "8" not in key[1]:
            assert "torch" in names
        for row in mine:
            assert 0 <= row.rms <= row.largest
            assert row.largest > 0 or ("8" in row.dtype and row.result == "grad_weight"), row  # float32 may be exact
            assert row.algorithm not in ("direct", "blas", "reference") or row.of_bound <= 1, row
            # Nothing that is rounded at the end is much better than that.
            assert row.of_bound > 0.5 or row.algorithm == "torch" or row.dtype in _WIDE or row.result == "grad_weight"
            assert row.algorithm != "reference" or row.taken == "reference"
    assert {r.taken for r in rows} >= {"gather", "reference"}


def test_the_command_prints_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_accuracy, "measure", lambda: _measure(("float32", "bfloat16"), (36, 72)))
    main(["accuracy", "--plot", str(tmp_path / "accuracy.png")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["result", "dtype", "products", "algorithm", "pass", "max", "rms", "of", "bound"]
    assert sum(line.split()[:2] == ["grad_input", "float32"] for line in lines) >= 2 * (len(ALGORITHMS) - 1)
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_refuses_a_plot_before_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["accuracy", "--plot", "no/folder/accuracy.png"])
    assert ended.value.code == 2
    assert "--plot: must be a file in a folder that exists, got no/folder/accuracy.png" in capsys.readouterr().err


_measure = _accuracy.measure
_WIDE = ("float64", "float32")

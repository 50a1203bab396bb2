"""The notebooks of examples run from a clean kernel, keep what they assert, and show pictures."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.ipynb"))
NOTEBOOKS = [path for path in NOTEBOOKS if path.stem != "tiles"]  # test_tiles.py knows what that one draws
NEEDS = {"digits": "sklearn", "dask_volume": "dask.array", "precision": "ml_dtypes"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    image = pytest.importorskip("matplotlib.image")
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    notebook = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [image.imread(io.BytesIO(base64.b64decode(o["image/png"]))) for o in outputs if "image/png" in o]
    assert pictures
    for pixels in pictures:
        assert np.ptp(pixels[..., :3]) > 0.5, "an empty picture"

"""Configuration of the documentation. `python -m sphinx -W -b html docs build/docs` builds it, without a network."""

import importlib.util
import sys
from pathlib import Path

import convbwd

sys.path.insert(0, str(Path(__file__).parent))

project = "convbwd"
author = "the convbwd authors"
version = release = convbwd.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "pictures"]
myst_heading_anchors = 3

default_role = "py:obj"  # `name` in a docstring is a link where there is such an object
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more
autodoc_default_options = {"members": True, "special-members": "__call__"}
autodoc_mock_imports = [
    name
    for name in ("autograd", "dask", "jax", "threadpoolctl", "torch")
    if importlib.util.find_spec(name) is None
]
napoleon_google_docstring = False
napoleon_use_rtype = False

html_math_renderer = "mathml"  # of pictures.py
html_theme = "furo"
html_title = f"convbwd {version}"
html_show_copyright = False

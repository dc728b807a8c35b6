"""Sphinx configuration. ``make docs`` builds the pages into ``docs/_build``; no GPU is needed."""

import os
import sys
from pathlib import Path

# Kernels are imported, and the figures run them: both on the simulator, whatever the machine has.
os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

import gemv  # noqa: E402

project = "gemv"
author = "gemv developers"
copyright = author
release = gemv.__version__
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "gemv_pages",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "examples", "exercises", "figures"]
nitpicky = False

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"gemv {release}"
html_static_path = ["_static"]
html_css_files = ["gemv.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "default"
pygments_dark_style = "monokai"

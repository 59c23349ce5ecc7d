"""How Sphinx builds the documentation: `make docs`, pages in build/docs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import fusegen  # noqa: E402

project = "fusegen"
author = "the authors of fusegen"
copyright = author
version = release = fusegen.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static"]
source_suffix = {".md": "markdown"}

# Links to a heading of a page, as GitHub has them.
myst_heading_anchors = 4
# CONTRIBUTING.md and CHANGELOG.md begin at other levels than the pages that include them.
suppress_warnings = ["myst.header"]

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
# Attributes are listed where the class is; another entry for each would be a second target.
napoleon_use_ivar = True
python_display_short_literal_types = True
add_module_names = False

html_theme = "furo"
html_title = "fusegen"
html_static_path = ["_static"]
html_css_files = ["fusegen.css"]
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def _plain(lines: list[str]) -> None:
    """Keep stars and bars of formulas from being read as markup: outside of code they are what they are."""
    for place, line in enumerate(lines):
        parts = re.split(r"(``[^`]*``|(?<![\w*])\*[A-Za-z]+\*(?![\w*]))", line)  # code, and a word that is stressed
        parts[::2] = [re.sub(r"(?<!\\)([*|])", r"\\\1", part) for part in parts[::2]]
        lines[place] = "".join(parts)


def _document(_app: object, _what: str, _name: str, _thing: object, _options: object, lines: list[str]) -> None:
    _plain(lines)
    for place in range(len(lines) - 1, 1, -1):  # code that stands indented in a docstring
        if lines[place].startswith("    ") and not lines[place - 1] and lines[place - 2][-1:] in ".;":
            lines[place:place] = ["::", ""]


def setup(app: object) -> None:
    """Sphinx calls it: before napoleon reads a docstring, formulas are made plain."""
    app.connect("autodoc-process-docstring", _document, priority=100)  # type: ignore[attr-defined]

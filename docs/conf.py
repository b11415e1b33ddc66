"""How Sphinx makes HTML of docs/: `make docs`. The API pages are made of the docstrings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import fusedops

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "fusedops"
version = release = fusedops.__version__
copyright = "the fusedops authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
html_theme = "furo"
html_title = f"fusedops {version}"
default_role = "literal"  # docstrings set code between single backticks
smartquotes = False  # a quoted argument is copied into code
myst_heading_anchors = 3
autodoc_typehints = "none"  # beside the signature: the docstrings say what a type cannot
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

DOCS = Path(__file__).resolve().parent


def _only_within_docs(app: Sphinx, page: str, source: list[str]) -> None:
    """Leaves of links to files of the repository their text: the site has no such files."""
    folder = (DOCS / page).parent

    def plain(match: re.Match[str]) -> str:
        path = match["path"].partition("#")[0]
        inside = "://" in path or (folder / path).resolve().is_relative_to(DOCS)
        return match[0] if inside else match["text"]

    text = re.sub(r"\[(?P<text>[^]]*)\]\((?P<path>[^)\s]+)\)", plain, source[0])
    text = re.sub(r"^<img src=.*\n", "", text, flags=re.MULTILINE)
    source[0] = text.replace("```mermaid", "```text")


def setup(app: Sphinx) -> None:
    app.connect("source-read", _only_within_docs)

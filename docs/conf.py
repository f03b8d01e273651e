"""The site that ``make site`` builds from these documents.

Sphinx, because it has been kept well for fifteen years and calls broken links and anchors by name; myst-parser, because the documents are
Markdown and stay readable without it; furo, because it is light, dark where the reader wants that, and loads nothing from elsewhere:
the site works from a directory, without a network.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

project = "Millstream"
author = "the Millstream authors"
copyright = author
html_title = "Millstream"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]

extensions = ["myst_parser"]
myst_heading_anchors = 3  # the anchors that GitHub makes
source_suffix = {".md": "markdown"}
exclude_patterns = ["static"]

nitpicky = True
highlight_language = "text"


def place_new_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Pages that the index does not name yet are how-tos: they stand where it says ``(others)``."""
    if page == "index":
        named = set(re.findall(r"^[\w/-]+$", source[0], re.M))
        others = sorted(one for one in app.env.found_docs - named if "/" not in one and one != "index")
        source[0] = source[0].replace("(others)", "\n".join(others))


def setup(app: Sphinx) -> None:
    app.connect("source-read", place_new_pages)
    app.connect("env-get-outdated", lambda *_: ["index"])  # it also changes when another page comes

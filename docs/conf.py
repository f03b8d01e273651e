"""The configuration of the site that ``make site`` builds from these documents.

Sphinx reports broken links and anchors by name. myst-parser reads Markdown, which stays readable
without it. furo is light and loads nothing from elsewhere, so the site works from a directory,
without a network.
"""

from __future__ import annotations

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
# The same anchors as on GitHub.
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["static"]

nitpicky = True
highlight_language = "text"

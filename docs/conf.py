"""Sphinx: the site of pdctl, built with warnings as errors."""

from pdctl import __version__

project = "pdctl"
copyright = "the pdctl authors"
release = __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "router-kinds.md"]  # included by routers.md
html_theme = "furo"
html_title = f"pdctl {release}"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

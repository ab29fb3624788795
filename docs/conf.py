"""How `make docs` builds the documentation site, of the project's Markdown files."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "veilstream"
author = "the authors of veilstream"
version = release = version_of("veilstream")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "_site"]
# The project's folder is the source, so that a link leads to the same file here as on a code host.
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**.png",
    "docs/**.svg",
]
# folders without pages: to look through the installed packages takes seconds
root = Path(__file__).parents[1]
exclude_patterns = [
    "docs/_site",
    *(path.name for path in root.iterdir() if path.is_dir() and path.name != "docs"),
]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = False

html_theme = "pydata_sphinx_theme"
html_title = "veilstream"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
templates_path = ["_site/templates"]
html_additional_pages = {"index": "to_index.html"}
# pages that stand alone have no list of neighbours
html_sidebars = {"docs/index": [], "docs/tutorial": [], "docs/glossary": []}
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
html_theme_options = {
    "logo": {"text": "veilstream"},
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "footer_start": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_nav_level": 1,
    "show_prev_next": True,
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}

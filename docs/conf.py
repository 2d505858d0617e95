"""Configures the site, which `make site` builds from the pages beside this file."""

from importlib.metadata import version as version_of

project = "headgate"
release = version_of("headgate")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Design notes are linked to by their index, and pages link to files that are no pages. Tests see that all
# other pages are in a menu, and that each link leads to something.
suppress_warnings = ["toc.not_included", "myst.xref_missing"]

html_theme = "pydata_sphinx_theme"
html_title = "headgate"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}

# A heading is linked to by its name, as GitHub makes it.
myst_heading_anchors = 4

# In docstrings single backticks name code, of this project or another.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "groupwise"
napoleon_use_rtype = False
napoleon_preprocess_types = False

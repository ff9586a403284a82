"""How Sphinx builds the site: `make docs`."""

import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

# What the tutorials start: the Python that builds the site, its programs first, and one thread for each, so that what
# they take does not depend on the machine.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("COLUMNS", "88")  # what a page has room for
os.environ["TERM"] = "dumb"

# A kernel warns that it talks over TCP, which never leaves this machine; its profile is of this site alone.
profile = HERE / "_build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n", encoding="utf-8")
os.environ["IPYTHONDIR"] = str(profile.parent)

import graddiv  # noqa: E402
from graddiv.recipes import recipe  # noqa: E402

recipe("mnist/adv-bnn")  # sections are read off signatures now: autodoc rewrites the defaults in them

project = "graddiv"
author = "The graddiv developers"
version = release = graddiv.__version__
project_copyright = "The graddiv developers, MIT license"

extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.linkcode",
    "command_line", "docstrings", "drawings", "gallery", "mathml", "recipe_keys", "repository",
]  # fmt: skip
templates_path = ["_templates"]
exclude_patterns = ["_build", "_extensions", "_templates"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # of a cell, on a machine that others keep busy
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_math_renderer = "mathml"
html_theme = "furo"
html_context = {"links": tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]}
html_sidebars = {
    "**": [
        "sidebar/brand.html", "sidebar/search.html", "links.html", "sidebar/scroll-start.html",
        "sidebar/navigation.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip
html_title = f"graddiv {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


from repository import linkcode_resolve  # noqa: E402, F401

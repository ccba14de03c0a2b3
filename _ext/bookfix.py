"""What the book needs from Sphinx and its theme does not give: one function for each repair."""

import json
import re
import shutil
from importlib.metadata import distribution
from pathlib import Path

from sphinx.ext import intersphinx

UNPUBLISHED = "/-not-published-/"
COLAB = "https://colab.research.google.com/"
# The part of MathJax that the pages use: the program and its fonts, 1.6 of 18 MB.
MATHJAX = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2")
COLUMNS = ("chapter", "cells", "outputs", "figures", "exercises")
# An exercise is named where its answer is handed in: `check("softmax", my_softmax)`.
CHECK = re.compile(r'check\("(\w+)"')


def remove_dead_buttons(app, config):
    """Take away every button that leads to the repository while there is none."""
    options = config.html_theme_options
    if UNPUBLISHED in options["repository_url"]:
        for name in ("use_repository_button", "use_edit_page_button", "use_issues_button"):
            options[name] = False
        options["launch_buttons"] = {}


def send_colab_to_its_branch(app, pagename, templatename, context, doctree):
    """Let the Colab button open the published copies.

    Jupyter Book knows one branch for all buttons. Edit buttons must lead to the sources (main);
    the copies that install the library in Colab lie on the branch colab.
    """
    for group in context["header_buttons"]:
        for button in group.get("buttons", [group]):
            if button.get("url", "").startswith(COLAB):
                button["url"] = button["url"].replace("/blob/main/", "/blob/colab/")


def drop_repeated_scripts(app, pagename, templatename, context, doctree):
    """Keep one of each script: sphinx-thebe emits a `const` twice, an error on every page."""
    unique = {}
    for script in context["script_files"]:
        body = getattr(script, "attributes", {}).get("body")
        unique.setdefault((str(getattr(script, "filename", script) or ""), body), script)
    context["script_files"] = list(unique.values())


def drop_unused_mathjax(app, pagename, templatename, context, doctree):
    """Load MathJax where a page has a formula; Sphinx also loads it where a page below has one."""
    if not app.env.get_domain("math").data["has_equations"].get(pagename):
        context["script_files"] = [
            script
            for script in context["script_files"]
            if "mathjax" not in str(getattr(script, "filename", script))
        ]


def copy_mathjax(app, exception):
    """Put MathJax into the finished site, so that formulas show without a network.

    Not before: Jupyter Book loads every script that lies below a static folder on every page,
    while Sphinx loads this one where there is a formula.
    """
    if exception or app.builder.format != "html":
        return
    package = distribution("sphinx-mathjax-offline")
    source = Path(package.locate_file("sphinx-mathjax-offline/static/mathjax"))
    target = Path(app.outdir, "_static", "mathjax")
    (target / MATHJAX[1]).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / MATHJAX[0], target / MATHJAX[0])
    shutil.copytree(source / MATHJAX[1], target / MATHJAX[1], dirs_exist_ok=True)


def count_what_is_checked(app, config):
    """Give the page "How this book is checked" its table, counted in the notebooks themselves."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---|--:|--:|--:|--:|"]
    for path in sorted(Path(app.srcdir, "chapters").glob("[0-9]*.ipynb")):
        counts = " | ".join(str(count) for count in count_notebook(path))
        rows.append(f"| [](/chapters/{path.name}) | {counts} |")
    config.myst_substitutions["what_is_checked"] = "\n".join(rows)


def count_notebook(path):
    """How many code cells, outputs compared, figures and exercises a notebook holds."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    timed = [cell for cell in code if "nbval-ignore-output" in cell["metadata"].get("tags", [])]
    figures = [o for cell in code for o in cell["outputs"] if "image/png" in o.get("data", {})]
    compared = sum(len(cell["outputs"]) for cell in code if cell not in timed) - len(figures)
    names = {name for cell in code for name in CHECK.findall("".join(cell["source"]))}
    return len(code), compared, len(figures), len(names)


def link_array_types(app, env, node, contnode):
    """Link the types that jaxtyping prints without their package, in `Float[Tensor, "q d"]`."""
    package = {"Tensor": "torch", "ndarray": "numpy"}.get(node.get("reftarget"))
    if package is None:
        return None
    node["reftarget"] = f"{package}.{node['reftarget']}"
    return intersphinx.missing_reference(app, env, node, contnode)


def setup(app):
    """Connect the repairs."""
    app.config.mathjax_path = "mathjax/tex-mml-chtml.js"
    app.connect("config-inited", remove_dead_buttons)
    app.connect("config-inited", count_what_is_checked)
    app.connect("missing-reference", link_array_types)
    # 501 is where the theme adds its buttons; both must come later
    app.connect("html-page-context", send_colab_to_its_branch, priority=900)
    app.connect("html-page-context", drop_repeated_scripts, priority=900)
    app.connect("html-page-context", drop_unused_mathjax, priority=900)
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""What the book needs from Sphinx and its theme does not give: one function for each repair."""

import os
import re
import shutil
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import unquote

from docutils import nodes
from sphinx.addnodes import start_of_file
from sphinx.builders.latex.nodes import thebibliography
from sphinx.ext import intersphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.images import get_image_size

UNPUBLISHED = "/-not-published-/"
COLAB = "https://colab.research.google.com/"
# The part of MathJax that the pages use: the program and its fonts, 1.6 of 18 MB.
MATHJAX = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2")
ROOT = re.compile(r"\\sqrt\{([^{}]*)\}")
REFERENCES = "references-in-full"
# The list begins a chapter of its own otherwise; its heading is there already.
NO_CHAPTER = r"""\begingroup
\renewenvironment{sphinxthebibliography}[1]
  {\renewcommand{\chapter}[2]{}\begin{thebibliography}{#1}}{\end{thebibliography}}"""
IMAGE = re.compile(r'<img [^>]*src="[./]*_images/(?P<name>[^"]+)"')


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


def give_images_their_size(app, pagename, templatename, context, doctree):
    """State the size of every image, so that no text moves when one arrives.

    Docutils would write it into the style, where it keeps a wide image from shrinking on a phone.
    """
    sources = {name: Path(app.srcdir, uri) for uri, name in app.builder.images.items()}

    def sized(match):
        size = get_image_size(sources.get(unquote(match["name"]), ""))
        return match[0].replace("<img ", '<img width="{}" height="{}" '.format(*size))

    if doctree:
        context["body"] = IMAGE.sub(sized, context["body"])


def tell_the_address(app, config):
    """Link previews and the site map need the address of the site, which publishing knows."""
    config.project = config.html_title  # Jupyter Book leaves "Project name not set"
    address = os.environ.get("BOOK_URL", "")
    config.html_baseurl = config.ogp_site_url = address and f"{address}/"
    # The card takes no SVG, which the logo is.
    config.ogp_social_cards = {"enable": bool(address), "image": "_static/lookups.png"}
    if address:
        link = f'<a href="{address}/attention-course.zip">Download it all</a>, to read offline.'
        config.html_theme_options["extra_footer"] += f" {link}"


def keep_previews_plain(app, pagename, templatename, context, doctree):
    """Leave TeX and tables out of what a link preview says: the first words of the page.

    When this is called, the page itself has been written, so only the preview changes.
    """
    left_out = (nodes.math, nodes.math_block, nodes.table)
    found = doctree.findall(lambda node: isinstance(node, left_out)) if doctree else []
    for node in list(found):
        text = ROOT.sub(r"√\1", node.astext()) if isinstance(node, nodes.math) else ""
        node.parent.replace(node, nodes.Text("…" if "\\" in text else text))


def link_array_types(app, env, node, contnode):
    """Link the types that jaxtyping prints without their package, in `Float[Tensor, "q d"]`."""
    package = {"Tensor": "torch", "ndarray": "numpy"}.get(node.get("reftarget"))
    if package is None:
        return None
    node["reftarget"] = f"{package}.{node['reftarget']}"
    return intersphinx.missing_reference(app, env, node, contnode)


class KeepReferencesInPlace(SphinxPostTransform):
    """Leave the references under their heading, where LaTeX would put them at the end of all."""

    default_priority = 760  # after 750, which moves them
    formats = ("latex",)

    def run(self, **kwargs):
        """Move the list back into its section."""
        found = self.document.findall(nodes.section)
        section = next(node for node in found if REFERENCES in node["ids"])
        for references in list(self.document.findall(thebibliography)):
            references.parent.remove(references)
            section += nodes.raw("", NO_CHAPTER, format="latex")
            section += references
            section += nodes.raw("", r"\endgroup", format="latex")


class MakeTheFrontPageOneChapter(SphinxPostTransform):
    """Print the front page as one chapter, where LaTeX would begin one at each of its headings."""

    default_priority = 770
    formats = ("latex",)

    def run(self, **kwargs):
        """Put what stands before the first page of the table of contents into a section."""
        book = next(self.document.findall(nodes.section))
        is_page = [any(child.findall(start_of_file)) for child in book]
        front = book[1 : is_page.index(True)]  # without the title
        chapter = nodes.section("", nodes.title("", "About this book"), *front, ids=["about"])
        book[1 : is_page.index(True)] = [chapter]


def setup(app):
    """Connect the repairs."""
    app.add_post_transform(KeepReferencesInPlace)
    app.add_post_transform(MakeTheFrontPageOneChapter)
    app.config.mathjax_path = "mathjax/tex-mml-chtml.js"
    app.connect("config-inited", remove_dead_buttons)
    app.connect("config-inited", tell_the_address)
    app.connect("missing-reference", link_array_types)
    # 501 is where the theme adds its buttons; both must come later
    app.connect("html-page-context", send_colab_to_its_branch, priority=900)
    app.connect("html-page-context", drop_repeated_scripts, priority=900)
    app.connect("html-page-context", drop_unused_mathjax, priority=900)
    # 500 is where the description is taken
    app.connect("html-page-context", keep_previews_plain, priority=400)
    app.connect("html-page-context", give_images_their_size)
    app.connect("build-finished", copy_mathjax)
    if os.environ.get("BOOK_URL"):
        app.setup_extension("sphinx_sitemap")  # without an address it would warn
        app.config.sitemap_url_scheme = "{link}"
    return {"parallel_read_safe": True, "parallel_write_safe": True}

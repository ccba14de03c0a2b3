"""Markdown as the book reads it, and the TeX that the book's MathJax knows."""

import re
from functools import cache
from importlib.metadata import files
from itertools import pairwise
from pathlib import Path

import yaml
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

ROOT = Path(__file__).parents[1]
RAW_DIRECTIVES = ("math", "eval-rst", "code", "bibliography", "toctree", "automodule")
MATH_TOKENS = {"math_inline", "math_inline_double", "math_block", "math_block_label", "amsmath"}


@cache
def _parser():
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    extensions = set(config["parse"]["myst_enable_extensions"])
    return create_md_parser(MdParserConfig(enable_extensions=extensions), RendererHTML)


def tokens(source):
    """All tokens of the Markdown, inline ones and those inside directives too."""
    return list(_walk(_parser().parse(source)))


def _walk(found):
    for token in found:
        yield token
        yield from _walk(token.children or [])
        directive = directive_name(token)
        if directive and not directive.startswith(RAW_DIRECTIVES):
            yield from tokens(token.content)


def directive_name(token):
    """The name in ```` ```{name} ```` or ``:::{name}``, else ``None``."""
    match = re.match(r"\{([\w:-]+)\}", token.info.strip()) if "fence" in token.type else None
    return match and match[1]


def prose(source):
    """The running text, without code, formulas, addresses and HTML."""
    return [token.content for token in tokens(source) if token.type == "text"]


def headings(source):
    """Pairs of level and text."""
    found = tokens(source)
    return [
        (int(token.tag[1]), following.content)
        for token, following in pairwise(found)
        if token.type == "heading_open"
    ]


def links(source):
    """The target of every link."""
    return [token.attrs["href"] for token in tokens(source) if token.type == "link_open"]


def formulas(source):
    """The TeX of every formula."""
    for token in tokens(source):
        directive, role = directive_name(token), token.meta.get("name")
        if token.type in MATH_TOKENS or (token.type == "myst_role" and role == "math"):
            yield token.content
        elif directive == "math":
            yield re.sub(r"^:.*$", "", token.content, flags=re.M)


def broken_math(source):
    """What is wrong with the formulas of a Markdown text."""
    for text in prose(source):
        if "$" in text or "\\begin{" in text:
            yield (
                f"{text.strip()!r} shows its TeX: close every $, and give $$…$$ a paragraph of its "
                "own with a blank line before and after"
            )
    for token in tokens(source):
        if token.type == "math_inline" and (
            token.content != token.content.strip() or "\n" in token.content
        ):
            yield (
                f"${token.content}$: no space inside the dollar signs, all on one line; "
                "$$ needs a blank line before it"
            )
    for tex in formulas(source):
        for complaint in broken_tex(tex):
            yield f"{tex.strip()!r}: {complaint}"


def broken_tex(tex):
    """What is wrong with one formula."""
    if re.search(r"\n\s*\n", tex.strip()):
        yield "a blank line ends the formula in JupyterLab"
    for name in dict.fromkeys(re.findall(r"\\([a-zA-Z]+|.)", tex, flags=re.S)):
        if name.strip() and name not in mathjax_names("macro"):
            yield f"MathJax, as the book ships it, does not know \\{name}"
    bare = re.sub(r"\\[\\{}]", "", tex)
    if not _nested(bare, r"\{", r"\}"):
        yield "braces do not pair"
    if not _nested(bare, r"\\left\b", r"\\right\b"):
        yield r"\left and \right do not pair"
    open_now = []
    for kind, name in re.findall(r"\\(begin|end)\s*\{([^}]*)\}", tex):
        if name not in mathjax_names("environment"):
            yield f"MathJax, as the book ships it, does not know the environment {name}"
        if kind == "begin":
            open_now.append(name)
        elif not open_now or open_now.pop() != name:
            yield rf"\end{{{name}}} closes nothing"
    if open_now:
        yield rf"\begin{{{open_now[-1]}}} is not closed"


def _nested(text, opening, closing):
    depth = 0
    for match in re.finditer(f"({opening})|{closing}", text):
        depth += 1 if match[1] else -1
        if depth < 0:
            return False
    return depth == 0


@cache
def mathjax_names(kind):
    """All macros, or all environments, of the one MathJax file that the book's pages load.

    Its source lists them as the keys of objects: ``new CommandMap("macros", {frac: …, …})``.
    Macros that MathJax would fetch from a further file (``\\boldsymbol``) are not among them.
    """
    [bundle] = [
        path.locate()
        for path in files("sphinx-mathjax-offline")
        if path.match("static/mathjax/tex-mml-chtml.js")
    ]
    source = bundle.read_text("utf-8")
    maps = "Environment" if kind == "environment" else "Command|Character|Macro|Delimiter"
    start = rf'new [\w.]*\.(?:{maps})Map\("(?!remap|not_remap|special)[^"]+",(?:[\w.]+,)?\{{'
    return {name for match in re.finditer(start, source) for name in _keys(source, match.end())}


def _keys(source, start):
    """The keys of the JavaScript object whose text begins at ``start``."""
    depth, previous = 1, ""
    for match in re.compile(r'"(?:\\.|[^"\\])*"|[\w$]+|[{}()\[\]:]').finditer(source, start):
        token = match[0]
        if token == ":" and depth == 1:
            yield re.sub(r"\\(.)", r"\1", previous.strip('"')).removeprefix("\\") or "\\"
        depth += token in ("{", "(", "[")
        depth -= token in ("}", ")", "]")
        if depth == 0:
            return
        previous = token


def poor_alt(alt, least=10):
    """Why this text alternative tells a reader who cannot see the picture nothing, or ``None``."""
    alt = (alt or "").strip()
    if re.search(r"\.(png|svg|jpe?g|gif|webp)$", alt, flags=re.I):
        return f"the text alternative {alt!r} is a file name; say what the picture shows"
    if len(alt) < least or " " not in alt:
        return f"the text alternative {alt!r} is too short; say what the picture shows"
    return None


def images_without_alt(source):
    """Images, figure directives and ``<img>`` whose text alternative is missing or poor."""
    for token in tokens(source):
        if token.type == "image":
            alt = token.content
        elif directive_name(token) in ("figure", "image"):
            option = re.search(r"^:alt:(.*)$", token.content, flags=re.M)
            alt = option and option[1]
        elif token.type.startswith("html") and "<img" in token.content:
            attribute = re.search(r'\balt="([^"]*)"', token.content)
            alt = attribute and attribute[1]
        else:
            continue
        if complaint := poor_alt(alt):
            yield complaint

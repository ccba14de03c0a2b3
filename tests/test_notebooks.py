"""Every chapter keeps the rules of ``rules.py``, and every rule can fail."""

import ast
import base64
import io
import re
from pathlib import Path

import markup
import nbformat
import PIL.Image
import pytest
import rules
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.notebook import clean
from tools.publish import SETUP_CELL

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / "chapters").glob("*.ipynb"))
PAGES = sorted((ROOT / "chapters").glob("*.md"))
ALT = {"mystnb": {"image": {"alt": "Two lines: the hard lookup jumps, the soft one bends."}}}


@pytest.fixture(scope="module")
def chapters():
    # not nbformat.read, which repairs missing ids before a rule can see them
    return {path.name: nbformat.v4.reads(path.read_text("utf-8")) for path in PATHS}


# The chapters


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_chapter_keeps_the_rule(path, rule, chapters):
    complaints = list(rule(chapters[path.name], path.name))
    assert not complaints, "\n" + "\n".join(f"{path.name}, {text}" for text in complaints)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_chapter_is_stored_as_nbformat_writes_it(path, chapters):
    expected = nbformat.writes(chapters[path.name]) + "\n"
    assert path.read_text("utf-8") == expected, "run tools/notebook.py; do not edit the JSON"


def test_no_function_is_defined_in_two_chapters(chapters):
    assert not list(rules.defined_twice(chapters))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_reference_page_has_sound_math_links_and_alternatives(path):
    source = path.read_text("utf-8")
    complaints = [
        *markup.broken_math(source),
        *markup.images_without_alt(source),
        *(rules.bad_link(target) for target in markup.links(source) if "://" in target),
    ]
    assert not any(complaints), complaints


@pytest.mark.parametrize(
    "path", sorted((ROOT / "attention_lib").rglob("*.py")), ids=lambda path: path.stem
)
def test_formulas_in_docstrings_are_known_to_mathjax(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for tex in re.findall(r":math:`([^`]+)`", ast.get_docstring(node) or ""):
                assert not list(markup.broken_tex(tex)), tex


# Each rule can fail: a chapter that keeps all rules, and one change that breaks exactly one of them


def png_of(inches):
    """A stored picture of a given width, at 100 dots an inch."""
    file = io.BytesIO()
    PIL.Image.new("1", (round(100 * inches), 7)).save(file, "PNG", dpi=(100, 100))
    return base64.b64encode(file.getvalue()).decode()


def code(source, *, text=None, png=False, tags=(), **metadata):
    outputs = [new_output("stream", name="stdout", text=text)] if text else []
    if png:
        data = {"image/png": png_of(5), "text/plain": "<Figure size 640x480 with 1 Axes>"}
        outputs.append(new_output("display_data", data=data))
    if tags:
        metadata["tags"] = list(tags)
    return new_code_cell(source, outputs=outputs, metadata=metadata)


def exercise(k):
    task = "Do it.\n\n<details>\n<summary>Hint</summary>\n\nThink.\n\n</details>"
    stub = f'def my_{k}(x):\n    return None\n\n\ncheck("e{k}", my_{k})'
    return [new_markdown_cell(task), code(stub, text="Not started yet.")]


def solution(k):
    source = f'# @title Solution 1.{k}\ndef my_{k}(x):\n    return x\n\n\ncheck("e{k}", my_{k})'
    hidden = {"jupyter": {"source_hidden": True}, "cellView": "form"}
    return code(source, text="Correct.", tags=["hide-cell"], **hidden)


def good_chapter():
    story = [new_markdown_cell("Text.") if n % 2 else code(f"{n} + 1") for n in range(20)]
    claim = "## 1.1 Story\n\nHere is $x$, and\n\n$$\n\\frac{x}{2}\n$$\n\nthen MORE."
    opening = "# 1. Lookup\n\nWhy?\n\n**You will be able to** look up.\n\n**You need** nothing."
    nb = new_notebook(
        cells=[
            new_markdown_cell(opening),
            code(SETUP_CELL.strip(), tags=["remove-cell"]),
            new_markdown_cell(claim),
            code("plot(1)\nplt.show()", png=True, **ALT),
            *story,
            new_markdown_cell("## 1.2 Key points"),
            new_markdown_cell("## 1.3 Exercises"),
            *(cell for k in range(1, 5) for cell in exercise(k)),
            new_markdown_cell("## 1.4 Solutions"),
            *(solution(k) for k in range(1, 5)),
            new_markdown_cell("## 1.5 Further reading\n\n[A paper](https://example.org/a.pdf)."),
        ]
    )
    for n, cell in enumerate((c for c in nb.cells if c.cell_type == "code"), 1):
        cell.execution_count = n
    return clean(nb)


def find(nb, text):
    return next(cell for cell in nb.cells if text in cell.source)


def swap(old, new):
    """A change: other text in the first cell that holds ``old``."""

    def change(nb):
        cell = find(nb, old)
        cell.source = cell.source.replace(old, new)

    return change


def story(text):
    """A change: more text in the story."""
    return swap("MORE", text)


def update(where, **parts):
    """A change: other parts of the cell that holds ``where``."""
    return lambda nb: find(nb, where).update(nbformat.from_dict(parts))


def metadata(where, **parts):
    """A change: other metadata of the cell that holds ``where``."""
    return lambda nb: find(nb, where).metadata.update(nbformat.from_dict(parts))


def prints(text, name="stdout"):
    """A change: the cell ``4 + 1`` has an output."""
    return update("4 + 1", outputs=[new_output("stream", name=name, text=text)])


def shows(**data):
    data = {kind.replace("_", "/"): value for kind, value in data.items()}
    return update("4 + 1", outputs=[new_output("display_data", data=data)])


def add(*new):
    """A change: further cells after the cell ``4 + 1``, counts kept in order."""

    def change(nb):
        at = nb.cells.index(find(nb, "4 + 1")) + 1
        nb.cells[at:at] = new
        for n, cell in enumerate((c for c in nb.cells if c.cell_type == "code"), 1):
            cell.execution_count = n

    return change


def drop(where):
    return lambda nb: nb.cells.remove(find(nb, where))


BREAKAGES = {
    "execution_counts": [
        update("4 + 1", execution_count=None),
        update("4 + 1", execution_count=99),
    ],
    "cell_tags": [
        metadata("4 + 1", tags=["raises-exception"]),
        metadata("4 + 1", tags=["nbval-skip"]),
        metadata("4 + 1", tags=["nbval-ignore-output"]),
    ],
    "metadata_noise": [
        metadata("4 + 1", execution={"iopub.execute_input": "2026-01-01T00:00:00Z"}),
        metadata("4 + 1", collapsed=False),
        lambda nb: nb.metadata.update(widgets={}),
        lambda nb: nb.metadata.language_info.update(version="3.11.7"),
        update("MORE", attachments={"a.png": {}}),
    ],
    "cell_ids": [
        lambda nb: nb.cells[3].pop("id"),
        lambda nb: nb.cells[3].update(id=nb.cells[2].id),
    ],
    "file_size": [prints("a long line\n" * 20_000)],
    "plain_python": [swap("4 + 1", "%timeit 4 + 1"), swap("4 + 1", "!ls")],
    "output_kinds": [
        prints("UserWarning: no", name="stderr"),
        shows(**{"image_svg+xml": "<svg/>"}),
        shows(text_latex="$x$"),
        update("4 + 1", outputs=[new_output("error", ename="E", evalue="", traceback=[])]),
    ],
    "repeatable_outputs": [
        prints("File /home/me/x.py"),
        prints("'/tmp/x'"),
        prints("C:\\Users\\me"),
        prints("lib/site-packages/torch"),
        shows(text_plain="<object at 0x7f3a2b1c>"),
    ],
    "figures_end_in_show": [
        swap("plot(1)\nplt.show()", "plt.show()\nplot(1);"),
        shows(text_plain="<Figure size 640x480 with 0 Axes>"),
    ],
    "figures_have_alt": [
        metadata("plt.show()", mystnb={"image": {"alt": ""}}),
        metadata("plt.show()", mystnb={}),
        metadata("plt.show()", mystnb={"image": {"alt": "a figure"}}),
        metadata("plt.show()", mystnb={"image": {"alt": "../_images/" + "a" * 30 + ".png"}}),
        add(code("plot(2)\nplt.show()", png=True, **ALT)),
    ],
    # 10 points are 9 pixels where 358 pixels are 5.52 inches
    "figures_can_be_read_on_a_phone": [
        lambda nb: find(nb, "plot(1)").outputs[0].data.update({"image/png": png_of(5.6)}),
        swap("plot(1)", "plot(1, fontsize=9)"),
        swap("plot(1)", 'plot(1, size="small")'),
    ],
    "markup_for_every_viewer": [
        story("\n\n:::{note}\nx\n:::\n"),
        story("\n\n::: note\n"),
        story("\n\n```{note}\nx\n```\n"),
        story("{ref}`x`"),
        story("{cite:p}`x`"),
        story("{doc}`x`"),
        story("\n\n(label)=\n"),
        story("said[^1]"),
        story("said[^1]\n\n[^1]: there\n"),
        story("\n\n> [!NOTE]\n> x\n"),
        story("$x \\tag{1}$"),
        story("\n\n$$x$$ (eq)\n"),
        story("![A long enough text](https://example.org/a.png)"),
        story("\n\n% a comment\n"),
        story("\n\n+++\n"),
    ],
    "html_only_for_hints": [
        story("a <span>b</span>"),
        story("\n\n<div>\n\nx\n\n</div>\n"),
        story("\n\n<!-- x -->\n"),
        swap("<summary>Hint</summary>\n", "<summary>Hint</summary>"),
        swap("Think.\n\n</details>", "Think.\n</details>"),
        swap("Think.\n\n</details>", "Think."),
    ],
    "math": [
        story("$$x$$ in the middle"),
        story("a\n$$\nx\n$$\n"),
        story("$x"),
        story("$ x$"),
        story("\n\n$$\nx\n"),
        story("it costs \\$5"),
        story("it costs $5 and $6 more"),
        story("\n\n\\begin{align}\nx\n\\end{align}\n"),
        story("$\\softmaxx(x)$"),
        story("$\\bm{x}$"),
        story("$\\foobar$"),
        story("$\\frac{x}{2$"),
        story("$x}{$"),
        story("$\\left( x$"),
        story("\n\n$$\n\\begin{aligned}\nx\n$$\n"),
        story("\n\n$$\n\\begin{alined}\nx\n\\end{alined}\n$$\n"),
        story("\n\n$$\nx\n\n+ y\n$$\n"),
    ],
    "words": [story("It is simply so."), story("\n\n> Obviously.\n"), story("**just** so.")],
    "links_lead_somewhere": [
        story("[x](77_missing.ipynb)"),
        story("[x](references.bib#top)"),
        story("[x](http://example.org/)"),
        story("[x](https://example)"),
        story("see README.md"),
    ],
    "set_up_cell": [
        swap("In Colab only", "In Colab alone"),
        metadata("In Colab only", tags=["hide-cell"]),
    ],
    "numbered_headings": [
        swap("# 1. Lookup", "# 2. Lookup"),
        swap("## 1.1 Story", "## 1.2 Story"),
        swap("## 1.1 Story", "## Story"),
        swap("## 1.5 Further", "# 1.5 Further"),
    ],
    "sections": [swap("1.2 Key points", "1.2 Summary")],
    "opening": [swap("**You need**", "Before:"), swap("**You will be able to**", "After:")],
    "versions_of_data": [
        swap("4 + 1", "import sklearn"),
        swap("4 + 1", "from attention_lib import x, date_pairs"),
    ],
    "length": [add(*(new_markdown_cell(f"More {n}.") for n in range(40)))],
    "short_cells": [swap("4 + 1", "\n".join(["4 + 1"] * 15))],
    "exercises": [
        swap("<details>\n<summary>Hint</summary>\n\nThink.\n\n</details>", ""),
        update('check("e1"', outputs=[new_output("stream", text="Wrong.")]),
        swap("def my_1(x):\n    return None\n\n\n", ""),
    ],
    "solutions": [
        drop("Solution 1.4"),
        swap("# @title Solution 1.2", "# Solution 1.2"),
        swap("# @title Solution 1.2", "# @title Solution 1.3"),
        metadata("Solution 1.2", tags=[]),
        metadata("Solution 1.2", cellView="both"),
        lambda nb: find(nb, "Solution 1.2").metadata.pop("jupyter"),
        update("Solution 1.2", outputs=[new_output("stream", text="Incorrect.")]),
    ],
}  # fmt: skip


def broken_rules(nb):
    return {rule.__name__ for rule in rules.RULES if list(rule(nb, "01_lookup.ipynb"))}


def test_a_good_chapter_breaks_no_rule():
    nb = good_chapter()
    complaints = [text for rule in rules.RULES for text in rule(nb, "01_lookup.ipynb")]
    assert complaints == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, change, id=f"{name}-{n}")
        for name, changes in BREAKAGES.items()
        for n, change in enumerate(changes)
    ],
)
def test_a_broken_chapter_breaks_exactly_that_rule(name, change):
    nb = good_chapter()
    change(nb)
    assert broken_rules(nb) == {name}


def test_every_rule_has_a_breakage():
    assert set(BREAKAGES) == {rule.__name__ for rule in rules.RULES}


def test_type_of_the_largest_figure_that_is_allowed_passes():
    nb = good_chapter()
    find(nb, "plot(1)").outputs[0].data["image/png"] = png_of(5.5)
    swap("plot(1)", "plot(1, figsize=(5, 3), markersize=4, labelsize=10)")(nb)
    assert broken_rules(nb) == set()


def test_data_of_a_package_passes_where_the_first_section_says_that_numbers_may_differ():
    nb = good_chapter()
    swap("4 + 1", "import sklearn")(nb)
    story("With another version the numbers of this page may differ.")(nb)
    assert broken_rules(nb) == set()


def test_a_chapter_needs_four_exercises():
    nb = good_chapter()
    for text in ('check("e4"', "Solution 1.4"):
        drop(text)(nb)
    assert "exercises" in broken_rules(nb)


def test_a_function_in_two_chapters_is_found():
    nb = good_chapter()
    assert list(rules.defined_twice({"01_a.ipynb": nb})) == []
    [*complaints] = rules.defined_twice({"01_a.ipynb": nb, "02_b.ipynb": nb})
    assert "my_1 is defined in 01_a.ipynb too" in complaints[0]


@pytest.mark.parametrize(
    "tex",
    [
        r"\operatorname{softmax}(x)_i = \frac{\exp x_i}{\sum_j \exp x_j}",
        r"\sqrt{d_k} \cdot q^\top k \in \mathbb{R}, \tau \to 0, \lim_{n \to \infty} \max_i x_i",
        r"\begin{aligned} a &= \left\{ b \right\} \\ \text{where } c &= 1 \end{aligned}",
        r"\left\lvert x \right\rvert \leftarrow \begin{cases} 1 & a \\ 0 & \text{else} \end{cases}",
    ],
)
def test_tex_that_mathjax_knows_passes(tex):
    assert list(markup.broken_tex(tex)) == []


@pytest.mark.parametrize(
    "source",
    [
        "![](a.png)",
        "![a.png](a.png)",
        "```{figure} a.png\nCaption\n```",
        ":::{figure} a.png\n:alt: a.png\n:::",
        ":::{note}\n![](a.png)\n:::",
        '<img src="a.png">',
    ],
)
def test_a_picture_without_a_text_alternative_is_found(source):
    assert len(list(markup.images_without_alt(source))) == 1


def test_a_picture_with_a_text_alternative_passes():
    source = "```{figure} a.png\n:alt: A line that rises from left to right.\n```"
    assert list(markup.images_without_alt(source)) == []

"""The rules that every chapter keeps. ``rule(nb, name)`` yields what breaks it and what to do."""

import ast
import base64
import io
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import PIL.Image
from markup import (
    broken_math,
    directive_name,
    formulas,
    headings,
    links,
    poor_alt,
    prose,
    tokens,
)
from matplotlib.font_manager import font_scalings

from tools.notebook import clean
from tools.publish import SETUP_CELL

CHAPTERS = Path(__file__).parents[1] / "chapters"
TAGS = {
    "remove-cell", "remove-input", "remove-output",
    "hide-cell", "hide-input", "hide-output",
    "nbval-ignore-output",
}  # fmt: skip
# Packages and functions whose data differs between versions of what is installed
DATA = ["sklearn", "babel", "pandas", "pydoc_data", "library_sentences", "date_pairs"]
PHONE = 358  # pixels that a figure has on a phone
DEFAULT_TYPE = 10  # points
LEAST_TYPE = 9  # pixels
TIMERS = r"\b(measure|compare|perf_counter|timeit)\b"
MIME_TYPES = {"text/plain", "text/html", "image/png"}
MARKUP = {
    "heading", "paragraph", "inline", "text", "softbreak", "hardbreak", "strong", "em", "link",
    "code_inline", "fence", "bullet_list", "ordered_list", "list_item", "blockquote", "hr",
    "table", "thead", "tbody", "tr", "th", "td",
    "math_inline", "math_block", "html_block", "html_inline",
}  # fmt: skip
RULES = []


def rule(function):
    RULES.append(function)
    return function


def cells(nb, kind):
    """Pairs of cell number, from 1, and cell."""
    return [(n, cell) for n, cell in enumerate(nb.cells, 1) if cell.cell_type == kind]


def tags(cell):
    return set(cell.metadata.get("tags", []))


def outputs(nb):
    """Pairs of cell number and output."""
    return [(n, output) for n, cell in cells(nb, "code") for output in cell.outputs]


def texts(output):
    """Whatever an output shows as text."""
    data = output.get("data", {})
    return [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]


def shown(cell):
    return "\n".join(text for output in cell.outputs for text in texts(output))


def checked(cell):
    """The names of the exercises that a cell checks."""
    return re.findall(r'\bcheck\(\s*"([^"]+)"', cell.source)


def section(nb, title):
    """Numbers of the first cell and of the cell after the last one of a ``##`` section."""
    starts = [
        (n, text)
        for n, cell in cells(nb, "markdown")
        for level, text in headings(cell.source)
        if level == 2
    ]
    ends = [n for n, _ in starts[1:]] + [len(nb.cells) + 1]
    for (n, text), end in zip(starts, ends, strict=True):
        if re.fullmatch(rf"[\d.]+ {title}", text):
            return n, end
    return len(nb.cells) + 1, len(nb.cells) + 1


def inside(nb, title, kind="code"):
    first, end = section(nb, title)
    return [(n, cell) for n, cell in cells(nb, kind) if first <= n < end]


# What is stored


@rule
def execution_counts(nb, name):
    code = [(n, cell) for n, cell in cells(nb, "code") if cell.source.strip()]
    for expected, (n, cell) in enumerate(code, 1):
        if cell.execution_count != expected:
            yield (
                f"cell {n}: execution count {cell.execution_count} instead of {expected}, and nbval"
                " skips a cell without one; run tools/notebook.py"
            )


@rule
def cell_tags(nb, name):
    for n, cell in enumerate(nb.cells, 1):
        if unknown := tags(cell) - TAGS:
            yield f"cell {n}: tags {sorted(unknown)}; allowed are {sorted(TAGS)}"
        if "nbval-ignore-output" in tags(cell) and not re.search(TIMERS, cell.source):
            yield f"cell {n}: nbval-ignore-output is for timings only, and nothing here is timed"


@rule
def metadata_noise(nb, name):
    cleaned = clean(nb)
    if nb.metadata != cleaned.metadata:
        yield f"notebook metadata {dict(nb.metadata)}; run tools/notebook.py"
    for n, (cell, kept) in enumerate(zip(nb.cells, cleaned.cells, strict=True), 1):
        if cell != kept:
            yield f"cell {n}: metadata or attachments that nobody reads; run tools/notebook.py"


@rule
def cell_ids(nb, name):
    ids = [cell.get("id") for cell in nb.cells]
    for n, cell_id in enumerate(ids, 1):
        if not cell_id or cell_id in ids[: n - 1]:
            yield f"cell {n}: id {cell_id!r} is missing or not unique"


@rule
def file_size(nb, name):
    size = len(json.dumps(nb, indent=1, ensure_ascii=False).encode())
    if size > 200_000:
        yield f"{size} bytes; fewer or smaller figures keep a notebook under 200 kB"


@rule
def plain_python(nb, name):
    for n, cell in cells(nb, "code"):
        try:
            ast.parse(cell.source)
        except SyntaxError as error:
            yield f"cell {n}: {error.msg}; a chapter needs no magic and no shell command"


# Outputs


@rule
def output_kinds(nb, name):
    for n, output in outputs(nb):
        if output.output_type == "error":
            yield f"cell {n}: {output.ename}; show an error with try, except and print"
        if output.get("name") == "stderr":
            yield f"cell {n}: a warning or another line on stderr: {output.text[:80]!r}"
        if unknown := set(output.get("data", {})) - MIME_TYPES:
            yield f"cell {n}: output {sorted(unknown)}; allowed are {sorted(MIME_TYPES)}"


@rule
def repeatable_outputs(nb, name):
    for n, output in outputs(nb):
        for text in texts(output):
            if found := re.search(
                r"(?<!\w)/(home|root|tmp|usr|Users)/\S*|\S*site-packages\S*|\b[A-Z]:\\\S*"
                r"|\b0x[0-9a-fA-F]{6,}",
                text,
            ):
                yield f"cell {n}: {found[0]!r} in the output differs between machines"


@rule
def figures_end_in_show(nb, name):
    for n, cell in cells(nb, "code"):
        data = [output.get("data", {}) for output in cell.outputs]
        if any("image/png" in d for d in data) and not cell.source.endswith("plt.show()"):
            yield f"cell {n}: a cell that draws a figure ends in plt.show()"
        if any("image/png" not in d and "<Figure" in d.get("text/plain", "") for d in data):
            yield f"cell {n}: <Figure …> without a picture; draw something or end in plt.show()"


@rule
def figures_have_alt(nb, name):
    seen = set()
    for n, cell in cells(nb, "code"):
        if not any("image/png" in output.get("data", {}) for output in cell.outputs):
            continue
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if complaint := poor_alt(alt, least=30):
            yield f"cell {n}: {complaint} (cell metadata mystnb.image.alt)"
        elif alt in seen:
            yield f"cell {n}: another figure has the text alternative {alt!r}"
        seen.add(alt)


def smallest_type(output, source):
    """Height in pixels of the smallest type of a stored figure, as a phone shows it."""
    image = PIL.Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
    sizes = re.findall(r"\b(?:font|label)?size=\"?([\w.-]+)", source)
    factors = (font_scalings.get(size) or float(size) / DEFAULT_TYPE for size in sizes)
    points = DEFAULT_TYPE * min([1, *factors])
    return points / 72 * image.info["dpi"][0] * min(1, PHONE / image.width)


@rule
def figures_can_be_read_on_a_phone(nb, name):
    for n, cell in cells(nb, "code"):
        for output in cell.outputs:
            if "image/png" not in output.get("data", {}):
                continue
            if (pixels := smallest_type(output, cell.source)) < LEAST_TYPE:
                yield (
                    f"cell {n}: type of {pixels:.1f} px on a phone, {LEAST_TYPE} at least; a "
                    "narrower figure, panels below each other or larger type"
                )


# Markdown that the book, JupyterLab, Colab and GitHub show alike


@rule
def markup_for_every_viewer(nb, name):
    for n, cell in cells(nb, "markdown"):
        for token in tokens(cell.source):
            kind = token.type.removesuffix("_open").removesuffix("_close")
            if kind not in MARKUP or directive_name(token):
                yield f"cell {n}: {kind} {token.content[:40]!r} shows raw in Colab and GitHub"
        for text in prose(cell.source):
            if found := re.search(r"\[\^|\[![A-Z]+\]|:::", text):
                yield f"cell {n}: {found[0]!r} shows raw in Colab or in the book"
        for tex in formulas(cell.source):
            if found := re.search(r"\\(tag|label|ref|eqref|require|newcommand)\b", tex):
                yield f"cell {n}: {found[0]} in a formula does not work in every viewer"


@rule
def html_only_for_hints(nb, name):
    for n, cell in cells(nb, "markdown"):
        for token in tokens(cell.source):
            if not token.type.startswith("html"):
                continue
            left = re.sub(r"<summary>[^<]*</summary>|</?details>|<br ?/?>", "", token.content)
            if left.strip():
                yield (
                    f"cell {n}: {left.strip()[:40]!r}; the only HTML is <details>, <summary> and "
                    "<br>, with a blank line after </summary> and before </details>"
                )
        if re.search(r"[^\n]\n</details>", cell.source):
            yield f"cell {n}: a blank line must stand before </details>"
        if cell.source.count("<details>") != cell.source.count("</details>"):
            yield f"cell {n}: <details> is not closed"


@rule
def math(nb, name):
    for n, cell in cells(nb, "markdown"):
        for complaint in broken_math(cell.source):
            yield f"cell {n}: {complaint}"


@rule
def words(nb, name):
    for n, cell in cells(nb, "markdown"):
        for text in prose(cell.source):
            if found := re.search(r"\b(simply|obviously|just)\b", text, flags=re.I):
                yield f"cell {n}: {found[0]!r} tells a reader who is stuck that it is their fault"


@rule
def links_lead_somewhere(nb, name):
    for n, cell in cells(nb, "markdown"):
        for target in links(cell.source):
            if complaint := bad_link(target):
                yield f"cell {n}: {complaint}"


def bad_link(target):
    """Why a link of a page in ``chapters/`` leads nowhere, or ``None``."""
    url = urlsplit(target)
    if url.scheme or url.netloc:
        if url.scheme == "https" and re.fullmatch(r"([\w-]+\.)+[a-z]{2,}", url.netloc):
            return None
        return (
            f"link {target}: outside links are https://name.org/…; file names are written as `code`"
        )
    if url.path and url.fragment:
        return f"link {target}: sections of other pages cannot be linked in every viewer"
    if url.path and not (CHAPTERS / url.path).is_file():
        return f"link {target}: no such file in chapters/"
    return None


# Anatomy


@rule
def set_up_cell(nb, name):
    n, first = next(iter(cells(nb, "code")), (0, None))
    if first is None or first.source.strip() != SETUP_CELL.strip():
        yield f"cell {n}: the first code cell is SETUP_CELL of tools/publish.py, word for word"
    elif tags(first) != {"remove-cell"}:
        yield f"cell {n}: the set-up cell has the tag remove-cell and no other"


@rule
def numbered_headings(nb, name):
    chapter = int(name[:2])
    found = [
        (n, *heading) for n, cell in cells(nb, "markdown") for heading in headings(cell.source)
    ]
    if not found or found[0][:2] != (1, 1) or not found[0][2].startswith(f"{chapter}. "):
        yield f"cell 1: it begins with '# {chapter}. Title'"
    expected = 1
    for n, level, text in found[1:]:
        if level == 1:
            yield f"cell {n}: a second title {text!r}"
        if level == 2:
            if not text.startswith(f"{chapter}.{expected} "):
                yield f"cell {n}: heading {text!r} should begin with {chapter}.{expected}"
            expected += 1


@rule
def sections(nb, name):
    first = [section(nb, title)[0] for title in ("Key points", "Exercises", "Solutions")]
    if first != sorted(set(first)) or first[-1] > len(nb.cells):
        yield "the sections Key points, Exercises and Solutions are there, in this order"


@rule
def opening(nb, name):
    for part in ("**You will be able to**", "**You need**"):
        if part not in nb.cells[0].source:
            yield f"cell 1: {part} is missing"


@rule
def versions_of_data(nb, name):
    code = "\n".join(cell.source for _, cell in cells(nb, "code"))
    found = sorted(set(re.findall(rf"\b({'|'.join(DATA)})\b", code)))
    first = "\n".join(cell.source for _, cell in inside(nb, r"(?<=\.1 ).*", "markdown"))
    if found and not re.search(r"\bversions?\b[^.]*\bmay differ\b", first):
        yield (
            f"{found}: this data depends on what is installed; the first section says that with "
            "another version the numbers may differ"
        )


@rule
def length(nb, name):
    before = section(nb, "Exercises")[0] - 1
    if not 20 <= before <= 50:
        yield f"{before} cells before the exercises; a chapter has 20 to 50"


@rule
def short_cells(nb, name):
    for n, cell in cells(nb, "code"):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        code = [line for line in lines if not line.lstrip().startswith("#")]
        folded = tags(cell) & {"hide-input", "hide-cell", "remove-cell", "remove-input"}
        if n < section(nb, "Exercises")[0] and len(code) > 14 and not folded:
            yield f"cell {n}: {len(code)} lines of code; split it, 14 are enough for one idea"


@rule
def exercises(nb, name):
    found = [(n, cell) for n, cell in inside(nb, "Exercises") if checked(cell)]
    names = [checked_name for _, cell in found for checked_name in checked(cell)]
    if len(set(names)) < 4:
        yield f"{len(set(names))} exercises with check(…); a chapter has at least four"
    for n, cell in found:
        defined = (ast.FunctionDef, ast.ClassDef, ast.Assign)
        if not any(isinstance(node, defined) for node in ast.parse(cell.source).body):
            yield f"cell {n}: stub and check stand in one cell"
        if not re.search("not started", shown(cell), flags=re.I):
            yield f"cell {n}: the stored answer to a stub says 'not started'"
        if "<details>" not in text_before(nb, n):
            yield f"cell {n}: the text before an exercise has a hint in <details>"


def text_before(nb, number):
    """The Markdown between a code cell and the code cell before it."""
    text = []
    for cell in reversed(nb.cells[: number - 1]):
        if cell.cell_type == "code":
            break
        text.append(cell.source)
    return "\n".join(text)


@rule
def solutions(nb, name):
    wanted = [checked(cell) for _, cell in inside(nb, "Exercises") if checked(cell)]
    found = inside(nb, "Solutions")
    if [checked(cell) for _, cell in found] != wanted:
        yield "one solution cell for each exercise cell, in the same order, with the same check(…)"
    for k, (n, cell) in enumerate(found, 1):
        title = f"# @title Solution {int(name[:2])}.{k}"
        if not re.match(rf"{re.escape(title)}\b", cell.source):
            yield f"cell {n}: it begins with {title!r}"
        if "hide-cell" not in tags(cell):
            yield f"cell {n}: a solution has the tag hide-cell"
        if not cell.metadata.get("jupyter", {}).get("source_hidden"):
            yield f"cell {n}: a solution has the metadata jupyter.source_hidden: true"
        if cell.metadata.get("cellView") != "form":
            yield f"cell {n}: a solution has the metadata cellView: form"
        if not re.search(r"\bcorrect\b", shown(cell), flags=re.I):
            yield f"cell {n}: the stored answer to a solution says 'correct'"


def defined_twice(notebooks):
    """Functions and classes that two notebooks define; ``notebooks`` maps names to notebooks."""
    home = {}
    for name, nb in notebooks.items():
        for n, cell in cells(nb, "code"):
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    first = home.setdefault(node.name, name)
                    if first != name:
                        yield (
                            f"{name}, cell {n}: {node.name} is defined in {first} too; "
                            "what two chapters need moves to attention_lib"
                        )

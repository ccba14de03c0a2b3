"""The exercises as a plain folder: one notebook for each chapter, without solutions."""

import re
from copy import deepcopy
from pathlib import Path

import nbformat

import attention_lib
from attention_lib.checks import notebooks

_SECTION = re.compile(r"^## [\d.]+ (.*)$", re.MULTILINE)
README = """\
# Exercises

One notebook for each chapter of the course "Attention, from the hash table up": tasks, hints, stubs
and checks. The solutions are in the chapters of the course.

1. Install the library and Jupyter (Python 3.11 or newer):
   `pip install "{package}" jupyterlab`
2. Open a notebook, fill in a stub in place of the dots, and run the cell. `check` says what is
   right, or names the mistake; `hint("name")` says more, step by step.
3. `python -m attention_lib.checks progress .` runs all your answers and shows how each stands.
   It runs the code in the notebooks, and changes none.
"""


def chapters_folder(given=None):
    """The folder of the course's chapters: the one that is given, or that of the checkout.

    Raises:
        ValueError: There are no chapters in it.
    """
    folder = Path(given or Path(attention_lib.__file__).parents[1] / "chapters")
    if not any(folder.glob("[0-9][0-9]_*.ipynb")):
        raise ValueError(
            "export takes the exercises from the notebooks of the course, which are not part of "
            "the installed library. Clone the course, and name its folder: --chapters "
            f"course/chapters. Got {folder}, which "
            + ("has no chapters." if folder.is_dir() else "does not exist.")
        )
    return folder


def export(target, chapters=None):
    """Write the exercises into a folder and return the paths of the new files.

    Args:
        target: The folder; it may exist.
        chapters: The folder of the chapters; that of the checkout by default.

    Raises:
        ValueError: There are no chapters.
        FileExistsError: A file that would be written exists. Nothing is written then.
    """
    target, source = Path(target), chapters_folder(chapters)
    files = {"README.md": README.format(package="attention-lib[checks]")}
    for path in sorted(source.glob("[0-9][0-9]_*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if exercises := exercise_notebook(notebook):
            files[path.name] = nbformat.writes(exercises) + "\n"
    taken = sorted(str(target / name) for name in files if (target / name).exists())
    if taken:
        raise FileExistsError(
            "export overwrites nothing: it may be somebody's work. Name another folder. "
            f"Got one that holds {', '.join(taken[:3])}{' and more' * (len(taken) > 3)}."
        )
    target.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with (target / name).open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return [target / name for name in files]


def exercise_notebook(notebook):
    """A notebook with a chapter's exercises and the cells that they need; None without any."""
    cells = notebook.cells
    inside = _section(cells, "Exercises")
    code = notebooks.code_cells(cells)
    asked = [cell for cell in code if cell.number - 1 in inside]
    if not any(cell.exercises for cell in asked):
        return None
    first = next(n for n, cell in enumerate(cells) if cell.cell_type == "code")
    needed = {c.number - 1 for cell in asked for c in notebooks.needed(code, cell, changes=False)}
    kept = sorted({first, *needed, *inside})
    new = nbformat.v4.new_notebook(metadata=deepcopy(notebook.metadata))
    new.cells = [_title(cells[0]), *(_blank(cells[n]) for n in kept)]
    return new


def _section(cells, title):
    """The indices of the cells of a section, from its heading to the next."""
    current, found = "", []
    for n, cell in enumerate(cells):
        headings = _SECTION.findall(cell.source) if cell.cell_type == "markdown" else []
        current = headings[-1] if headings else current
        if current == title:
            found.append(n)
    return found


def _title(cell):
    heading = cell.source.splitlines()[0]
    text = f"{heading}: exercises\n\nRun the cells from the top, and fill in the stubs."
    return nbformat.v4.new_markdown_cell(text, id="title")


def _blank(cell):
    cell = deepcopy(cell)
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
    return cell

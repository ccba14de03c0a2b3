"""The tables of the page "How this book is checked": counted and read, never typed.

Cells, outputs and exercises are counted in the notebooks of these pages, mistakes in the library.
Seconds come from the last run of the tests, which leaves `_build/chapters.xml`.
"""

import json
import platform
import re
from collections import Counter
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

COLUMNS = ("chapter", "cells", "outputs", "figures", "exercises", "mistakes", "seconds")
PACKAGES = ("torch", "numpy", "matplotlib", "seaborn", "ipykernel", "nbval", "jupyter-book")
# An exercise is named where its answer is handed in: `check("softmax", my_softmax)`.
CHECK = re.compile(r'check\("(\w+)"')


def fill_in(app, config):
    """Give the page its table, and the versions that the book is built and run with."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" + "|--:" * (len(COLUMNS) - 1) + "|"]
    seconds, day = last_run(Path(app.srcdir, "_build", "chapters.xml"))
    for path in sorted(Path(app.srcdir, "chapters").glob("[0-9]*.ipynb")):
        cells, outputs, figures, names = count_notebook(path)
        counts = (cells, outputs, figures, len(names), count_mistakes(path.stem[3:], names))
        time = f"{seconds[path.stem]:.0f}" if path.stem in seconds else "–"
        rows.append(f"| [](/chapters/{path.name}) | {' | '.join(map(str, counts))} | {time} |")
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{name} {version(name)}" for name in PACKAGES]
    config.myst_substitutions |= {
        "what_is_checked": "\n".join(rows),
        "versions": ", ".join(versions),
        "last_run": f"on {day}" if day else "unknown: the tests have not run where this was built",
    }


def count_notebook(path):
    """How many code cells, outputs compared and figures a notebook holds; names of exercises."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    timed = [cell for cell in code if "nbval-ignore-output" in cell["metadata"].get("tags", [])]
    figures = [o for cell in code for o in cell["outputs"] if "image/png" in o.get("data", {})]
    compared = sum(len(cell["outputs"]) for cell in code if cell not in timed) - len(figures)
    names = {name for cell in code for name in CHECK.findall("".join(cell["source"]))}
    return len(code), compared, len(figures), names


def count_mistakes(module, names):
    """How many mistakes the exercises of a chapter know by name."""
    exercises = import_module(f"attention_lib.checks.{module}").EXERCISES if names else {}
    return sum(len(e.mistakes) for name, e in exercises.items() if name in names)


def last_run(path):
    """Seconds of every chapter in pytest's report of the last run, and the day of that run."""
    if not path.is_file():
        return {}, None
    suite = ElementTree.parse(path).getroot().find("testsuite")
    seconds = Counter()
    for case in suite.iter("testcase"):
        chapter = re.search(r"\d\d_\w+", case.get("classname"))[0]
        seconds[chapter] += float(case.get("time"))
    return seconds, suite.get("timestamp")[:10]


def setup(app):
    """Fill in before the pages are read; a new run is a reason to read the page again."""
    app.connect("config-inited", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

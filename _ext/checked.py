"""The tables of the page "How this book is checked": counted and read, never typed.

Cells, outputs and exercises are counted in the notebooks of these pages, mistakes in the library.
Seconds come from the last run of the tests, which leaves `_build/chapters.xml`. What the chapters
noticed of faults planted on purpose is read from the record that `make faults` writes, what the
library's tests noticed of small changes from that of `make mutants`.
"""

import ast
import json
import platform
import re
from collections import Counter
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

COLUMNS = ("chapter", "cells", "outputs", "figures", "exercises", "mistakes", "seconds")
NOTICED_BY_CHAPTER = ("chapter", "changed cells", "faults")
NOTICED_BY_KIND = ("fault", "tried in", "noticed", "output")
MUTANTS = ("module", "noticed", "no effect", "%")
# What was planted, by its kind in the record, in the words of the page.
KINDS = {
    "scale": "a wrong factor or divisor",
    "axis": "the wrong axis",
    "transpose": "a transpose missing or wrong",
    "mask": "a mask ignored or upside down",
    "causal": "the causal mask one off, or gone",
    "bias": "a bias missing or wrong",
    "heads": "heads mixed up",
    "order": "parts swapped or misplaced",
    "dropout": "dropout in the wrong place",
    "numbers": "overflow, NaN, lost maximum",
    "training": "a step of the training missing",
    "checks": "a broken check or measure",
}
PACKAGES = ("torch", "numpy", "matplotlib", "seaborn", "ipykernel", "nbval", "jupyter-book")
# An exercise is named where its answer is handed in: `check("softmax", my_softmax)`.
CHECK = re.compile(r'check\("(\w+)"')


def fill_in(app, config):
    """Give the page its table, and the versions that the book is built and run with."""
    rows = []
    seconds, day = last_run(Path(app.srcdir, "_build", "chapters.xml"))
    for path in sorted(Path(app.srcdir, "chapters").glob("[0-9]*.ipynb")):
        cells, outputs, figures, names = count_notebook(path)
        counts = (cells, outputs, figures, len(names), count_mistakes(path.stem[3:], names))
        time = f"{seconds[path.stem]:.0f}" if path.stem in seconds else "–"
        rows.append((link(path.stem), *counts, time))
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{name} {version(name)}" for name in PACKAGES]
    config.myst_substitutions |= {
        "what_is_checked": table(COLUMNS, rows),
        "versions": ", ".join(versions),
        "last_run": f"on {day}" if day else "unknown: the tests have not run where this was built",
    }
    for name, said in ("chapter_faults", what_was_noticed), ("mutants", what_tests_noticed):
        record = Path(app.srcdir, "tests", f"{name}.json").read_text(encoding="utf-8")
        config.myst_substitutions |= said(json.loads(record))
    faults = count_faults(Path(app.srcdir, "tests", "test_planted_faults.py"))
    config.myst_substitutions["faults_to_catch"] = faults


def table(columns, rows):
    """A table of MyST: words in the first column, numbers in the others."""
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def link(chapter):
    """A link to a chapter, which shows its title."""
    return f"[](/chapters/{chapter}.ipynb)"


def count_notebook(path):
    """How many code cells, outputs compared and figures a notebook holds; names of exercises."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    timed = [cell for cell in code if "nbval-ignore-output" in cell["metadata"].get("tags", [])]
    figures = sum(is_figure(output) for cell in code for output in cell["outputs"])
    shown = [output for cell in code if cell not in timed for output in cell["outputs"]]
    compared = sum(not is_figure(output) for output in shown)
    names = {name for cell in code for name in CHECK.findall("".join(cell["source"]))}
    return len(code), compared, figures, names


def is_figure(output):
    """Whether an output of a cell is a figure."""
    return "image/png" in output.get("data", {})


def count_faults(path):
    """How many faults the dict FAULTS of a file of tests has, by module."""
    tree = ast.parse(path.read_text(encoding="utf-8")).body
    lists = [x for x in tree if isinstance(x, ast.Assign)]
    (faults,) = (x.value for x in lists if ast.unparse(x.targets[0]) == "FAULTS")
    return sum(map(len, ast.literal_eval(faults).values()))


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


def what_was_noticed(record):
    """The tables and the figures on planted faults, from the record of `make faults`."""
    planted = [fault | {"in": chapter} for chapter in record for fault in record[chapter]["faults"]]
    by_kind = [
        (words, len({fault["in"] for fault in some}), *count_noticed(some))
        for kind, words in KINDS.items()
        if (some := [fault for fault in planted if fault["kind"] == kind])
    ]
    by_chapter = [
        (link(chapter), of(x["noticed"], x["altered"]), count_noticed(x["faults"])[0])
        for chapter, x in record.items()
    ]
    errors = [fault["how"] for fault in planted if fault["cell"] and fault["how"] != "output"]
    names = {fault["fault"] for fault in planted}
    missed = sorted(names - {fault["fault"] for fault in planted if fault["cell"]})
    missed = [re.sub(r"(\w+).*: (.+)", r"*\2* (`\1`)", name) for name in missed]
    return {
        "noticed_by_kind": table(NOTICED_BY_KIND, by_kind),
        "noticed_by_chapter": table(NOTICED_BY_CHAPTER, by_chapter),
        "faults_planted": len(names),
        "fault_errors": len(errors),
        "fault_assertions": errors.count("AssertionError"),
        "faults_missed": ", ".join(missed) or "none",
        "faults_tried": ", ".join(sorted({x["date"] for x in record.values()})),
        "faults_versions": "; ".join(sorted({x["versions"] for x in record.values()})),
        "faults_minutes": round(sum(x["seconds"] for x in record.values()) / 60),
    }


def what_tests_noticed(record):
    """The table of the mutants of every module, from the record of `make mutants`."""
    counted = {
        f"`{module}`": (x["caught"] + x["timeout"], x["mutants"] - x["no change"], x["no change"])
        for module, x in record.items()
    }
    counted["all"] = tuple(map(sum, zip(*counted.values(), strict=True)))
    rows = [
        (name, f"{seen}/{possible}", same, f"{100 * seen / possible:.1f}")
        for name, (seen, possible, same) in counted.items()
    ]
    return {
        "mutants_by_module": table(MUTANTS, rows),
        "mutants_tried": ", ".join(sorted({x["date"] for x in record.values()})),
        "mutants_versions": "; ".join(sorted({x["versions"] for x in record.values()})),
    }


def count_noticed(faults):
    """How many of the faults were noticed, and how many of these by an output."""
    seen = [fault["how"] for fault in faults if fault["cell"]]
    return of(seen, faults), seen.count("output")


def of(some, all_of_them):
    """Two numbers in one cell of a table, which is not broken into two lines."""
    return f"{len(some)}\u00a0of\u00a0{len(all_of_them)}"


def setup(app):
    """Fill in before the pages are read; a new run is a reason to read the page again."""
    app.connect("config-inited", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

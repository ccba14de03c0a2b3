"""The board: reads notebooks, runs every exercise in them by itself, and says how each stands.

A notebook is read and never written. Each exercise that is more than its stub gets a fresh kernel
with the cells that `notebooks.needed` finds, and the last cell that checks it counts.
"""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from attention_lib.checks import kernel, notebooks
from attention_lib.checks.catalogue import entries

STATES = (
    "right", "wrong", "not started", "missing", "crashed", "timed out", "out of memory",
)  # fmt: skip
WARNING = (
    "This runs the code in these notebooks, with your rights and without a sandbox.\n"
    "Run notebooks of people whom you do not know in a container or on a machine of no value.\n"
)
NO_MEMORY = ("MemoryError", "can't allocate memory", "not enough memory")


@dataclass(frozen=True)
class Result:
    """How one exercise of one notebook stands.

    `note` is one line for the board: the mistake's name, the error, the limit; `text` is all that
    `check` said.
    """

    exercise: str
    chapter: str
    level: int
    state: str = "not started"
    note: str = ""
    mistake: str | None = None
    seconds: float = 0.0
    text: str = ""


@dataclass
class Notebook:
    """A notebook, why it could not be read if so, and the results."""

    path: str
    problem: str | None = None
    results: list = field(default_factory=list)


@dataclass
class Submission:
    """What one person handed in."""

    name: str
    notebooks: list

    def count(self):
        """How many exercises are in each state."""
        return Counter(r.state for notebook in self.notebooks for r in notebook.results)


def submissions(path):
    """Pairs of a name and its notebooks: a file, a folder of notebooks, or a folder of folders.

    Raises:
        ValueError: There is no notebook.
    """
    path = Path(path)
    if path.is_file():
        return [(path.stem, [path])]
    here = sorted(path.glob("*.ipynb"))
    folders = sorted(f for f in path.glob("*") if f.is_dir() and not f.name.startswith("."))
    below = [(folder.name, _below(folder)) for folder in folders]
    if here:  # a folder of somebody's may have empty folders, one of a class may not
        return [(path.resolve().name, here), *((name, found) for name, found in below if found)]
    if not any(found for _, found in below):
        raise ValueError(
            f"progress reads a notebook, a folder of notebooks, or a folder with one folder for "
            f"each student. Got {path}, "
            + ("where there is no notebook." if path.exists() else "which does not exist.")
        )
    return below


def _below(folder):
    hidden = (p for p in folder.rglob("*.ipynb"))
    return sorted(p for p in hidden if not any(x.startswith(".") for x in p.parts))


class Board:
    """Examines notebooks with the same limits, several exercises at a time if wished."""

    def __init__(self, limits, jobs=1):
        self.limits, self.stop = limits, threading.Event()
        self._catalogue = {entry.name: entry for entry in entries()}
        self._pool = ThreadPoolExecutor(jobs)

    def examine(self, path):
        """The `Notebook`, with the results of all exercises of its chapters."""
        try:
            cells = notebooks.code_cells(notebooks.read(path))
        except notebooks.UnreadableError as error:
            return Notebook(str(path), str(error))
        found = {e.exercise: e for e in self._expected(cells)}
        if not found:
            return Notebook(str(path))
        try:
            run = self._pool.map(lambda r: self._result(r, cells, path.parent), found.values())
            return Notebook(str(path), None, list(run))
        except BaseException:  # Ctrl-C, above all: leave no kernel behind
            self.stop.set()
            self._pool.shutdown(cancel_futures=True)
            raise

    def _expected(self, cells):
        """A blank result for each exercise of every chapter that the notebook has one of."""
        names = {name for cell in cells for name in cell.exercises}
        chapters = {e.chapter for e in self._catalogue.values() if e.name in names}
        for entry in self._catalogue.values():
            if entry.chapter in chapters:
                state = "not started" if entry.name in names else "missing"
                note = "" if entry.name in names else "no cell with its check"
                yield Result(entry.name, entry.chapter, entry.level, state, note)

    def _result(self, blank, cells, home):
        name = blank.exercise
        own = [cell for cell in cells if name in cell.exercises]
        started = [cell for cell in own if not notebooks.is_untouched(cell.source, name)]
        if not started or self.stop.is_set():
            return blank
        needed = notebooks.needed(cells, started[-1])
        sources = [cell.source for cell in needed]
        run = kernel.run(name, sources, home.resolve(), self.limits, self.stop)
        return replace(judged(blank, run, needed, self.limits), seconds=round(run.seconds, 1))


def judged(blank, run, cells, limits):
    """The result of an exercise, from what happened when its cells ran."""
    last = cells[run.last - 1].number if run.last else None
    if run.end == "timed out":
        return replace(blank, state="timed out", note=f"after {limits.seconds:g} s, cell {last}")
    if run.end == "out of memory":
        return replace(blank, state="out of memory", note=f"{limits.memory:g} GB, cell {last}")
    if not run.last or 0 in run.errors:
        return replace(blank, state="crashed", note=run.errors.get(0, "the kernel did not start"))
    if run.reports:
        return _reported(blank, run.reports[-1])
    if run.end == "died":
        note = f"the kernel died in cell {last} (os._exit, or a fault in compiled code)"
        return replace(blank, state="crashed", note=note)
    error = run.errors.get(len(cells), "the cell ended before check was called")
    state = "out of memory" if any(word in error for word in NO_MEMORY) else "crashed"
    earlier = [f"; cell {cells[n - 1].number} failed, too" for n in run.errors if n < len(cells)]
    return replace(blank, state=state, note=f"{error}, cell {last}{''.join(earlier[:1])}")


def _reported(blank, said):
    """The result from what `check` said."""
    verdict, mistake, text = said["verdict"], said["mistake"], said["text"]
    first = text.splitlines()[0].removeprefix(f"{blank.exercise}: ")
    state = {"correct": "right", "not started": "not started"}.get(verdict, "wrong")
    if verdict == "exception" and any(word in text for word in NO_MEMORY):
        state = "out of memory"
    note = "" if state in ("right", "not started") else (mistake or first)
    return replace(blank, state=state, note=note, mistake=mistake, text=text)


def lines(notebook):
    """The board of one notebook, line by line."""
    yield notebook.path
    if notebook.problem:
        yield f"   {notebook.problem}"
    elif not notebook.results:
        yield "   no exercises in it"
    width = max((len(r.exercise) for r in notebook.results), default=0)
    for r in notebook.results:
        time = f"{r.seconds:5.1f} s" if r.seconds else " " * 7
        note = f": {r.note}" if r.note else ""
        yield f"   {r.exercise:{width}}  {time}  {r.state}{note}"


def summary(done):
    """One line for each submission, and how many exercises are in each state."""
    width = max(len(submission.name) for submission in done)
    for submission in done:
        count = submission.count()
        parts = [f"{count[state]} {state}" for state in STATES if count[state]]
        problems = sum(notebook.problem is not None for notebook in submission.notebooks)
        parts += [f"{problems} unreadable"] if problems else []
        parts += ["no notebook"] if not submission.notebooks else []
        yield f"{submission.name:{width}}  {', '.join(parts) or 'no exercises'}"


def status(done):
    """0 if all is right, 1 if something is wrong or not done, 2 if something cannot be read."""
    if any(n.problem for submission in done for n in submission.notebooks):
        return 2
    states = {state for submission in done for state in submission.count()}
    return int(states != {"right"} or any(not s.notebooks for s in done))


def as_json(done, limits):
    """The same as data."""
    people = [asdict(s) | {"states": dict(s.count())} for s in done]
    return {"limits": asdict(limits), "status": status(done), "submissions": people}

"""Exercises that know your mistake.

`check("softmax", my_softmax)` prints one message about an answer, `hint("softmax")` a first hint.

Every chapter that has exercises has a module here, with the chapter's name and a dictionary
`EXERCISES`. To add an exercise, write its reference, its cases, its known mistakes and its hints
there; `engine.py` does the rest. A new chapter also adds its name to `CHAPTERS`.
"""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from textwrap import fill

from attention_lib.checks.calls import Sink, settings_kept
from attention_lib.checks.report import NOT_STARTED, Report
from attention_lib.checks.values import has_assert, is_stub

__all__ = ["CHAPTERS", "Report", "check", "examine", "hint"]

# In reading order: they load one by one until the name is found, so that an exercise of a NumPy
# chapter never loads torch.
CHAPTERS = (
    "lookup", "single_head", "scaling", "multi_head", "parity", "masks", "block", "retrieval",
    "classifier", "alignment", "vision", "timing", "tiling", "decoding", "devices", "clinic",
)  # fmt: skip


def check(name, candidate):
    """Print what is right or wrong with an answer to an exercise.

    Args:
        name: The exercise, as the chapter calls it.
        candidate: The answer: a function, a predicted value, or a test, as the exercise asks.

    Raises:
        ValueError: If there is no exercise of this name.

    >>> check("softmax", ...)
    softmax: not started yet. Fill it in, then run this cell again.
    hint("softmax") gives the first of 3 hints.
    """
    print(examine(name, candidate).text)


def hint(name, step=1):
    """Print one hint for an exercise; a larger step says more.

    Args:
        name: The exercise, as the chapter calls it.
        step: Which hint, from 1.

    Raises:
        ValueError: If there is no exercise of this name.
    """
    hints = _find(name).hints
    if step in range(1, len(hints) + 1):
        print(_wrap(f"{name}, hint {step} of {len(hints)}: {hints[step - 1]}"))
    else:
        print(_wrap(f"{name} has {len(hints)} hints, from 1 to {len(hints)}: there is no {step}."))


def examine(name, candidate):
    """Return the `Report` whose text `check` prints.

    Raises:
        ValueError: If there is no exercise of this name.
    """
    with settings_kept(), redirect_stdout(Sink()) as sink, redirect_stderr(sink):
        exercise = _find(name)
        idle = is_stub(candidate) and not has_assert(candidate)
        report = NOT_STARTED if idle else exercise.examine(candidate)
    lines = [f"{name}: {report.text}"]
    if sink.printed:
        lines.append("It runs on many inputs here, so what it prints is not shown.")
    if report.verdict != "correct":
        lines.append(f'hint("{name}") gives the first of {len(exercise.hints)} hints.')
    return replace(report, text=_wrap("\n".join(lines)))


def _wrap(text):
    lines = (fill(x, 88, subsequent_indent="  ", break_on_hyphens=False) for x in text.splitlines())
    return "\n".join(lines)


def _find(name):
    known = []
    for chapter in CHAPTERS:
        exercises = import_module(f"{__name__}.{chapter}").EXERCISES
        if name in exercises:
            return exercises[name]
        known += exercises
    near = get_close_matches(str(name), known)
    raise ValueError(
        f"no exercise is called {name!r}."
        + (f" Did you mean {' or '.join(near)}?" if near else f" There are: {', '.join(known)}.")
    )

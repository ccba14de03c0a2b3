"""Exercises that know your mistake.

`check("softmax", my_softmax)` prints one message about an answer, `hint("softmax")` a first hint.

Every chapter that has exercises has a module here, with the chapter's name and a dictionary
`EXERCISES`. To add an exercise, write its reference, its cases, its known mistakes and its hints
there; `engine.py` does the rest. A new chapter also adds its name to `CHAPTERS`.
"""

import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from textwrap import fill

import numpy as np

from attention_lib.checks.calls import Sink, settings_kept
from attention_lib.checks.report import NOT_STARTED, Report
from attention_lib.checks.values import has_assert, is_stub, printable, type_name

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
        TypeError: If the name is no text.
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
        TypeError: If the name is no text.
        ValueError: If there is no exercise of this name.
    """
    hints = _find(name).hints
    if step in range(1, len(hints) + 1):
        step = int(step)  # 1.0 is as good as 1, but no index
        print(_wrap(f"{name}, hint {step} of {len(hints)}: {hints[step - 1]}"))
    else:
        print(_wrap(f"{name} has {len(hints)} hints, from 1 to {len(hints)}: there is no {step}."))


def examine(name, candidate):
    """Return the `Report` whose text `check` prints.

    Raises:
        TypeError: If the name is no text.
        ValueError: If there is no exercise of this name, or the answer itself calls this.
    """
    if isinstance(sys.stdout, Sink):
        raise ValueError("check must stand below the answer; got a call inside. Is it indented?")
    with (
        settings_kept(),
        warnings.catch_warnings(action="ignore"),
        np.errstate(all="ignore"),
        redirect_stdout(Sink()) as sink,
        redirect_stderr(sink),
    ):
        exercise = _find(name)
        report = _report(exercise, candidate)
    lines = [f"{name}: {report.text}"]
    if sink.printed:
        lines.append("It runs on many inputs here, so what it prints is not shown.")
    if report.verdict != "correct":
        lines.append(f'hint("{name}") gives the first of {len(exercise.hints)} hints.')
    return replace(report, text=_wrap("\n".join(lines)))


def _report(exercise, candidate):
    try:
        idle = is_stub(candidate) and not has_assert(candidate)
        return NOT_STARTED if idle else exercise.examine(candidate)
    except Exception as error:  # whatever an object of the reader's own does when it is looked at
        text = "the answer, or what it returns, cannot be looked at: that raises "
        return Report("type", f"{text}{type_name(error)}.")


def _wrap(text):
    lines = printable(text).splitlines()
    return "\n".join(fill(x, 88, subsequent_indent="  ", break_on_hyphens=False) for x in lines)


def _find(name):
    if not isinstance(name, str):
        raise TypeError(f"the name of the exercise must come first; got a {type_name(name)}.")
    known = []
    for chapter in CHAPTERS:
        exercises = import_module(f"{__name__}.{chapter}").EXERCISES
        if name in exercises:
            return exercises[name]
        known += exercises
    near = get_close_matches(name, known)
    raise ValueError(
        f"no exercise is called {name!r}."
        + (f" Did you mean {' or '.join(near)}?" if near else f" There are: {', '.join(known)}.")
    )

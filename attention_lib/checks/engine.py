"""The engine behind `check`: it runs an answer beside the right one and beside known wrong ones.

There are three kinds of exercise: `WriteFunction`, `PredictValue` and `CatchFaults`. Each has
`hints` and `examine(candidate)`, which returns a `Report` on an answer that is no stub. None of
them keeps any state. For the list of all exercises each also has `level`, how much it asks for
(1 one idea, 2 several steps, 3 also cases that one must think of), and `trains`, a few words.

An answer may do what it likes: change its arguments, print, raise anything, return anything. One
that replaces functions of Python, NumPy or PyTorch, or looks for the reference, can deceive the
check; that harms nobody but its author. KeyboardInterrupt goes through: it stops a slow answer.
"""

import inspect
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attention_lib.checks import calls, values
from attention_lib.checks.faults import CatchFaults
from attention_lib.checks.report import NOT_A_FUNCTION, NOT_STARTED, Case, Mistake, Report

# what a chapter declares its exercises with
__all__ = ["Case", "CatchFaults", "Mistake", "PredictValue", "WriteFunction"]

_ROUNDING = 1e-12  # of a whole number that the reader computed


@dataclass(frozen=True)
class WriteFunction:
    """The reader writes a function. It is compared with `reference` on every case.

    Args:
        reference: The right function; its parameter names appear in messages.
        cases: The inputs; they are tried from the smallest to the largest.
        mistakes: Wrong functions. One that agrees with the answer on every case names the mistake.
        hints: From a nudge to nearly the solution.
        tolerance: Relative and absolute; never finer than the dtypes of the results allow.
    """

    kind = "write a function"

    reference: object
    cases: tuple
    mistakes: tuple
    hints: tuple
    tolerance: float = 1e-9
    level: int = 0
    trains: str = ""

    @cached_property
    def _ordered(self):
        return sorted(self.cases, key=Case.size)

    @cached_property
    def _names(self):
        return list(inspect.signature(self.reference).parameters)

    @cached_property
    def _right(self):
        return self._run_ours(self.reference)

    @cached_property
    def _known(self):
        return [(mistake, self._run_ours(a)) for mistake in self.mistakes for a in mistake.answers]

    def examine(self, candidate):
        """The report on a function that the reader wrote."""
        if not callable(candidate):
            return NOT_A_FUNCTION
        _ = self._right, self._known  # before the answer runs: nothing that it does can spoil them
        got = self._run(candidate)
        if values.is_unfinished(got[0].error, got[0].value):
            return NOT_STARTED
        wrong = self._wrong(got)
        if not wrong:
            return self._judge_form(got)
        report = self._known_mistake(got) or self._new_mistake(candidate, got, wrong[0])
        case = self._ordered[wrong[0]]
        given = dict(zip(self._names, case.arguments, strict=False)) | case.named
        lines = [report.text, *self._failure(case.label, given, got, wrong)]
        error = got[wrong[0]].error
        if error is not None and report.mistake:  # the mistake may be another one that raises
            lines.append(f"The error: {values.show_error(error, candidate)}")
        lines += calls.changes(self._names, got)
        return replace(report, text="\n".join(lines), arguments=deepcopy(given))

    def _run(self, function):
        outcomes = []
        for case in self._ordered:
            outcomes.append(calls.Outcome(function, *case.arguments, **case.named))
            if isinstance(outcomes[-1].error, MemoryError):  # once is enough: it takes long
                break
        return outcomes + outcomes[-1:] * (len(self._ordered) - len(outcomes))

    def _run_ours(self, function):
        """A run to keep, without the frames of its errors and all that lives in them."""
        outcomes = self._run(function)
        for outcome in outcomes:
            if outcome.error is not None:
                outcome.error.__traceback__ = None
        return outcomes

    def _wrong(self, got):
        """The numbers of the cases that are wrong: another result, or another kind of refusal."""
        other = [i for i, right in enumerate(self._right) if not got[i].refuses_like(right)]
        return sorted({*self._differ(got, self._right), *other})

    def _differ(self, one, other):
        """The numbers of the cases in which two runs differ by more than rounding."""
        pairs = enumerate(zip(one, other, strict=True))
        return [i for i, (a, b) in pairs if not a.agrees(b, self.tolerance)]

    def _known_mistake(self, got):
        for mistake, run in self._known:
            if not self._differ(got, run):
                return mistake.report()
        # Then an answer that overflows besides: ordinary inputs alone must name its mistake.
        for mistake, run in self._known:
            differ, shown = self._differ(got, run), self._differ(run, self._right)
            overflows = all(self._ordered[i].extreme and got[i].overflowed() for i in differ)
            if overflows and not all(self._ordered[i].extreme for i in shown):
                return mistake.report(f"Besides, it breaks for: {self._labels(differ)}.")

    def _new_mistake(self, candidate, got, smallest):
        got, want = got[smallest], self._right[smallest]
        if got.error is not None:
            return Report("exception", f"it raises {values.show_error(got.error, candidate)}")
        if want.error is not None:
            return Report("wrong", "it accepts an input that it must refuse.")
        if got.value is None:
            return Report("none", "it returns None. Is there a return at the end?")
        tuples = isinstance(got.value, tuple) != isinstance(want.value, tuple)
        if got.arrays is None or tuples or len(got.arrays) != len(want.arrays):
            mine, right = values.kinds(got.value), values.kinds(want.value)
            right = "of floats" if mine.startswith(right) else right
            return Report("type", f"it returns {mine}, not {right}.")
        mine, right = (", ".join(str(a.shape) for a in run.arrays) for run in (got, want))
        if mine != right:
            return Report("shape", f"the shape is wrong: {mine} in place of {right}.")
        if any(np.isnan(a).any() for a in got.arrays):
            return Report("nan", "the result contains NaN (not a number), as 0/0 or inf/inf give.")
        form, both = values.misfit(got.value, want.value)
        if form and got.agrees(want, 0.02):
            cause = "its dtype is coarse" if form == "dtype" else "besides, the type is wrong"
            return Report(form, f"nearly right, as if rounded: {cause} ({both}).")
        return Report("wrong", "wrong, in a way that is not on the list of known mistakes.")

    def _judge_form(self, got):
        """The numbers are right; are type, dtype and arguments as well?"""
        for case, mine, right in zip(self._ordered, got, self._right, strict=True):
            verdict, both = values.misfit(mine.value, right.value)
            if verdict:
                text = f"the numbers are right, the {verdict} is not. For the input "
                return Report(verdict, f"{text}'{case.label}' {both}.")
        if changes := calls.changes(self._names, got):
            return Report("argument changed", f"the result is right. {changes[0]}")
        text = f"correct. {len(got)} inputs tried, among them {self._labels(range(len(got)))}."
        return Report("correct", text)

    def _failure(self, label, given, got, wrong):
        """Lines with the smallest failing input, the expected and the actual result."""
        mine, right = got[wrong[0]], self._right[wrong[0]]
        expected, actual = values.show_both(right.error or right.value, mine.error or mine.value)
        yield f"Smallest input that fails ({label}): {values.show_arguments(given)}"
        yield f"expected {expected}, got {actual}"
        yield f"{len(wrong)} of {len(got)} inputs fail."

    def _labels(self, numbers):
        return ", ".join(dict.fromkeys(self._ordered[i].label for i in numbers))


@dataclass(frozen=True)
class PredictValue:
    """The reader predicts a number, a shape (a tuple), a truth value or one of some `choices`.

    Args:
        answer: A function that computes the right value, so that it is never typed in.
        mistakes: Wrong values, each with the belief behind it.
        hints: From a nudge to nearly the solution.
        tolerance: How far a predicted number may lie from the right one; whole numbers are exact.
        choices: The texts to choose from, if the answer is one of them.
    """

    kind = "predict a value"

    answer: object
    mistakes: tuple
    hints: tuple
    tolerance: float = 5e-3
    choices: tuple = ()
    level: int = 0
    trains: str = ""

    def examine(self, candidate):
        """The report on a value that the reader predicted."""
        right, candidate = self.answer(), values.plain(candidate)
        mine, expected = values.kind(candidate), values.kind(right)
        if mine != expected:
            return Report("type", f"the answer must be {expected}; this is {mine}.")
        if self.choices and candidate not in self.choices:
            return Report("type", f"choose one of: {', '.join(self.choices)}.")
        whole = all(isinstance(part, int) for part in values.parts(right))
        if self._equal(candidate, right, _ROUNDING if whole else self.tolerance):
            return Report("correct", f"correct: {values.show(right)}.")
        for mistake in self.mistakes:
            if any(self._equal(candidate, value, self.tolerance) for value in mistake.answers):
                return mistake.report()
        digits = 4 if values.show(candidate) != values.show(right) else 12
        shown = values.show(candidate, digits)
        return Report("wrong", f"{shown} is wrong, and no usual mistake.")

    def _equal(self, one, other, tolerance):
        if isinstance(other, str):
            return one == other
        return values.same(values.as_arrays(one), values.as_arrays(other), tolerance)

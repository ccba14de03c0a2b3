"""The engine behind `check`: it runs an answer beside the right one and beside known wrong ones.

There are three kinds of exercise: `WriteFunction`, `PredictValue` and `CatchFaults`. Each has
`hints` and `examine(candidate)`, which returns a `Report` on an answer that is no stub. None of
them keeps any state.
"""

import inspect
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attention_lib.checks import values


@dataclass(frozen=True)
class Report:
    """What is said about an answer: a verdict, the text, and the mistake's name if it is known.

    `arguments` holds the smallest input on which a function failed, by name.
    """

    verdict: str
    text: str
    mistake: str | None = None
    arguments: dict | None = None


class Case:
    """One input of a function: a label for messages, and the arguments, some of them by name.

    `extreme` marks one on which an answer may break down on top of another mistake, as for large
    numbers.
    """

    def __init__(self, label, *arguments, extreme=False, **named):
        self.label, self.arguments, self.named, self.extreme = label, arguments, named, extreme

    def size(self):
        """What cases are sorted by: ordinary ones by their number of numbers, then extreme ones."""
        return self.extreme, values.count(self.arguments)


class Mistake:
    """A wrong answer that people give: its name, a sentence of help, and the answer itself.

    Several answers may follow, where one idea leads to different numbers.
    """

    def __init__(self, name, help, *answers):
        self.name, self.help, self.answers = name, help, answers

    def report(self, *more):
        """The report that names this mistake, with more lines below the help."""
        text = "\n".join([f"a known mistake: {self.name}.", self.help, *more])
        return Report("known mistake", text, self.name)


NOT_STARTED = Report("not started", "not started yet. Fill it in, then run this cell again.")
NEVER_CALLED = Report("never called", "the test never calls the function that it is given.")
DIGITS = "It accepts another right version: last digits differ. Compare with a tolerance."
ITS_FAULT = "It rejects all right versions. What it expects is the result of a fault: "
OWN_NAN = "Your own expected numbers are NaN: your test computes inf / inf, inf - inf or 0 / 0."
ALL_REJECTED = "It rejects every right version: what it demands is not true of them, or too exact."
NO_ASSERTION = "it tells right from wrong, but not by an AssertionError, as assert raises it."
MOST_PASS = "Most pass. Compare numbers, all of them, with a result that you know another way."
NOT_A_FUNCTION = Report("type", "give check the function itself, without calling it.")


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

    reference: object
    cases: tuple
    mistakes: tuple
    hints: tuple
    tolerance: float = 1e-9

    @cached_property
    def _ordered(self):
        return sorted(self.cases, key=Case.size)

    @cached_property
    def _names(self):
        return list(inspect.signature(self.reference).parameters)

    @cached_property
    def _right(self):
        return self._run(self.reference)

    @cached_property
    def _known(self):
        return [(mistake, self._run(a)) for mistake in self.mistakes for a in mistake.answers]

    def examine(self, candidate):
        """The report on a function that the reader wrote."""
        if not callable(candidate):
            return NOT_A_FUNCTION
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
        lines += values.changes(self._names, got)
        return replace(report, text="\n".join(lines), arguments=given)

    def _run(self, function):
        return [values.Outcome(function, *c.arguments, **c.named) for c in self._ordered]

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
        if got.arrays is None or len(got.arrays) != len(want.arrays):
            mine, right = values.kinds(got.value), values.kinds(want.value)
            right = "of floats" if mine.startswith(right) else right
            return Report("type", f"it returns {mine}, not {right}.")
        mine, right = (", ".join(str(a.shape) for a in run.arrays) for run in (got, want))
        if mine != right:
            return Report("shape", f"the shape is wrong: {mine} in place of {right}.")
        if any(np.isnan(a).any() for a in got.arrays):
            return Report("nan", "the result contains NaN (not a number), as 0/0 or inf/inf give.")
        dtype, both = values.misfit(got.value, want.value)
        if dtype and got.agrees(want, 0.02):
            return Report(dtype, f"nearly right, as if rounded: its {dtype} is coarse ({both}).")
        return Report("wrong", "wrong, in a way that is not on the list of known mistakes.")

    def _judge_form(self, got):
        """The numbers are right; are type, dtype and arguments as well?"""
        for case, mine, right in zip(self._ordered, got, self._right, strict=True):
            verdict, both = values.misfit(mine.value, right.value)
            if verdict:
                text = f"the numbers are right, the {verdict} is not. For the input "
                return Report(verdict, f"{text}'{case.label}' {both}.")
        if changes := values.changes(self._names, got):
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
        tolerance: How far a predicted number may lie from the right one.
        choices: The texts to choose from, if the answer is one of them.
    """

    answer: object
    mistakes: tuple
    hints: tuple
    tolerance: float = 5e-3
    choices: tuple = ()

    def examine(self, candidate):
        """The report on a value that the reader predicted."""
        right = self.answer()
        mine, expected = values.kind(candidate), values.kind(right)
        if mine != expected:
            return Report("type", f"the answer must be {expected}; this is {mine}.")
        if self.choices and candidate not in self.choices:
            return Report("type", f"choose one of: {', '.join(self.choices)}.")
        if self._equal(candidate, right):
            return Report("correct", f"correct: {values.show(right)}.")
        for mistake in self.mistakes:
            if any(self._equal(candidate, value) for value in mistake.answers):
                return mistake.report()
        return Report("wrong", f"{values.show(candidate)} is wrong, and no usual mistake.")

    def _equal(self, one, other):
        if isinstance(other, str):
            return one == other
        return values.same(values.as_arrays(one), values.as_arrays(other), self.tolerance)


@dataclass(frozen=True)
class CatchFaults:
    """The reader writes a test: it must raise for every fault and for no right implementation.

    Args:
        right: Right implementations by name, written in different ways.
        faults: Faulty implementations as `Mistake`s: name, help, one implementation.
        mistakes: Tests that are too weak. What a test catches and lets through names its mistake;
            a fault that only some of a mistake's answers catch does not count.
        nearly: Nearly right versions as `Mistake`s. A test that rejects all right versions and
            accepts one of these gets its help.
        hints: From a nudge to nearly the solution.
    """

    right: dict
    faults: tuple
    mistakes: tuple
    hints: tuple
    nearly: tuple = ()

    def examine(self, candidate):
        """The report on a test that the reader wrote."""
        if not callable(candidate):
            return NOT_A_FUNCTION
        right, faulty, called = self._try(candidate)
        if values.is_unfinished(right[0]):
            return NOT_STARTED
        if not called and not right[0]:
            return NEVER_CALLED
        missed = [f for f, error in zip(self.faults, faulty, strict=True) if error is None]
        if any(right):
            return self._rejects_right(candidate, right, missed)
        silent = not any(isinstance(error, AssertionError) for error in faulty)
        if missed:
            return self._too_weak(candidate, faulty, missed, silent)
        if silent:
            return Report("another error", NO_ASSERTION)
        text = f"correct. It accepts {len(self.right)} right versions, each with its own rounding, "
        names = ", ".join(fault.name for fault in self.faults)
        return Report("correct", f"{text}and catches: {names}.")

    def _try(self, test):
        """The error or None for each right version, for each faulty one; was any called?"""
        faulty = (fault.answers[0] for fault in self.faults)
        watched = [values.Watched(version) for version in (*self.right.values(), *faulty)]
        errors = [values.Outcome(test, version).error for version in watched]
        count = len(self.right)
        return errors[:count], errors[count:], any(version.called for version in watched)

    def _rejects_right(self, candidate, errors, missed):
        name, error = next(pair for pair in zip(self.right, errors, strict=True) if pair[1])
        said = f"with a right version, '{name}': {values.show_error(error, candidate)}"
        if not isinstance(error, AssertionError):
            return Report("exception", f"the test itself fails {said}")
        advice = f"{ITS_FAULT}{missed[0].name}." if len(missed) == 1 else ALL_REJECTED
        near = [n for n in self.nearly if not values.Outcome(candidate, n.answers[0]).error]
        advice = near[0].help if near else advice
        advice = OWN_NAN if values.Outcome(candidate, self.right[name]).made_nan else advice
        advice = DIGITS if None in errors else advice
        return Report("rejects a right one", f"the test fails {said}\n{advice}")

    def _too_weak(self, candidate, errors, missed, silent):
        if idle := values.idle_assert(candidate, silent):
            return Report(*idle)
        through = f"It lets through {len(missed)} of {len(self.faults)} faults: "
        through += ", ".join(fault.name for fault in missed) + "."
        caught = [error is not None for error in errors]
        for mistake in self.mistakes:
            runs = [[error is not None for error in self._try(t)[1]] for t in mistake.answers]
            if all(c in seen for c, seen in zip(caught, zip(*runs, strict=True), strict=True)):
                return mistake.report(through)
        advice = MOST_PASS if 2 * len(missed) > len(self.faults) else missed[0].help
        return Report("lets a fault through", f"the test is too weak.\n{through}\n{advice}")

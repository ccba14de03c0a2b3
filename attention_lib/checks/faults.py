"""The third kind of exercise: the answer is a test, and must tell right code from faulty code."""

from dataclasses import dataclass

from attention_lib.checks import calls, values
from attention_lib.checks.report import (
    ALL_REJECTED,
    ITS_ARGUMENT,
    ITS_FAULT,
    MOST_PASS,
    NEVER_CALLED,
    NEVER_RUN,
    NO_ASSERTION,
    NOT_A_FUNCTION,
    NOT_ALL,
    NOT_STARTED,
    OWN_NAN,
    Report,
)


@dataclass(frozen=True)
class CatchFaults:
    """The reader writes a test: it must raise for every fault and for no right implementation.

    Args:
        right: Right implementations by name, written in different ways.
        faults: Faulty implementations as `Mistake`s: name, help, one implementation.
        mistakes: Tests that are too weak. What a test catches and lets through names its mistake;
            a fault that only some of a mistake's answers catch does not count.
        more: Faults that must be caught as well, and that do not count for the name of a mistake:
            a test of any kind may catch them or not.
        nearly: Nearly right versions as `Mistake`s. A test that rejects all right versions and
            accepts one of these gets its help.
        hints: From a nudge to nearly the solution.
        shown: How many of the first faults the page shows; the others are variants of them.
    """

    kind = "write a test"

    right: dict
    faults: tuple
    mistakes: tuple
    hints: tuple
    nearly: tuple = ()
    more: tuple = ()
    shown: int = 0
    level: int = 0
    trains: str = ""

    @property
    def _all(self):
        return (*self.faults, *self.more)

    def examine(self, candidate):
        """The report on a test that the reader wrote."""
        if not callable(candidate):
            return NOT_A_FUNCTION
        right, faulty, called = self._try(candidate)
        if values.is_unfinished(right[0]):
            return NOT_STARTED
        if not called and not right[0]:
            return NEVER_RUN if values.is_lazy(candidate) else NEVER_CALLED
        missed = [f for f, error in zip(self._all, faulty, strict=True) if error is None]
        if any(right):
            return self._rejects_right(candidate, right, missed)
        silent = not any(isinstance(error, AssertionError) for error in faulty)
        if missed:
            return self._too_weak(candidate, faulty, missed, silent)
        if silent:
            return Report("another error", NO_ASSERTION)
        text = f"correct. It accepts {len(self.right)} right versions, each with lines of its own, "
        names = ", ".join(fault.name for fault in self._all)
        return Report("correct", f"{text}and catches: {names}.")

    def _try(self, test):
        """The error or None for each right version, for each faulty one; was any called?"""
        # the faulty ones first: a test that compares with what it met first must not meet the truth
        faulty = [fault.answers[0] for fault in self._all]
        watched = [calls.Watched(version) for version in (*faulty, *self.right.values())]
        # other random numbers for each: a test that looks at one place, drawn at random, must not
        # meet the same place every time, nor depend on what was drawn before
        errors = []
        for number, version in enumerate(watched):
            with calls.seeded(number):
                errors.append(calls.Outcome(test, version).error)
        count = len(faulty)
        return errors[count:], errors[:count], any(version.called for version in watched)

    def _rejects_right(self, candidate, errors, missed):
        name, error = next(pair for pair in zip(self.right, errors, strict=True) if pair[1])
        said = f"with a right version, '{name}': {values.show_error(error, candidate)}"
        if not isinstance(error, AssertionError):
            more = ITS_ARGUMENT if isinstance(error, TypeError) else ""
            return Report("exception", f"the test itself fails {said}{more}")
        advice = f"{ITS_FAULT}{missed[0].name}." if len(missed) == 1 else ALL_REJECTED
        near = [n for n in self.nearly if not _run(candidate, n.answers[0]).error]
        advice = near[0].help if near else advice
        advice = OWN_NAN if _run(candidate, self.right[name]).made_nan else advice
        advice = NOT_ALL if None in errors else advice
        return Report("rejects a right one", f"the test fails {said}\n{advice}")

    def _too_weak(self, candidate, errors, missed, silent):
        if idle := values.idle_assert(candidate, silent):
            return Report(*idle)
        through = self._through(missed)
        core = len(self.faults)
        caught = [error is not None for error in errors[:core]]
        for mistake in () if all(caught) else self.mistakes:
            runs = [
                [error is not None for error in self._try(t)[1][:core]] for t in mistake.answers
            ]
            if all(c in seen for c, seen in zip(caught, zip(*runs, strict=True), strict=True)):
                return mistake.report(through)
        advice = MOST_PASS if 2 * len(missed) > len(errors) else missed[0].help
        return Report("lets a fault through", f"the test is too weak.\n{through}\n{advice}")

    def _through(self, missed):
        """Which faults a test does not catch; of variants, that they are some."""
        names = ", ".join(fault.name for fault in missed) + "."
        count = len(self._all)
        if self.shown and not any(fault in self.faults[: self.shown] for fault in missed):
            of = count - self.shown
            text = "It catches what the page shows, but not every variant of it. "
            return f"{text}It lets through {len(missed)} of {of} variants: {names}"
        return f"It lets through {len(missed)} of {count} faults: {names}"


def _run(test, version):
    return calls.Outcome(test, calls.Watched(version))

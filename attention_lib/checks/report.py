"""What an exercise is declared with, and what is said about an answer. The engine uses both."""

from dataclasses import dataclass, field

from attention_lib.checks import values


@dataclass(frozen=True)
class Report:
    """What is said about an answer: a verdict, the text, and the mistake's name if it is known.

    `arguments` holds the smallest input on which a function failed, by name.
    """

    verdict: str
    text: str
    mistake: str | None = None
    arguments: dict | None = field(default=None, compare=False)  # arrays have no one truth value


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
NEVER_RUN = Report(
    "never run", "a function with yield, or an async one, runs none of its lines when it is called."
)
NOT_ALL = (
    "It accepts another right version, so it demands what is true of that one alone. If that is "
    "the last digits, compare with a tolerance."
)
ITS_ARGUMENT = (
    "\nWhat your test gets is a function: call it, with NumPy arrays if the exercise has arrays, "
    "and assert what it returns."
)
ITS_FAULT = "It rejects all right versions. What it expects is the result of a fault: "
OWN_NAN = "Your own expected numbers are NaN: your test computes inf / inf, inf - inf or 0 / 0."
ALL_REJECTED = "It rejects every right version: what it demands is not true of them, or too exact."
NO_ASSERTION = "it tells right from wrong, but not by an AssertionError, as assert raises it."
MOST_PASS = "Most pass. Compare numbers, all of them, with a result that you know another way."
NOT_A_FUNCTION = Report("type", "give check the function itself, without calling it.")

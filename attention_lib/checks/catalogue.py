"""The list of all exercises, made from their declarations."""

from dataclasses import asdict, dataclass
from importlib import import_module

from attention_lib.checks import CHAPTERS

LEVELS = {
    1: "one idea",
    2: "several steps",
    3: "also cases that one must think of",
}


@dataclass(frozen=True)
class Entry:
    """One exercise: where it stands, what it asks for, how hard it is and what it trains."""

    number: int
    chapter: str
    name: str
    kind: str
    level: int
    trains: str


def entries():
    """Every exercise, in reading order."""
    return [
        Entry(number, chapter, name, exercise.kind, exercise.level, exercise.trains)
        for number, chapter in enumerate(CHAPTERS, 1)
        for name, exercise in import_module(f"attention_lib.checks.{chapter}").EXERCISES.items()
    ]


def listing(found):
    """The list as text, by chapter."""
    levels = ", ".join(f"{level} {words}" for level, words in LEVELS.items())
    lines = [f"{len(found)} exercises. Level: {levels}."]
    widths = [max(len(getattr(entry, part)) for entry in found) for part in ("name", "kind")]
    for number, chapter in dict.fromkeys((entry.number, entry.chapter) for entry in found):
        lines += ["", f"{number}. {chapter}"]
        for e in (entry for entry in found if entry.chapter == chapter):
            row = f"{e.name:{widths[0]}}  {e.kind:{widths[1]}}  {e.level}  {e.trains}"
            lines.append(f"   {row}")
    return "\n".join(lines)


def as_json(found):
    """The list as data."""
    return {"levels": LEVELS, "exercises": [asdict(entry) for entry in found]}

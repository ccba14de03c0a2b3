"""What runs in the kernel of the board before the reader's cells do. Only the board uses this."""

import json
import os
import sys
from pathlib import Path

from IPython import get_ipython

from attention_lib import checks


def start(exercise, reports, folder, memory):
    """Limit the memory, drop what is printed, and write down what `check` says of one exercise.

    Args:
        exercise: Its name. The checks of other exercises do nothing.
        reports: The file that gets one line of JSON for each call of `check`.
        folder: Where the notebook lies, for modules that it imports from there.
        memory: In bytes.
    """
    _limit(memory)
    # last, so that no file of a reader's stands in for a module of the library
    sys.path.append(folder)
    _silence()

    def check(name, candidate):
        if name == exercise:
            report = checks.examine(name, candidate)
            said = {"verdict": report.verdict, "mistake": report.mistake, "text": report.text}
            with Path(reports).open("a", encoding="utf-8") as file:
                file.write(json.dumps(said) + "\n")

    checks.check = check


def _silence():
    """Send all that cells print and display nowhere, before it fills somebody's memory."""
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    shell = get_ipython()
    shell.display_pub.publish = lambda *arguments, **named: None
    shell.displayhook.quiet = lambda: True


def _limit(memory):
    """Let Python raise a MemoryError, which can name the line, where the system allows it."""
    try:
        import resource

        # not the address space: PyTorch reserves much more of it than it ever uses
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    except (ImportError, ValueError, OSError):
        pass  # the board watches the process from outside, too

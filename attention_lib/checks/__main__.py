"""The exercises from the command line: `python -m attention_lib.checks`."""

import argparse
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from attention_lib.checks import catalogue
from attention_lib.checks.values import printable

EPILOG = """\
exit status of progress: 0 all right, 1 something is wrong or not done, 2 something cannot be read
"""
NEEDS = (
    "This needs packages that the library itself does not (missing: {}).\n"
    'Install them: pip install "attention-lib[checks]"'
)


def arguments(given):
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m attention_lib.checks",
        description="List the exercises, see how yours stand, or write them as a plain folder.",
        epilog=EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="write data in place of text")
    commands = parser.add_subparsers(dest="command", metavar="progress | export")
    progress = commands.add_parser(
        "progress",
        help="run the answers in notebooks and show how each stands",
        description="Run the answers in notebooks, each in a fresh kernel with the cells that it "
        "needs and without the solutions. The notebooks are not changed. It runs the code that it "
        "is given, with your rights: be sure of the people, or use a container.",
        epilog=EPILOG,
    )
    progress.add_argument(
        "paths", nargs="+", help="a notebook, a folder of them, or a folder of students' folders"
    )
    progress.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    progress.add_argument("--seconds", type=_positive, default=60, help="for an exercise (60)")
    progress.add_argument("--memory", type=_positive, default=4, help="in GB, for one (4)")
    progress.add_argument("--jobs", type=int, default=1, help="exercises at a time (1)")
    export = commands.add_parser("export", help="write the exercises as a folder of notebooks")
    export.add_argument("folder", help="where to; nothing in it is overwritten")
    export.add_argument("--chapters", help="the chapters of the course (those of the checkout)")
    return parser.parse_args(given)


def _positive(text):
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number above 0. Got {text}.")


def run_list(options):
    """Print the list of exercises."""
    found = catalogue.entries()
    text = catalogue.listing(found)
    print(json.dumps(catalogue.as_json(found), indent=1) if options.json else text)
    return 0


def run_progress(options):
    """Print the board, exercise by exercise, or all of it as JSON."""
    from attention_lib.checks import board, kernel

    limits = kernel.Limits(options.seconds, options.memory)
    groups = [pair for path in options.paths for pair in board.submissions(path)]
    print(board.WARNING, file=sys.stderr, flush=True)
    examiner, done = board.Board(limits, max(1, options.jobs)), []
    for name, paths in groups:
        done.append(board.Submission(name, []))
        for path in paths:
            notebook = examiner.examine(Path(path))
            done[-1].notebooks.append(notebook)
            if not options.json:
                print(printable("\n".join(board.lines(notebook))), flush=True)
    if options.json:
        print(json.dumps(board.as_json(done, limits), indent=1))
    else:
        print(printable("\n".join(["", *board.summary(done)])))
    return board.status(done)


def run_export(options):
    """Write the exercises and print where they are."""
    from attention_lib.checks import export

    paths = export.export(options.folder, options.chapters)
    print(f"{len(paths) - 1} notebooks and a README.md in {options.folder}")
    return 0


def main(given=None):
    """Run one command and return its exit status; a refusal is 2, with a sentence on stderr."""
    options = arguments(given)
    command = {"progress": run_progress, "export": run_export}.get(options.command, run_list)
    try:
        return command(options)
    except ModuleNotFoundError as error:
        print(NEEDS.format(error.name), file=sys.stderr)
    except BrokenPipeError:  # whoever reads has seen enough, as `| head` has
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 2


if __name__ == "__main__":
    sys.exit(main())

"""Plant small faults (mutants) in the library and count those that its own tests notice.

    python tools/mutants.py [-n WORKERS] [module ...]      (make mutants MODULES="lookup scaling")

mutmut makes and tries the mutants, one module at a time, in a copy of the tree. Those of a
chapter's module must be noticed by that chapter's own tests or by the table of wrong calls; those
of a module that all chapters share, by any test of the library. mutmut changes functions, but none
with a decorator other than ``classmethod`` and ``staticmethod``, as kernels have, and no code
outside functions. What starts the kernels is counted where Triton is installed (make kernels).

Where code runs in other processes, mutmut does not see which tests meet it, and every test of the
module may; each mutant's tests start processes of their own, for those of another run have no
mutant in them. A mutant that runs out of time is tried again alone, and is caught if it does so
again.

tests/equivalent_mutants.toml lists mutants that change nothing, with the reason. The second score
is without them. Exits with 1 if a module of HELD then has less than 95 %, or if the list has a
mutant that a test notices or that is not made any more. Writes the counts of each module down in
tests/mutants.json as soon as it is done, for the page "How this book is checked".
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it knows its own folder alone
from tools import record

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "_build" / "mutants"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
RECORD = ROOT / "tests" / "mutants.json"
NOT_COUNTED = set() if find_spec("triton") else {"_flash"}
ELSEWHERE = {"devices", "_ranks", "_ring", "_flash"}  # in processes that tests start
FOUND = {path.stem for path in (ROOT / "attention_lib").glob("*.py")}
MODULES = sorted(FOUND - NOT_COUNTED)
# beside the module of a chapter, with the same tests
SECOND = {
    "_work": "timing",
    "_cache": "decoding",
    "_flash": "tiling",
    "_packed": "packed",
    "_ranks": "devices",
    "_ring": "devices",
}
MORE = {"multi_head": ["tests/test_packed.py"]}  # beside the module's own
# draw, time, train, load or start processes; the others are attention, and are held to LEAST
ASIDE = {"__init__", "_ranks", "_work", "plots", "timing", "training"}
HELD = [module for module in MODULES if module not in ASIDE]
LEAST = 0.95
# torch.compile takes what mutmut puts around a function for a break in the graph; the kernels are
# compiled too. torchrun takes seconds, for every mutant.
LEFT_OUT = ["compile", "kernels_", "torchrun"]
# So do the programs with which these two look at what _ranks does, and nothing else.
OF_RANKS = ["them_is_killed", "whatever_the_locale"]
KERNELS = "kernels and not compile"  # those that a mutant of _flash needs
COPIED = ["tests", "tools", "benchmarks", "chapters", "README.md", "pyproject.toml"]
SETTINGS = """\
[mutmut]
source_paths = attention_lib
only_mutate = attention_lib/{module}.py
do_not_mutate = attention_lib/checks/*
process_isolation = {isolation}
timeout_constant = 10
timeout_multiplier = 3
also_copy =
    {copied}
pytest_add_cli_args =
    -p
    no:cacheprovider
    -k
    {expression}
pytest_add_cli_args_test_selection =
    {tests}
"""
# what mutmut says of a mutant, as the columns of the table; anything else is "unclear"
COLUMNS = {
    "killed": "caught",
    "segfault": "caught",  # the tests crashed, as they may where memory is read by address
    "timeout": "timeout",
    "survived": "survived",
    "no tests": "not tested",
}
CAUGHT = ("caught", "timeout")
NAME = re.compile(r"attention_lib\.(?:(\w+)\.)?x(?:_|ǁ(.+)ǁ)(.+)__mutmut_\d+")


@dataclass(frozen=True)
class Change:
    """What a mutant changes, in words that stay true when lines and mutants are renumbered."""

    module: str
    function: str
    line: str
    mutant: str


# Running mutmut


def tests_of(module):
    """The files of tests that must notice the mutants of a module, as paths from the root."""
    own = f"tests/test_{SECOND.get(module, module)}.py"
    every = [f"tests/test_{name}.py" for name in sorted(FOUND - ELSEWHERE)]
    chosen = [own] if (ROOT / own).is_file() else every
    chosen = [path for path in chosen if (ROOT / path).is_file()]
    return [*chosen, *MORE.get(module, []), "tests/test_bad_input.py"]


def settings(module):
    """What mutmut is told for one module."""
    left_out = LEFT_OUT if module == "_ranks" else LEFT_OUT + OF_RANKS
    return SETTINGS.format(
        module=module,
        # "fork" hands a mutant the processes that mutmut's own run of the tests has started
        isolation="forkserver" if module in ELSEWHERE else "fork",
        copied="\n    ".join(COPIED),
        expression=KERNELS if module == "_flash" else " and ".join(f"not {x}" for x in left_out),
        tests="\n    ".join(tests_of(module)),
    )


def prepare(module):
    """A new copy of the tree with mutmut's settings for one module; its folder."""
    folder = FOLDER / module
    shutil.rmtree(folder, ignore_errors=True)
    # Python looks once whether a folder of its path exists, and PYTHONPATH will name this one
    (folder / "mutants").mkdir(parents=True)
    for name in ["attention_lib", *COPIED]:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    (folder / "setup.cfg").write_text(settings(module), "utf-8")
    return folder


def mutmut(*arguments, folder):
    """What mutmut prints; if it fails, so does the program."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
        "PYTHONHASHSEED": "0",  # the tests of a mutant in the same order every time
        "PYTHONPATH": str(folder / "mutants"),  # for the programs that tests start
    }
    command = [Path(sys.executable).with_name("mutmut"), *arguments]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode:
        # without the lines of its spinner
        said = re.sub(r"^[\u2800-\u28ff].*\n", "", run.stdout + run.stderr, flags=re.M)
        sys.exit(f"{folder.name}: mutmut failed\n{said}")
    return run.stdout


def statuses(folder):
    """What became of every mutant: its column of the table by its name."""
    listed = mutmut("results", "--all", "True", folder=folder)
    found = re.findall(r"^ +(\S+): (.+)$", listed, flags=re.M)
    return {name: COLUMNS.get(status, "unclear") for name, status in found}


def tried(module, workers):
    """What became of every mutant of a module, and the change of each that was not caught."""
    folder = prepare(module)
    mutmut("run", "--max-children", str(workers), folder=folder)
    results = statuses(folder)
    if module in ELSEWHERE:
        let_every_test_meet(results, folder)
        missed = [name for name, column in results.items() if column != "caught"]
        mutmut("run", "--max-children", str(workers), *missed, folder=folder)
        results = statuses(folder)
    if again := [name for name, column in results.items() if column in ("timeout", "unclear")]:
        mutmut("run", "--max-children", "1", *again, folder=folder)
        results = statuses(folder)
    missed = [name for name, column in results.items() if column not in CAUGHT]
    return results, {name: change(name, mutmut("show", name, folder=folder)) for name in missed}


def let_every_test_meet(mutants, folder):
    """Tell mutmut that each of the module's own tests meets the functions of these mutants."""
    path = folder / "mutants" / "mutmut-stats.json"
    stats = json.loads(path.read_text("utf-8"))
    (own, _) = tests_of(folder.name)
    tests = [name for name in stats["duration_by_test"] if name.startswith(own)]
    for function in {name.rpartition("__mutmut_")[0] for name in mutants}:
        met = stats["tests_by_mangled_function_name"].setdefault(function, [])
        met += sorted(set(tests) - set(met))
    path.write_text(json.dumps(stats), "utf-8")


# Reading what it found


def change(name, difference):
    """The change of a mutant, from its name and from the difference that mutmut shows."""
    module, of_class, function = NAME.fullmatch(name).groups()
    lines = {"-": [], "+": []}
    for line in difference.splitlines():
        if line[:1] in lines and line[:3] not in ("---", "+++"):
            lines[line[0]].append(bare(line[1:]))
    function = f"{of_class}.{function}" if of_class else function
    return Change(module or "__init__", function, " ".join(lines["-"]), " ".join(lines["+"]))


def bare(line):
    """A line of code without its indentation and the comment behind it."""
    return re.sub(r"  # .*", "", line).strip()


def read_equivalent(path=EQUIVALENT):
    """The mutants that are listed because they change nothing, and the reason of each."""
    listed = tomllib.loads(path.read_text("utf-8"))
    return {
        Change(module, entry["function"], entry["line"], mutant): entry["why"]
        for module, entries in listed.items()
        for entry in entries
        for mutant in entry["mutants"]
    }


def part(caught, mutants):
    """The part that was caught; all of it for a module in which nothing can be changed."""
    return caught / mutants if mutants else 1.0


def summary(module, results, changes, listed):
    """The line of the table for one module."""
    counts = Counter(results.values())
    caught = sum(counts[column] for column in CAUGHT)
    same = sum(made in listed for made in changes.values())
    return {
        "module": module,
        "mutants": len(results),
        **{column: counts[column] for column in [*dict.fromkeys(COLUMNS.values()), "unclear"]},
        "score": part(caught, len(results)),
        "no change": same,
        "without": part(caught, len(results) - same),
    }


def faults(line, changes, listed):
    """What must be mended in one module, a sentence each."""
    module, made = line["module"], set(changes.values())
    found = [
        f"listed, but caught or not made any more: {change}"
        for change in listed
        if change.module == module and change not in made
    ]
    if module in HELD and line["without"] < LEAST:
        found.append(f"{module}: {line['without']:.1%} of the mutants are caught, not {LEAST:.0%}")
    return found


def show(lines):
    """Print the table."""
    rows = [list(lines[0]), *(line.values() for line in lines)]
    for first, *cells in rows:
        texts = (f"{cell:.1%}" if isinstance(cell, float) else str(cell) for cell in cells)
        print(f"{first:<12}" + "".join(f"{text:>11}" for text in texts))


def main(modules, workers):
    """Try the mutants of the modules, print what was not caught, and return what is wrong."""
    listed, lines, found = read_equivalent(), [], []
    for module in modules:
        results, changes = tried(module, workers)
        for name, made in changes.items():
            if made not in listed:
                print(f"{name}: {results[name]}\n  - {made.line}\n  + {made.mutant}", flush=True)
        lines.append(summary(module, results, changes, listed))
        entry = lines[-1] | record.made_with("torch", "numpy", "mutmut")
        record.put(RECORD, module, entry, FOUND)
        found += faults(lines[-1], changes, listed)
    show(lines)
    if NOT_COUNTED:
        print("not counted, for Triton is not installed:", *sorted(NOT_COUNTED))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", help="such as lookup; every one if none is named")
    parser.add_argument("-n", "--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if unknown := set(arguments.modules) - set(MODULES):
        parser.error(f"no module of the library: {', '.join(sorted(unknown))}")
    sys.exit("\n".join(main(arguments.modules or MODULES, arguments.workers)) or 0)

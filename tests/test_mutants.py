"""How planted faults are counted (tools/mutants.py), and the list of those that change nothing."""

import ast
import datetime
import json
import re

import numpy as np
import pytest
from repository import ROOT

from tools import record
from tools.mutants import (
    ASIDE,
    FOUND,
    HELD,
    LEAST,
    MODULES,
    RECORD,
    Change,
    bare,
    change,
    faults,
    let_every_test_meet,
    read_equivalent,
    settings,
    summary,
)
from tools.mutants import tests_of as chosen_tests

DIFFERENCE = """\
# attention_lib.lookup.x_softmax__mutmut_7: survived
--- attention_lib/lookup.py
+++ attention_lib/lookup.py
@@ -3,4 +3,3 @@
 def softmax(x, axis=-1):
-    total = x.sum(
-        axis=axis, keepdims=True)  # as many axes as x
+    total = x.sum(axis=axis)
     return x / total
"""
MADE = Change(
    "lookup", "softmax", "total = x.sum( axis=axis, keepdims=True)", "total = x.sum(axis=axis)"
)
OTHER = Change("lookup", "softmax", "return x / total", "return x * total")


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("attention_lib.lookup.x_softmax__mutmut_7", "lookup", "softmax"),
        ("attention_lib._validate.x__real__mutmut_1", "_validate", "_real"),
        ("attention_lib.block.xǁFeedForwardǁ__init____mutmut_12", "block", "FeedForward.__init__"),
        ("attention_lib.x___getattr____mutmut_2", "__init__", "__getattr__"),
    ],
)
def test_change_is_told_by_function_and_lines_and_not_by_number(name, module, function):
    assert change(name, DIFFERENCE) == Change(module, function, MADE.line, MADE.mutant)


def test_every_module_is_tried_by_tests_that_exist():
    for module in MODULES:
        assert all((ROOT / path).is_file() for path in chosen_tests(module))
    assert chosen_tests("_cache") == ["tests/test_decoding.py", "tests/test_bad_input.py"]
    assert "tests/test_packed.py" in chosen_tests("multi_head")
    assert {"tests/test_lookup.py", "tests/test_vision.py"} < set(chosen_tests("_validate"))
    # they start processes, and those of a run of mutmut's own have no mutant in them
    assert "tests/test_devices.py" not in chosen_tests("_validate")
    assert "process_isolation = forkserver" in settings("_ring")
    assert "process_isolation = fork\n" in settings("_validate")
    assert set(MODULES) - set(HELD) == ASIDE


def test_code_of_other_processes_is_tried_by_every_test_of_its_module(tmp_path):
    path = tmp_path / "_ring" / "mutants" / "mutmut-stats.json"
    path.parent.mkdir(parents=True)
    durations = {"tests/test_devices.py::a": 1, "tests/test_devices.py::b": 2, "tests/x.py::c": 3}
    met = {"attention_lib._ring.x_seen": ["tests/x.py::c"]}
    stats = {"duration_by_test": durations, "tests_by_mangled_function_name": met}
    path.write_text(json.dumps(stats))
    names = [
        f"attention_lib._ring.{name}__mutmut_{i}" for name in ("x_seen", "x_new") for i in "12"
    ]
    let_every_test_meet(names, path.parents[1])
    now = json.loads(path.read_text())["tests_by_mangled_function_name"]
    own = list(durations)[:2]
    assert now == {
        "attention_lib._ring.x_seen": ["tests/x.py::c", *own],
        "attention_lib._ring.x_new": own,
    }


RESULTS = {"a": "caught", "b": "timeout", "c": "survived", "d": "not tested", "e": "unclear"}


def test_only_caught_mutants_and_repeated_timeouts_count():
    changes = {"c": MADE, "d": OTHER, "e": OTHER}
    line = summary("lookup", RESULTS, changes, listed={MADE: "why"})
    assert line["mutants"] == 5
    assert [line[column] for column in set(RESULTS.values())] == [1] * 5
    assert line["score"] == 2 / 5
    assert (line["no change"], line["without"]) == (1, 2 / 4)


def test_module_without_mutants_has_nothing_to_catch():
    assert summary("_flash", {}, {}, {})["score"] == 1


@pytest.mark.parametrize(
    ("module", "caught", "found"),
    [
        ("lookup", 95, []),
        ("lookup", 94, ["lookup: 94.0% of the mutants are caught, not 95%"]),
        ("plots", 94, []),
    ],
)
def test_attention_modules_are_held_to_95_percent(module, caught, found):
    results = {str(n): "caught" if n < caught else "survived" for n in range(100)}
    missed = {name: OTHER for name in results if results[name] == "survived"}
    assert faults(summary(module, results, missed, {}), missed, {}) == found


def test_a_listed_mutant_that_a_test_catches_is_an_error():
    listed = {
        MADE: "why",
        OTHER: "why",
        Change("masks", "f", "", ""): "of a module that was not run",
    }
    line = summary("lookup", {"a": "caught", "b": "survived"}, {"b": MADE}, listed)
    (found,) = [fault for fault in faults(line, {"b": MADE}, listed) if "95%" not in fault]
    assert re.match("listed, but caught or not made any more", found)
    assert str(OTHER) in found


# The record


def test_modules_are_written_down_one_by_one(tmp_path):
    path, entry = tmp_path / "mutants.json", {"mutants": 5} | record.made_with("numpy")
    for module in ("masks", "gone", "lookup", "masks"):
        record.put(path, module, entry, {"masks", "lookup", module})
    stored = json.loads(path.read_text())
    assert list(stored) == ["lookup", "masks"]
    assert stored["masks"]["mutants"] == 5
    assert stored["masks"]["date"] == datetime.date.today().isoformat()
    assert stored["masks"]["versions"].startswith("Python 3.")
    assert stored["masks"]["versions"].endswith(f", numpy {np.__version__}")


def test_every_module_is_on_record_and_those_of_attention_reach_95_percent():
    stored = json.loads(RECORD.read_text("utf-8"))
    assert set(stored) == FOUND
    assert all(stored[name]["without"] >= LEAST for name in FOUND - ASIDE)


def sources(tree, of_class=""):
    """The code of every function and method by its name in the list."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from sources(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield of_class + node.name, node


LISTED = read_equivalent()


@pytest.mark.parametrize("made", LISTED, ids=lambda made: f"{made.module}.{made.function}")
def test_listed_mutant_has_a_reason_and_its_line_is_in_the_library(made):
    text = (ROOT / "attention_lib" / f"{made.module}.py").read_text("utf-8")
    code = ast.get_source_segment(text, dict(sources(ast.parse(text)))[made.function])
    assert made.line in " ".join(map(bare, code.splitlines()))
    assert made.mutant != made.line
    assert re.fullmatch(r"\S.{20,}\.", LISTED[made]), "one sentence or more"

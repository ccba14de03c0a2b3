"""What the page "How this book is checked" counts and reads (_ext/checked.py)."""

from importlib import import_module

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from repository import ROOT

from tools.chapter_faults import PLANTED


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "_ext")
    return import_module("checked")


def test_outputs_that_are_compared_and_figures_are_counted(checked, tmp_path):
    text = new_output("stream", name="stdout", text="1")
    figure = new_output("display_data", data={"image/png": "aGk=", "text/plain": "<Figure>"})
    cells = [
        new_markdown_cell("# 6. Masks"),
        new_code_cell("print(1)\nplt.show()", outputs=[text, figure]),
        new_code_cell(
            "timed()", outputs=[text, figure], metadata={"tags": ["nbval-ignore-output"]}
        ),
        new_code_cell('check("softmax", my_softmax)', outputs=[text]),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
    # code cells, outputs compared, figures, exercises
    assert checked.count_notebook(tmp_path / "a.ipynb") == (3, 2, 2, {"softmax"})


def test_page_counts_the_faults_that_tests_must_catch(checked, tmp_path):
    path = tmp_path / "tests.py"
    path.write_text('A, B = 1, 2\nFAULTS = {"a": {"x": ("1", "2"), "y": ()}, "b": {"z": ()}}\n')
    assert checked.count_faults(path) == 3


def test_every_kind_of_fault_is_planted_and_has_its_words_on_the_page(checked):
    assert {kind for kinds in PLANTED.values() for kind in kinds} == set(checked.KINDS)


def test_page_counts_what_was_noticed_and_names_what_was_not(checked):
    faults = [
        {"kind": "scale", "fault": "masks: twice", "cell": 3, "how": "output"},
        {"kind": "scale", "fault": "masks of another: thrice", "cell": None, "how": None},
        {"kind": "axis", "fault": "masks: rows", "cell": 5, "how": "AssertionError"},
    ]
    entry = {"date": "2026-11-30", "versions": "Python 3.11", "seconds": 90}
    entry |= {"altered": [2, 4], "noticed": [2, 4]}
    record = {
        "06_masks": entry | {"faults": faults},
        "07_block": entry | {"faults": [faults[0] | {"how": "ValueError"}]},
    }
    said = checked.what_was_noticed(record)
    assert said["noticed_by_kind"].replace("\u00a0", " ").splitlines()[2:] == [
        "| a wrong factor or divisor | 2 | 2 of 3 | 1 |",
        "| the wrong axis | 1 | 1 of 1 | 0 |",
    ]
    assert said["noticed_by_chapter"].replace("\u00a0", " ").splitlines()[2:] == [
        "| [](/chapters/06_masks.ipynb) | 2 of 2 | 2 of 3 |",
        "| [](/chapters/07_block.ipynb) | 2 of 2 | 1 of 1 |",
    ]
    assert (said["faults_planted"], said["faults_missed"]) == (3, "*thrice* (`masks`)")
    assert (said["fault_errors"], said["fault_assertions"]) == (2, 1)
    assert (said["faults_tried"], said["faults_minutes"]) == ("2026-11-30", 3)


def test_page_shows_every_module_and_the_sum(checked):
    counts = {"mutants": 4, "caught": 1, "timeout": 1, "no change": 1}
    record = {
        "lookup": counts | {"date": "2026-11-30", "versions": "x"},
        "masks": counts | {"caught": 2, "date": "2026-11-29", "versions": "x"},
    }
    said = checked.what_tests_noticed(record)
    assert said["mutants_by_module"].splitlines()[2:] == [
        "| `lookup` | 2/3 | 1 | 66.7 |",
        "| `masks` | 3/3 | 1 | 100.0 |",
        "| all | 5/6 | 2 | 83.3 |",
    ]
    assert said["mutants_tried"] == "2026-11-29, 2026-11-30"
    assert said["mutants_versions"] == "x"

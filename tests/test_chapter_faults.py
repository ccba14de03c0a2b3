"""How planted faults are tried on the chapters (tools/chapter_faults.py), and what is on record."""

import json
import shutil

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from repository import ROOT

from tools import chapter_faults
from tools.chapter_faults import (
    CHAPTERS,
    PLANTED,
    RECORD,
    alter,
    changed,
    copy_with,
    read_faults,
    read_report,
    try_fault,
    try_outputs,
)

FAULTS = read_faults()
NAMES = {
    chapter: [f for names in kinds.values() for f in names] for chapter, kinds in PLANTED.items()
}
STORED = json.loads(RECORD.read_text("utf-8"))


# What is planted, and what is on record


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_planted_faults_exist_and_belong_to_the_chapter_or_to_one_before(chapter):
    assert len(NAMES[chapter]) >= 3
    earlier = {name[3:] for name in CHAPTERS if name <= chapter} | {"training"}
    for name in NAMES[chapter]:
        module, _, fault = name.partition(": ")
        assert fault in FAULTS[module], name
        assert module.rpartition(" ")[2] in earlier, name


def test_record_is_of_the_present_chapters():
    assert list(PLANTED) == CHAPTERS
    assert list(STORED) == CHAPTERS, "run make faults for the chapters that are not on record"


@pytest.mark.parametrize("chapter", STORED)
def test_record_is_of_the_present_faults_and_the_chapter_noticed_some(chapter):
    tried = [(x["kind"], x["fault"]) for x in STORED[chapter]["faults"]]
    wanted = [(kind, name) for kind, names in PLANTED[chapter].items() for name in names]
    assert tried == wanted, f"run make faults CHAPTERS={chapter}"
    assert any(x["cell"] for x in STORED[chapter]["faults"])
    assert STORED[chapter]["noticed"] == STORED[chapter]["altered"] != []


# How they are tried

LIBRARY = "def double(x):\n    return 2 * x\n"
SOURCES = [
    "from attention_lib.tiny import double",
    "print(double(3))",
    "double(4)",
    "assert double(5) == 10",
    "double(6)",
]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with a library of one function and a chapter of five cells, three of them outputs."""
    outputs = [
        [],
        [new_output("stream", name="stdout", text="6\n")],
        [new_output("execute_result", data={"text/plain": "8"}, execution_count=3)],
        [],
        [new_output("execute_result", data={"text/plain": "12"}, execution_count=5)],
    ]
    cells = [
        new_code_cell(source, outputs=shown, execution_count=n)
        for n, (source, shown) in enumerate(zip(SOURCES, outputs, strict=True), 1)
    ]
    for folder in ("attention_lib", "chapters", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "attention_lib" / "tiny.py").write_text(LIBRARY)
    nbformat.write(new_notebook(cells=cells), tmp_path / "chapters" / "00_tiny.ipynb")
    shutil.copy(ROOT / "tests" / "sanitize.cfg", tmp_path / "tests")
    monkeypatch.setattr(chapter_faults, "ROOT", tmp_path)
    return tmp_path


def test_every_second_output_is_altered_and_noticed(tree):
    assert try_outputs("00_tiny") == {"altered": [2, 5], "noticed": [2, 5]}


def test_a_chapter_that_fails_without_a_fault_is_refused(tree):
    (tree / "attention_lib" / "tiny.py").write_text(LIBRARY.replace("2", "3"))
    with pytest.raises(SystemExit, match=r"\[2, 5\] were altered, and these cells fail: .*3: 'out"):
        try_outputs("00_tiny")


@pytest.mark.parametrize(
    ("right", "wrong", "cell", "how"),
    [
        ("2 * x", "4 * x", 2, "output"),
        ("2 * x", "6 + 0 * x if x == 3 else x + 4", 4, "AssertionError"),
        ("return", "retrun", 1, "SyntaxError"),
        ("2 * x", "x + x", None, None),
    ],
)
def test_first_cell_that_notices_a_fault_is_recorded(tree, right, wrong, cell, how):
    faults = {"tiny": {"a fault": (right, wrong)}}
    found = try_fault("00_tiny", "scale", "tiny: a fault", faults)
    assert found == {"kind": "scale", "fault": "tiny: a fault", "cell": cell, "how": how}


def test_fault_is_planted_in_the_copy_alone(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    notebook = copy_with(folder, "00_tiny", "tiny of another", "2 * x", "4 * x")
    assert "4 * x" in (folder / "attention_lib" / "tiny.py").read_text()
    assert (tree / "attention_lib" / "tiny.py").read_text() == LIBRARY
    assert notebook.read_bytes() == (tree / "chapters" / "00_tiny.ipynb").read_bytes()


def test_fault_that_fits_nowhere_is_refused(tree, tmp_path_factory):
    with pytest.raises(AssertionError, match=r"'3 \* x' must stand once in tiny.py"):
        copy_with(tmp_path_factory.mktemp("copy"), "00_tiny", "tiny", "3 * x", "4 * x")


@pytest.mark.parametrize(
    ("text", "altered"),
    [("a 12 b", "a 13 b"), ("0.999", "0.990"), ("9\n", "0\n"), ("[True]", "[TTrue]")],
)
def test_alteration_is_one_character(text, altered):
    assert changed(text) == altered


def test_figures_and_timings_are_not_altered(tmp_path):
    figure = {"image/png": "aGk=", "text/plain": "<Figure size 640x480 with 1 Axes>"}
    stream = new_output("stream", name="stdout", text="1")
    cells = [
        new_code_cell("plt.show()", outputs=[new_output("display_data", data=figure)]),
        new_code_cell("timed()", outputs=[stream], metadata={"tags": ["nbval-ignore-output"]}),
        new_code_cell("print(1)", outputs=[stream], execution_count=3),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
    assert alter(tmp_path / "a.ipynb") == [3]


def test_silence_is_told_from_an_error(tmp_path):
    failure = '<testcase name="Cell 7"><failure>{}</failure></testcase>'
    said = "Cell 7: Timeout of 600 seconds exceeded"
    (tmp_path / "a.xml").write_text(f"<a>{failure.format(said)}</a>")
    assert read_report(tmp_path / "a.xml") == {8: "no answer"}

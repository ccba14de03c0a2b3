"""The exercises from the command line: the list, the board, the plain folder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from attention_lib import checks
from attention_lib.checks import __main__ as command_line
from attention_lib.checks import board, catalogue, export, kernel, notebooks

CHAPTERS = Path(__file__).parents[1] / "chapters"
IMPORTS = "import numpy as np\nfrom attention_lib.checks import check, hint"
MARK = f"board-test-{os.getpid()}"
SOFTMAX = """\
def my_softmax(scores):
    shifted = shift(scores)
    return np.exp(shifted) / np.exp(shifted).sum(axis=-1, keepdims=True)


check("softmax", my_softmax)"""
ALICE = {
    "import": IMPORTS,
    "training": "raise RuntimeError('no exercise needs this cell')",
    "helper": "def shift(scores):\n    return scores - largest(scores)",
    "tie": 'my_tie = 15.0\n\ncheck("tie", my_tie)',
    "softmax": SOFTMAX,
    "soft_lookup": "%%time\ndef my_soft_lookup(query, keys, values, temperature=1.0):\n"
    "    return my_softmax(query @ keys.T / temperature) @ values\n\n"
    'check("soft_lookup", my_soft_lookup)',
    "nearest_fault": "def my_nearest(query, keys, values): ...\n\n\n"
    'check("nearest_fault", my_nearest)',
    "softmax_test": "def my_test(softmax):\n    assert np.allclose(softmax(np.ones(2)), 0.5)\n\n\n"
    'check("softmax_test", my_test)',
    "below": "def largest(scores):\n    return scores.max(axis=-1, keepdims=True)",
    "solution": "# @title Solution 1.4\ndef my_nearest(query, keys, values):\n"
    '    return values[(query @ keys.T).argmax(-1)]\n\n\ncheck("nearest_fault", my_nearest)',
}
BOB = {
    "import": IMPORTS,
    "tie": 'half_an_emoji = "\ud83d"\ncheck("tie", candidate=20)',
    "softmax": "def my_softmax(scores):\n    while True:\n        try:\n"
    "            sum(range(10**6))\n"
    '        except BaseException:\n            pass\n\n\ncheck("softmax", my_softmax)',
    "soft_lookup": "def greedy(query, keys, values, temperature=1.0):\n    kept = []\n"
    '    while True:\n        kept.append(bytes(10**7))\n\n\ncheck("soft_lookup", greedy)',
    "nearest_fault": "def my_nearest(query, keys, values):\n    return vales[0]\n\n\n"
    'check("nearest_fault", my_neares)',
    "softmax_test": 'import os\nos._exit(0)\ncheck("softmax_test", lambda softmax: None)',
}
CAROL = {
    "import": IMPORTS,
    "tie": 'import sys\nsys.exit("enough")\ncheck("tie", 15)',
    "softmax": 'answer = input("softmax?")\ncheck("softmax", answer)',
    "soft_lookup": 'print("x" * 10**7)\nfor i in range(20):\n    display("y" * 10**6)\n'
    'check("soft_lookup", lambda query, keys, values, temperature=1.0: print("z" * 10**6))',
    "nearest_fault": "import subprocess, sys\nfor own in True, False:\n    subprocess.Popen([sys."
    f"executable, '-c', 'import time; time.sleep(600) # {MARK}'], start_new_session=own)\n"
    'import time\ntime.sleep(1)\ndef my_nearest(query, keys, values):\n    raise KeyboardInterrupt'
    '\ncheck("nearest_fault", my_nearest)',
}  # fmt: skip
OLD = {
    "nbformat": 3,
    "nbformat_minor": 0,
    "metadata": {"name": ""},
    "worksheets": [{"metadata": {}, "cells": [
        {"cell_type": "code", "language": "python", "outputs": [], "collapsed": False,
         "input": ["from attention_lib.checks import check\n", 'check("tie", 10)']},
    ]}],
}  # fmt: skip


def write(path, sources):
    """A notebook whose cells have no ids, as older editors leave them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    empty = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    cells = [empty | {"source": source} for source in sources]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    path.write_text(json.dumps(notebook), "utf-8")
    return path


def run(*arguments, **options):
    command = [sys.executable, "-m", "attention_lib.checks", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def processes_of_the_tests():
    found = []
    for process in psutil.process_iter():
        try:
            found += [process] if MARK in " ".join(process.cmdline()) else []
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    """The board on a folder of submissions, once for all tests: real kernels take their time."""
    folder = tmp_path_factory.mktemp("class")
    for name, cells in {"alice": ALICE, "bob": BOB, "carol": CAROL}.items():
        write(folder / name / "01_lookup.ipynb", cells.values())
    for name, text in {"dave": "{ this is no notebook", "eve": json.dumps(OLD)}.items():
        (folder / name).mkdir()
        (folder / name / "lookup.ipynb").write_text(text, "utf-8")
    (folder / "frank").mkdir()
    (folder / "alice" / ".ipynb_checkpoints").mkdir()
    write(folder / "alice" / ".ipynb_checkpoints" / "01_lookup.ipynb", BOB.values())
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files(folder)}
    done = run("progress", folder, "--json", "--seconds", 12, "--memory", 1, "--jobs", 2)
    data = json.loads(done.stdout)
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files(folder)}
    return done, {person["name"]: person for person in data["submissions"]}, before, after


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def results(classroom, name):
    return {r["exercise"]: r for n in classroom[1][name]["notebooks"] for r in n["results"]}


def states(classroom, name):
    return {name: r["state"] for name, r in results(classroom, name).items()}


# ---------------------------------------------------------------------------- the board


def test_right_answers_with_helpers_anywhere_are_right_and_solutions_do_not_count(classroom):
    found = states(classroom, "alice")
    assert found == {
        "tie": "right",
        "softmax": "right",
        "soft_lookup": "right",
        "nearest_fault": "not started",
        "softmax_test": "wrong",
    }
    assert results(classroom, "alice")["softmax"]["seconds"] < 12


def test_known_mistake_is_named(classroom):
    tie = results(classroom, "bob")["tie"]
    assert (tie["state"], tie["mistake"]) == ("wrong", "the last of the tied keys wins")
    assert "A dict keeps the value stored last" in " ".join(tie["text"].split())


def test_endless_greedy_crashing_and_dying_answers_are_told_apart(classroom):
    found = states(classroom, "bob")
    assert found["softmax"] == "timed out"
    assert found["soft_lookup"] == "out of memory"
    assert found["nearest_fault"] == "crashed"
    assert found["softmax_test"] == "crashed"
    notes = {name: result["note"] for name, result in results(classroom, "bob").items()}
    assert notes["softmax"] == "after 12 s, cell 3"
    assert notes["nearest_fault"] == "NameError: name 'my_neares' is not defined, cell 5"
    assert "the kernel died in cell 6" in notes["softmax_test"]


def test_exit_input_floods_and_interrupts_are_survived(classroom):
    found = results(classroom, "carol")
    assert found["tie"]["note"] == "SystemExit: enough, cell 2"
    assert found["softmax"]["note"].startswith("StdinNotImplementedError")
    assert (found["soft_lookup"]["state"], found["soft_lookup"]["note"]) == (
        "wrong",
        "it returns None. Is there a return at the end?",
    )
    assert found["nearest_fault"]["note"].startswith("KeyboardInterrupt")


def test_exercise_without_its_cell_is_missing(classroom):
    assert states(classroom, "carol")["softmax_test"] == "missing"


def test_file_that_is_no_notebook_is_named_and_the_others_go_on(classroom):
    (notebook,) = classroom[1]["dave"]["notebooks"]
    assert notebook["problem"].startswith("not a notebook that can be read: Notebook does not")


def test_notebook_of_an_old_format_is_read(classroom):
    assert results(classroom, "eve")["tie"]["mistake"] == "the first of the tied keys wins"


def test_person_without_a_notebook_and_hidden_folders(classroom):
    assert classroom[1]["frank"]["notebooks"] == []
    assert len(classroom[1]["alice"]["notebooks"]) == 1


def test_no_file_is_changed_made_or_touched(classroom):
    _, _, before, after = classroom
    assert before == after


def test_no_process_is_left(classroom):
    assert processes_of_the_tests() == []


def test_status_and_warning(classroom):
    done = classroom[0]
    assert done.returncode == 2
    assert "runs the code in these notebooks, with your rights and without a sandbox" in done.stderr
    assert json.loads(done.stdout)["status"] == 2


def test_interrupted_board_leaves_no_kernel(tmp_path):
    path = write(tmp_path / "x.ipynb", [IMPORTS, 'while True:\n    pass\ncheck("tie", 15)'])
    # a shell starts what runs in the background deaf to Ctrl-C, and its children are deaf, too
    program = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('attention_lib.checks', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, "progress", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        parent = psutil.Process(process.pid)
        deadline = time.monotonic() + 60
        while not (children := parent.children(recursive=True)) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert children
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_all_right_is_status_0_and_shown_in_lines(tmp_path, capsys):
    # one exercise of a catalogue of one: a whole chapter would take five kernels
    path = write(tmp_path / "x.ipynb", [IMPORTS, 'check("tie", 15)'])
    examiner = board.Board(kernel.Limits(60, 4))
    examiner._catalogue = {"tie": examiner._catalogue["tie"]}
    notebook = examiner.examine(path)
    done = [board.Submission("x", [notebook])]
    assert board.status(done) == 0
    assert [line.split() for line in board.lines(notebook)][1][-1] == "right"
    assert list(board.summary(done)) == ["x  1 right"]


def test_untouched_notebook_needs_no_kernel_and_is_status_1(tmp_path, capsys):
    path = write(tmp_path / "x.ipynb", [IMPORTS, ALICE["nearest_fault"]])
    assert command_line.main(["progress", str(path)]) == 1
    out = capsys.readouterr().out
    assert "nearest_fault           not started\n" in out
    assert out.endswith("x  1 not started, 4 missing\n")


def test_name_that_would_steer_a_terminal_is_shown_as_escapes(tmp_path, capsys):
    path = write(tmp_path / "\x1b[2Kx.ipynb", [IMPORTS, ALICE["nearest_fault"]])
    command_line.main(["progress", str(path)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("\\x1b[2Kx") == 2  # on the board and in the summary


def test_notebook_without_exercises_says_so(tmp_path, capsys):
    path = write(tmp_path / "x.ipynb", ["1 + 1"])
    assert command_line.main(["progress", str(path)]) == 1
    assert "no exercises in it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("made", "words"), [(True, "where there is no notebook."), (False, "which does not exist.")]
)
def test_path_without_notebooks_is_refused(made, words, tmp_path, capsys):
    path = tmp_path / "nothing"
    if made:
        path.mkdir()
    assert command_line.main(["progress", str(path)]) == 2
    assert f"progress reads a notebook, a folder of notebooks, or a folder with one folder for " \
        f"each student. Got {path}, {words}" in capsys.readouterr().err  # fmt: skip


@pytest.mark.parametrize("option", ["--seconds=0", "--memory=-1", "--memory=inf", "--seconds=x"])
def test_limit_that_is_none_is_refused(option, capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(["progress", "x.ipynb", option])
    assert stop.value.code == 2
    assert "must be a number above 0. Got" in capsys.readouterr().err


def test_missing_packages_are_named_with_the_way_to_get_them(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "attention_lib.checks.board", None)
    monkeypatch.delattr(checks, "board")
    assert command_line.main(["progress", str(tmp_path)]) == 2
    assert 'pip install "attention-lib[checks]"' in capsys.readouterr().err


# ---------------------------------------------------------------------------- which cells


def numbers(sources, changes=True):
    """The cells that the last one needs, from 1."""
    cells = [notebooks.analysed(n, source) for n, source in enumerate(sources, 1)]
    return [cell.number for cell in notebooks.needed(cells, cells[-1], changes)]


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        (["a = 1", "b = 2", "b"], [2, 3]),
        (["a = 1", "a = 2", "a"], [2, 3]),
        (["a = 1", "a = a + 1", "a"], [1, 2, 3]),
        (["a = 1", "a += 1", "a"], [1, 2, 3]),
        (["a = [1]", "a[0] = 2", "a"], [1, 2, 3]),
        (["a = [1]", "a.append(2)", "a"], [1, 2, 3]),
        (["m = 1", "c = train(m, 5)", "m"], [1, 2, 3]),
        (["a = [1]", "print(a)", "a"], [1, 3]),
        (["import numpy as np", "np.testing.assert_equal(1, 1)", "np.ones(1)"], [1, 3]),
        (["T = 1", "def f(x):\n    return x / T", "T = 2", "f(1)"], [2, 3, 4]),
        (["x = 1", "x = 2\ny = x", "y"], [2, 3]),
        (["n = 1", "a = [n for n in (1, 2)]", "a"], [2, 3]),
        (["n = 1", "a = {n: m for n in (1, 2)}", "m = n", "n"], [1, 4]),
        (["n = 1", "a = [n for _ in (1, 2)]", "a"], [1, 2, 3]),
        (["n = 1", "for n in (1, 2):\n    a = n", "a"], [2, 3]),
        (["x = 1", "if c:\n    x = 2\nx", "x = 3", "c = 1", "if c:\n    x = 2\nx"], [3, 4, 5]),
        (["x = 1", "def f(x):\n    return x", "f(2)"], [2, 3]),
        (["class A:\n    y = z\n", "z = 1", "class A:\n    y = z\n", "A"], [2, 3, 4]),
        (["from numpy import *", "b = 1", "ones(1)"], [1, 3]),
        (["%run helpers.py", "b = 1", "helper(1)"], [1, 3]),
        (["%matplotlib inline", "b = 1", "b"], [2, 3]),
        (["!ls", "%%time\nb = 1", "b"], [2, 3]),
        (["def broken(", "b = 1", "b"], [2, 3]),
        (["def g():\n    return h()", "def h(): ...", "k = 1", "g()"], [1, 2, 4]),
        (["def h(): ...", "def g():\n    return h()\nm = g()", "m"], [1, 2, 3]),
    ],
)  # fmt: skip
def test_cells_that_a_cell_needs(sources, wanted):
    assert numbers(sources) == wanted


def test_changes_can_be_left_out():
    assert numbers(["a = [1]", "a.append(2)", "a"], changes=False) == [1, 3]


@pytest.mark.parametrize("path", sorted(CHAPTERS.glob("*.ipynb")), ids=lambda p: p.stem)
def test_exercises_of_a_chapter_are_found_untouched_and_need_little(path):
    chapter = path.stem[3:]
    if chapter not in checks.CHAPTERS:
        pytest.skip("has no exercises yet")
    cells = notebooks.code_cells(notebooks.read(path))
    found = {name: cell for cell in cells for name in cell.exercises}
    wanted = [entry.name for entry in catalogue.entries() if entry.chapter == chapter]
    assert list(found) == wanted
    for name, cell in found.items():
        assert notebooks.is_untouched(cell.source, name), name
        assert len(notebooks.needed(cells, cell)) <= 4


@pytest.mark.parametrize(
    ("source", "stub"),
    [
        ('a = ...\ncheck("tie", a)', True),
        ('a = None\ncheck("tie", a)', True),
        ('check("tie", ...)', True),
        ('check("tie", candidate=...)', True),
        ('check("tie", candidate=15)', False),
        ('def a(x): ...\ncheck("tie", a)', True),
        ('def a(x):\n    """Words."""\n    pass\ncheck("tie", a)', True),
        ('a = 1\ncheck("tie", a)', False),
        ('a = ...\na = 1\ncheck("tie", a)', False),
        ('def a(x):\n    return x\ncheck("tie", a)', False),
        ('check("tie", a)', False),
        ('check("tie", lambda x: x)', False),
        ('check("other", ...)', False),
        ('def a(:\ncheck("tie", a)', False),
    ],
)
def test_stub_is_seen_in_the_source(source, stub):
    assert notebooks.is_untouched(source, "tie") is stub


# ---------------------------------------------------------------------------- the list


def test_every_exercise_says_its_level_and_what_it_trains():
    lacking = [
        f"{e.chapter}: {e.name}"
        for e in catalogue.entries()
        if e.level not in catalogue.LEVELS or not 8 <= len(e.trains) <= 60 or e.trains[-1] == "."
    ]
    assert lacking == [], 'each needs level=1, 2 or 3 and trains="a few words" in its declaration'


def test_chapters_are_numbered_as_their_notebooks_are():
    numbers = {entry.chapter: entry.number for entry in catalogue.entries()}
    names = [path.stem for path in CHAPTERS.glob("*.ipynb") if path.stem[3:] in numbers]
    assert names
    assert {name[3:]: int(name[:2]) for name in names} == {
        name[3:]: numbers[name[3:]] for name in names
    }


def test_list_as_text_and_as_data(capsys):
    assert command_line.main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{len(catalogue.entries())} exercises. Level: 1 one idea, 2 ")
    assert "\n1. lookup\n   tie   " in text
    assert max(map(len, text.splitlines())) <= 120
    assert command_line.main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["exercises"][0]["name"] == "tie"
    assert {e["kind"] for e in data["exercises"]} == {
        "predict a value",
        "write a function",
        "write a test",
    }


# ---------------------------------------------------------------------------- the plain folder


@pytest.fixture
def course(tmp_path):
    """A course of one chapter."""
    cells = [
        new_markdown_cell("# 1. From a dict\n\nA story."),
        new_code_cell("# the set-up cell"),
        new_code_cell(IMPORTS, execution_count=1),
        new_code_cell("shop = 1"),
        new_code_cell("unused = 2"),
        new_markdown_cell("## 1.2 Exercises\n\n**Exercise 1.1.**\n\n<details>hint</details>"),
        new_code_cell('my_tie = ...\nshop\n\ncheck("tie", my_tie)', execution_count=2),
        new_markdown_cell("## 1.3 Solutions"),
        new_code_cell('# @title Solution 1.1\nmy_tie = 15\ncheck("tie", my_tie)'),
        new_markdown_cell("**Further reading.**"),
    ]
    folder = tmp_path / "chapters"
    folder.mkdir()
    nbformat.write(new_notebook(cells=cells), folder / "01_lookup.ipynb")
    return folder


def test_export_has_tasks_stubs_and_what_they_need_and_no_solutions(course, tmp_path, capsys):
    target = tmp_path / "class" / "week"
    assert command_line.main(["export", str(target), "--chapters", str(course)]) == 0
    assert capsys.readouterr().out == f"1 notebooks and a README.md in {target}\n"
    assert sorted(path.name for path in target.iterdir()) == ["01_lookup.ipynb", "README.md"]
    notebook = nbformat.read(target / "01_lookup.ipynb", as_version=4)
    nbformat.validate(notebook)
    first = [cell.source.splitlines()[0] for cell in notebook.cells]
    assert first == [
        "# 1. From a dict: exercises",
        "# the set-up cell",
        "import numpy as np",
        "shop = 1",
        "## 1.2 Exercises",
        "my_tie = ...",
    ]
    assert all(cell.get("execution_count") is None for cell in notebook.cells)


@pytest.mark.parametrize("name", ["01_lookup.ipynb", "README.md"])
def test_export_overwrites_nothing_and_writes_nothing_then(name, course, tmp_path, capsys):
    (tmp_path / name).write_text("my work")
    before = files(tmp_path)
    assert command_line.main(["export", str(tmp_path), "--chapters", str(course)]) == 2
    assert f"Got one that holds {tmp_path / name}." in capsys.readouterr().err
    assert files(tmp_path) == before
    assert (tmp_path / name).read_text() == "my work"


@pytest.mark.parametrize(
    ("name", "words"), [("", "which has no chapters."), ("no", "which does not exist.")]
)
def test_export_without_chapters_says_where_they_are(name, words, tmp_path):
    with pytest.raises(ValueError, match="are not part of the installed library") as refusal:
        export.export(tmp_path / "new", tmp_path / name)
    assert words in str(refusal.value)
    assert not (tmp_path / "new").exists()


def test_every_chapter_of_the_checkout_can_be_exported(tmp_path):
    written = [path.name for path in export.export(tmp_path / "new")]
    with_exercises = [p.name for p in CHAPTERS.glob("*.ipynb") if p.stem[3:] in checks.CHAPTERS]
    assert set(with_exercises) <= set(written)
    for path in (tmp_path / "new").glob("*.ipynb"):
        text = path.read_text("utf-8")
        assert "@title Solution" not in text
        assert "check(" in text

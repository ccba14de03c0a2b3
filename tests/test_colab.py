"""Every published chapter, run in an environment like Colab's that has never seen the project."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime

import nbformat
import pytest
from repository import ROOT, clone_of_working_tree, commit_all, git

from tools import publish

ADDRESS = "https://github.com/somebody/their-fork"
# Colab's own versions (August 2026). Its torch exists as a build for GPUs alone, several GB; the
# book's torch stands in for it.
TORCH = next(
    line
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if line.startswith("torch==")
)
INSTALLED_IN_COLAB = [
    TORCH,
    "numpy==2.1.3",
    "matplotlib==3.10.0",
    "seaborn==0.13.2",
    "pandas==2.2.3",
    "scikit-learn==1.6.1",
    "tqdm==4.67.1",
    "ipython==7.34.0",
    "ipykernel==6.17.1",
]
# All that a chapter may add there.
ADDED = {"attention-lib", "babel", "jaxtyping", "wadler-lindig"}
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
# Two on every change, with NumPy alone and with PyTorch and an optional package; `make colab` all.
ALWAYS = ("01_lookup.ipynb", "10_alignment.ipynb")
WITHOUT_TORCH = [path for path in CHAPTERS if "import torch" not in path.read_text("utf-8")]
PYTHON_IN_COLAB = "python3.13"
TORCH_IN_COLAB = "2.11.0"


DESCRIBE = """
import json, sys, sysconfig
base = {"base": ".", "platbase": "."}
paths = [sysconfig.get_path(kind, "venv", base) for kind in ("scripts", "purelib")]
print(json.dumps([sys.version, *paths]))
"""


def describe(python):
    """Version of a Python; where it keeps programs and packages in a virtual environment."""
    command = [python, "-c", DESCRIBE]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


def environment(folder, python, packages):
    """Packages in an environment of their own. Made once, then only read; the folder with them."""
    stamp = folder / "stamp.json"
    version, scripts, library = describe(python)
    wanted = json.dumps([version, *packages])
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [folder / scripts / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "pip==24.1.2"], check=True)
        subprocess.run([*pip, *packages], check=True)
        stamp.write_text(wanted)
    return folder / library


@pytest.fixture(scope="module")
def packages():
    """The folder with Colab's packages (a minute, 1.3 GB)."""
    return environment(ROOT / "_build" / "colab", sys.executable, INSTALLED_IN_COLAB)


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    """The working tree, committed and published; a later commit has lost the library."""
    source = tmp_path_factory.mktemp("source")
    commit = clone_of_working_tree(source)
    edition = publish.Edition(source, ADDRESS, commit, "https://book.example.org")
    publish.write_colab(edition, source.parent / "colab")
    shutil.rmtree(source / "attention_lib")
    commit_all(source)
    git("clone", "--quiet", "--bare", str(source), str(source.parent / "bare"), folder=source)
    return edition


def fresh(python, packages, edition, folder):
    """Python of a fresh environment over some packages, and the variables of its processes."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    _, scripts, library = describe(python)
    (folder / "venv" / library / "colab.pth").write_text(str(packages))
    bare = edition.tree.parent / "bare"
    config = folder / "gitconfig"
    config.write_text(f'[url "{bare.as_uri()}"]\n    insteadOf = {ADDRESS}\n')
    personal = {"PYTHONPATH", "VIRTUAL_ENV", "MPLBACKEND"}
    env = {name: value for name, value in os.environ.items() if name not in personal} | {
        "COLAB_RELEASE_TAG": "release-colab_20260819",
        "GIT_CONFIG_GLOBAL": str(config),
        "IPYTHONDIR": str(folder / "ipython"),
        "OMP_NUM_THREADS": "1",
    }
    return folder / "venv" / scripts / "python", env


@pytest.fixture
def colab(packages, edition, tmp_path):
    """A fresh environment like Colab's, with the Python that runs the tests."""
    return fresh(sys.executable, packages, edition, tmp_path)


@pytest.fixture
def colab_without_torch(edition, tmp_path):
    """The same with Colab's own Python, where that is installed, and PyTorch by name only.

    PyTorch for it would be a build for GPUs. What stands in for it satisfies pip, and fails
    where it is imported.
    """
    python = shutil.which(PYTHON_IN_COLAB)
    if not python or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON_IN_COLAB} is not installed")
    wanted = [name for name in INSTALLED_IN_COLAB if name != TORCH]
    packages = environment(ROOT / "_build" / "colab-without-torch", python, wanted)
    torch = packages / f"torch-{TORCH_IN_COLAB}.dist-info"
    torch.mkdir(exist_ok=True)
    (torch / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH_IN_COLAB}\n"
    )
    return fresh(python, packages, edition, tmp_path)


def freeze(python):
    """Name and version of all that is installed."""
    command = [python, "-m", "pip", "freeze", "--all"]
    return set(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")
    )


def run(notebook, python, env):
    """Run a notebook alone in an empty folder with a kernel of `python`, and store its outputs."""
    home = python.parents[2]
    spec = home / "jupyter" / "kernels" / "colab" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Colab", "language": "python"}))
    path = home / "content" / "chapter.ipynb"
    path.parent.mkdir()
    nbformat.write(notebook, path)
    command = [sys.executable, "-c", "from nbclient.cli import main; main()", "--inplace"]
    return path, subprocess.run(
        [*command, "--kernel_name=colab", "--timeout=300", path],
        env=env | {"JUPYTER_PATH": str(home / "jupyter")},
        capture_output=True,
        text=True,
    )


def until_first_output(path):
    """Seconds from the start of the first cell, which installs, to the end of the first that shows.

    nbclient leaves the times in the notebook. What pip says does not count.
    """
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    shown = next(cell for cell in cells[1:] if cell.outputs)
    start = cells[0].metadata["execution"]["iopub.execute_input"]
    end = shown.metadata["execution"]["shell.execute_reply"]
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def assert_runs(chapter, colab, edition, record_property):
    """The published chapter runs to its end, changes no package and adds those it may."""
    python, env = colab
    before = freeze(python)
    copy = edition.tree.parent / "colab" / "chapters" / chapter.name
    path, result = run(nbformat.read(copy, as_version=4), python, env)
    assert result.returncode == 0, result.stderr
    after = freeze(python)
    assert before - after == set(), "these versions were changed or removed"
    added = after - before
    assert f"attention-lib @ git+{ADDRESS}@{edition.commit}" in added
    names = {re.match(r"[\w.-]+", line)[0].replace("_", "-") for line in added}
    assert names <= ADDED
    record_property(f"{chapter.name}: first output", f"after {until_first_output(path):.0f} s")


def colab_run(path):
    """A chapter to run: on every change, or only by `make colab`."""
    return pytest.param(path, id=path.name, marks=[] if path.name in ALWAYS else pytest.mark.colab)


@pytest.mark.parametrize("chapter", [colab_run(path) for path in CHAPTERS])
def test_published_chapter_runs_in_colab_and_changes_nothing_there(
    chapter, colab, edition, record_property
):
    assert_runs(chapter, colab, edition, record_property)


@pytest.mark.colab
@pytest.mark.parametrize("chapter", WITHOUT_TORCH, ids=lambda path: path.name)
def test_chapter_that_needs_no_torch_runs_with_the_python_of_colab(
    chapter, colab_without_torch, edition, record_property
):
    assert_runs(chapter, colab_without_torch, edition, record_property)


@pytest.mark.colab
def test_dry_run_with_the_python_of_colab_would_add_the_library_alone(colab_without_torch, edition):
    python, env = colab_without_torch
    package = f"attention-lib[alignment,classifier,vision] @ git+{ADDRESS}@{edition.commit}"
    command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", package]
    report = json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)
    names = {item["metadata"]["name"].replace("_", "-") for item in report["install"]}
    assert names == ADDED


def one_cell(source):
    """A notebook that holds a set-up cell alone."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])


def test_unpublished_chapter_says_in_colab_what_to_do(colab):
    _, result = run(one_cell(publish.SETUP_CELL), *colab)
    assert result.returncode != 0
    assert "This copy of the notebook was not published" in result.stderr
    assert "publish your fork first: README.md, 'Publish a fork'." in result.stderr


def test_published_chapter_installs_nothing_outside_colab(colab, edition):
    python, env = colab
    del env["COLAB_RELEASE_TAG"]
    before = freeze(python)
    path, result = run(one_cell(publish.setup_cell(edition)), python, env)
    assert result.returncode == 0, result.stderr
    assert nbformat.read(path, as_version=4).cells[0].outputs == []
    assert freeze(python) == before

"""Every published chapter, run in an environment like Colab's that has never seen the project."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

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


def scheme(kind, folder):
    """A path of the virtual environment in `folder`."""
    return Path(sysconfig.get_path(kind, "venv", {"base": str(folder), "platbase": str(folder)}))


@pytest.fixture(scope="module")
def packages():
    """The folder with Colab's packages. Made once (a minute, 1.3 GB), then only read."""
    folder, stamp = ROOT / "_build" / "colab", ROOT / "_build" / "colab" / "stamp.json"
    wanted = json.dumps([sys.version, *INSTALLED_IN_COLAB])
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [scheme("scripts", folder) / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "pip==24.1.2"], check=True)
        subprocess.run([*pip, *INSTALLED_IN_COLAB], check=True)
        stamp.write_text(wanted)
    return scheme("purelib", folder)


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


@pytest.fixture
def colab(packages, edition, tmp_path):
    """Python of a fresh environment over Colab's packages, and the variables of its processes."""
    venv.create(tmp_path / "venv")
    (scheme("purelib", tmp_path / "venv") / "colab.pth").write_text(str(packages))
    bare = edition.tree.parent / "bare"
    config = tmp_path / "gitconfig"
    config.write_text(f'[url "{bare.as_uri()}"]\n    insteadOf = {ADDRESS}\n')
    personal = {"PYTHONPATH", "VIRTUAL_ENV", "MPLBACKEND"}
    env = {name: value for name, value in os.environ.items() if name not in personal} | {
        "COLAB_RELEASE_TAG": "release-colab_20260819",
        "GIT_CONFIG_GLOBAL": str(config),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "OMP_NUM_THREADS": "1",
    }
    return scheme("scripts", tmp_path / "venv") / "python", env


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


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.name)
def test_published_chapter_runs_in_colab_and_changes_nothing_there(chapter, colab, edition):
    python, env = colab
    before = freeze(python)
    copy = edition.tree.parent / "colab" / "chapters" / chapter.name
    _, result = run(nbformat.read(copy, as_version=4), python, env)
    assert result.returncode == 0, result.stderr
    after = freeze(python)
    assert before - after == set(), "these versions were changed or removed"
    added = after - before
    assert f"attention-lib @ git+{ADDRESS}@{edition.commit}" in added
    names = {re.match(r"[\w.-]+", line)[0].replace("_", "-") for line in added}
    assert names <= ADDED


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

"""Make the two published forms of one commit: the copies for Colab and the site.

    python tools/publish.py https://github.com/OWNER/REPO

writes `colab/` (what branch `colab` holds) and `html/` (what a web server holds) into the output
folder. The address is an argument, so a fork publishes under its own name and changes no file.
"""

import argparse
import io
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it knows its own folder alone
from tools import download

# The first code cell of every chapter; publishing replaces what stands under its last `if`.
SETUP_TEST = """\
# In Colab only: install the library that this chapter uses.
import importlib.util
import os

missing = importlib.util.find_spec("attention_lib") is None
if missing and "COLAB_RELEASE_TAG" in os.environ:
"""
SETUP_CELL = (
    SETUP_TEST
    + """\
    raise RuntimeError(
        "This copy of the notebook was not published, so it does not "
        "know where its library is. Open the chapter with the Colab "
        "button of the published book, or publish your fork first: "
        "README.md, 'Publish a fork'."
    )"""
)

# GitHub: letters, digits and single hyphens, none at an end. The address that stands in an
# unpublished _config.yml breaks this rule on purpose.
ADDRESS = re.compile(
    r"https://github\.com/(?P<owner>[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38})/(?P<repo>[\w.-]{1,100})",
    re.ASCII,
)
# `[text](target)` or `![text](target)`, with a target that names a file: it has a suffix.
FILE_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[\w./-]+\.\w+)(?P<anchor>#[\w-]+)?"
)

COLAB_README = """\
# Copies for Colab

These notebooks are made by `tools/publish.py` from [{commit:.7}]({address}/tree/{commit}).
Changes made here are lost with the next publication; the sources are on branch `main`.
Read the [book]({book}) for pages with working links and figures.
"""


@dataclass(frozen=True)
class Edition:
    """One commit under one address."""

    tree: Path  # a folder with the files of the commit
    address: str  # of the repository
    commit: str  # its full name
    book: str  # address of the site


class PublishError(Exception):
    """What the user must put right before this can be published."""


def parse_address(text):
    """The address without `.git` and slash, and the address of its GitHub Pages.

    Raises:
        PublishError: GitHub gives out no such address.

    Example:
        >>> parse_address("https://github.com/Ada/Course.git")
        ('https://github.com/Ada/Course', 'https://ada.github.io/Course')
    """
    address = text.removesuffix("/").removesuffix(".git")
    match = ADDRESS.fullmatch(address)
    if match is None or match["repo"] in {".", ".."}:
        raise PublishError(
            "The address must be that of a repository on GitHub, "
            f"https://github.com/OWNER/REPO. Got {text}."
        )
    site = f"{match['owner'].lower()}.github.io"
    pages = f"https://{site}"
    return address, pages if match["repo"].lower() == site else f"{pages}/{match['repo']}"


def git(*arguments, root):
    """What git writes, as bytes."""
    return subprocess.run(["git", *arguments], cwd=root, check=True, stdout=subprocess.PIPE).stdout


def resolve_commit(name, root):
    """The full name of a commit, which must be exactly what lies in the folder `root`.

    Raises:
        PublishError: The commit is not checked out, or files differ from it.
    """
    head = git("rev-parse", "HEAD", root=root).decode().strip()
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", root=root)
    except subprocess.CalledProcessError:
        raise PublishError(f"There is no commit {name} in this repository.") from None
    commit = commit.decode().strip()
    if commit != head:
        raise PublishError(
            f"Only the commit that is checked out can be published: the book is built with the "
            f"library that is installed from this folder. Checked out is {head}. Got {commit}."
        )
    changed = git("status", "--porcelain", root=root).decode()
    if changed:
        raise PublishError(
            "Commit first: Colab would install the library without these changes.\n" + changed
        )
    return commit


def export(commit, folder, root):
    """Write the files of a commit, and no others, into `folder`."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, root=root))) as archive:
        archive.extractall(folder, filter="data")


def set_address(config, address):
    """The text of `_config.yml` with the repository's address replaced.

    Raises:
        PublishError: The address that stands there does not stand there exactly once.
    """
    old = yaml.safe_load(config)["repository"]["url"]
    if config.count(old) != 1:
        raise PublishError(
            f"_config.yml must hold the address {old} exactly once, under repository: url. "
            f"Got it {config.count(old)} times."
        )
    return config.replace(old, address)


def setup_cell(edition, extra=None):
    """The source of a published set-up cell; `extra` names optional dependencies to install."""
    package = f"attention-lib[{extra}]" if extra else "attention-lib"
    source = f"git+{edition.address}@{edition.commit}"
    return f'{SETUP_TEST}    %pip install -q "{package} @ {source}"'


def absolute_links(text, edition):
    """Markdown in which links to other files work from a notebook that lies alone.

    Pages of the book lead to the book, other files to the repository at the commit.

    Raises:
        PublishError: A link leads to a file that the edition does not have.
    """

    def absolute(link):
        path = posixpath.normpath(posixpath.join("chapters", link["path"]))
        if not (edition.tree / path).is_file():
            raise PublishError(f"A link leads to {path}, and there is no such file.")
        stem, suffix = posixpath.splitext(path)
        if path.startswith("chapters/") and suffix in {".ipynb", ".md"}:
            target = f"{edition.book}/{stem}.html"
        else:
            kind = "raw" if link["image"] else "blob"
            target = f"{edition.address}/{kind}/{edition.commit}/{path}"
        return f"{link['image']}[{link['text']}]({target}{link['anchor'] or ''}"

    return FILE_LINK.sub(absolute, text)


def colab_copy(notebook, edition, extra=None):
    """Turn a chapter into its Colab copy, outputs kept.

    Raises:
        PublishError: The first code cell is not the set-up cell, word for word.
    """
    first = next((cell for cell in notebook.cells if cell.cell_type == "code"), None)
    if first is None or first.source != SETUP_CELL:
        raise PublishError("The first code cell must be SETUP_CELL of tools/publish.py.")
    first.source = setup_cell(edition, extra)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = absolute_links(cell.source, edition)
    return notebook


def write_colab(edition, folder):
    """Write the Colab copy of every chapter, and a README, into `folder`."""
    (folder / "chapters").mkdir(parents=True)
    pyproject = (edition.tree / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(pyproject)["project"].get("optional-dependencies", {})
    for path in sorted((edition.tree / "chapters").glob("*.ipynb")):
        module = path.stem.partition("_")[2]
        notebook = nbformat.read(path, as_version=4)
        try:
            colab_copy(notebook, edition, module if module in extras else None)
        except PublishError as error:
            raise PublishError(f"chapters/{path.name}: {error}") from None
        nbformat.write(notebook, folder / "chapters" / path.name)
    (folder / "README.md").write_text(COLAB_README.format(**vars(edition)), encoding="utf-8")


def write_html(edition, folder, root):
    """Build the book with the addresses of repository and site, and move it to `folder`.

    What the last run of the tests left in `root` goes into the page on checking, and the course
    in one zip beside the pages.
    """
    config = edition.tree / "_config.yml"
    text = set_address(config.read_text(encoding="utf-8"), edition.address)
    config.write_text(text, encoding="utf-8")
    last_run = Path(root, "_build", "chapters.xml")
    if last_run.is_file():
        (edition.tree / "_build").mkdir()
        shutil.copy2(last_run, edition.tree / "_build")
    program = "from jupyter_book.cli.main import main; main()"
    options = ["--all", "-W", "-n", "--keep-going"]
    subprocess.run(
        [sys.executable, "-c", program, "build", str(edition.tree), *options],
        check=True,
        env=os.environ | {"PYTHONPATH": str(edition.tree), "BOOK_URL": edition.book},
    )
    shutil.move(edition.tree / "_build" / "html", folder)
    download.write_zip(root, folder, folder / f"{download.NAME}.zip")


def publish(address, output, commit="HEAD", book=None, root="."):
    """Write the Colab copies and the site of a commit into the folder `output`.

    Args:
        address: `https://github.com/OWNER/REPO`, where readers will find the commit.
        output: A folder; `colab` and `html` in it are replaced.
        commit: The commit that is checked out in `root`, by any of its names.
        book: Where the site will be served; GitHub Pages of the address by default.
        root: The repository.

    Raises:
        PublishError: The message says what to put right.
    """
    address, pages = parse_address(address)
    commit = resolve_commit(commit, root)
    output = Path(output).resolve()
    for name in ("colab", "html"):
        shutil.rmtree(output / name, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        edition = Edition(Path(folder), address, commit, (book or pages).rstrip("/"))
        export(commit, edition.tree, root)
        write_colab(edition, output / "colab")
        write_html(edition, output / "html", root)


def main(arguments=None):
    """Publish from the command line; a refusal is one sentence and status 1."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("address", help="https://github.com/OWNER/REPO")
    parser.add_argument("--commit", default="HEAD", help="what to publish (default: %(default)s)")
    parser.add_argument("--book-url", help="where the book will be (default: GitHub Pages)")
    parser.add_argument("--output", default="_build/publish", help="folder (default: %(default)s)")
    options = parser.parse_args(arguments)
    root = Path(__file__).parents[1]
    try:
        publish(options.address, options.output, options.commit, options.book_url, root)
    except PublishError as error:
        sys.exit(f"Not published. {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    print(f"Colab copies: {options.output}/colab\nSite: {options.output}/html/index.html")


if __name__ == "__main__":
    main()

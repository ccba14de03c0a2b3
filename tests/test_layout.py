"""The tree is the table of contents, and the reading order is the dependency order."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import attention_lib
from tools import dependencies

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "attention_lib"
SUPPORT = {"checks", "plots", "training", "_arguments", "_hints", "_numbers", "_validate"}
# beside the module of the chapter's name
SECOND = {
    "_work": "timing",
    "_flash": "tiling",
    "_cache": "decoding",
    "_packed": "multi_head",
    "_ranks": "devices",
    "_ring": "devices",
}
ENGINE = {  # of checks/; its other modules are chapters'
    "__init__", "__main__", "board", "calls", "catalogue", "engine", "export", "faults", "kernel",
    "notebooks", "recorder", "report", "values",
}  # fmt: skip
WITHOUT_MODULE = {"clinic"}
NOTEBOOKS = sorted((ROOT / "chapters").glob("*.ipynb"))
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
PAGES = [Path(chapter["file"]).name for part in TOC["parts"] for chapter in part["chapters"]]
CHAPTERS = [page for page in PAGES if page[0].isdigit()]
ORDER = [chapter[3:] for chapter in CHAPTERS]
MODULES = sorted(LIBRARY.rglob("*.py"))
# Google Colab, August 2026
COLAB = {"python": "3.13.15", "torch": "2.11.0", "numpy": "2.1.3", "matplotlib": "3.10.0"}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def relative(path):
    return path.relative_to(LIBRARY).as_posix()


every_module = pytest.mark.parametrize("path", MODULES, ids=relative)
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


# Chapters and modules


def test_toc_lists_every_chapter_in_order_numbered_from_one_without_gaps():
    assert [path.stem for path in NOTEBOOKS] == CHAPTERS
    assert [chapter[:3] for chapter in CHAPTERS] == [f"{n:02}_" for n in range(1, len(ORDER) + 1)]
    assert ORDER, "there is no chapter"


@every_notebook
def test_chapter_has_a_module_and_a_test_of_its_name(path):
    name = path.stem[3:]
    if name not in WITHOUT_MODULE:
        assert (LIBRARY / f"{name}.py").is_file()
        assert (ROOT / "tests" / f"test_{name}.py").is_file()


@every_module
def test_module_belongs_to_a_chapter_or_is_a_listed_support_module(path):
    name = relative(path).removesuffix(".py").split("/")[0]
    assert name in SUPPORT or SECOND.get(name, name) in ORDER or name == "__init__"
    if path.parent.name == "checks" and path.stem not in ENGINE:
        assert path.stem in ORDER


# Imports


def imported(tree):
    """The modules of the library that the code imports anywhere, ``softmax`` as ``lookup``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name attention_lib in full"
            found |= {(*node.module.split("."), alias.name) for alias in node.names}
    names = {parts[1] for parts in found if parts[0] == "attention_lib" and len(parts) > 1}
    return {attention_lib._HOME.get(name, name) for name in names}


def misplaced(tree, home):
    """What code of the chapter ``home`` (``None``: of no chapter) imports and must not."""
    readable = ORDER[: ORDER.index(home) + 1] if home else []
    readable += [second for second, first in SECOND.items() if first == home]
    return imported(tree) - SUPPORT - set(readable)


@every_module
def test_module_imports_only_earlier_chapters_and_support_modules(path):
    home = SECOND.get(path.stem, path.stem if path.stem in ORDER else None)
    assert misplaced(ast.parse(path.read_text("utf-8")), home) == set()


@every_notebook
def test_chapter_imports_only_itself_and_earlier_chapters(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert misplaced(ast.parse(cell.source), path.stem[3:]) == set()


@pytest.mark.parametrize(
    "source",
    [
        "from attention_lib.single_head import attention_weights",
        "from attention_lib import single_head",
        "from attention_lib import plots, attention_weights",
        "import attention_lib.single_head as heads",
        "def f():\n    from attention_lib.single_head import attention_weights",
    ],
)
def test_an_import_of_a_later_chapter_is_found(source):
    assert misplaced(ast.parse(source), "lookup") == {"single_head"}
    assert misplaced(ast.parse(source), "single_head") == set()
    assert misplaced(ast.parse(source), None) == {"single_head"}


@pytest.mark.parametrize("module", ["", ".lookup", ".checks", ".plots"])
def test_numpy_chapters_start_without_torch(module):
    code = f"import sys, attention_lib{module}; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


# Names, docstrings, sizes


@pytest.mark.parametrize("name", attention_lib.__all__)
def test_exported_name_is_importable_documented_and_a_chapters(name):
    value = getattr(attention_lib, name)
    assert value.__doc__
    assert value is getattr(import_module(f"attention_lib.{attention_lib._HOME[name]}"), name)
    assert attention_lib._HOME[name] in ORDER


def test_a_name_that_is_not_exported_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_this_name'"):
        attention_lib.nothing_of_this_name  # noqa: B018


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def public(tree):
    """The module, its public functions and classes, and their public methods."""
    yield tree
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            for inner in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield inner


@every_module
def test_public_names_have_a_docstring_whose_first_line_is_a_sentence(path):
    for node in public(ast.parse(path.read_text("utf-8"))):
        docstring = ast.get_docstring(node) or ""
        name = getattr(node, "name", path.name)
        assert re.fullmatch(r"\S.*[.?!:]", docstring.split("\n")[0]), name


def code_lines(node, source):
    """The number of lines with code, without docstrings, comments and blank lines."""
    lines = source.splitlines()
    numbers = set(range(getattr(node, "lineno", 1), getattr(node, "end_lineno", len(lines)) + 1))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant):
            numbers -= set(range(inner.lineno, inner.end_lineno + 1))
    return sum(1 for n in numbers if not re.match(r"\s*(#|$)", lines[n - 1]))


@every_module
def test_files_and_functions_are_short(path):
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    for function in functions(tree):
        assert code_lines(function, source) <= 40, function.name
    # an exercise is a declaration: it is as long as its list of known mistakes
    if path.parent.name != "checks" or path.stem in ENGINE:
        assert code_lines(tree, source) <= 200


# Requirements


def pins(file="requirements.txt"):
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def test_requirements_are_exact_pins_and_end_with_the_project():
    *pinned, last = pins()
    assert last == "-e ."
    assert [line for line in pinned if not re.fullmatch(r"[\w.-]+(\[\w+\])?==[\w.]+", line)] == []
    assert any(line.startswith("torch==") for line in pinned), "without it pip takes a CUDA build"


def ranges():
    groups = [PROJECT["dependencies"], *PROJECT.get("optional-dependencies", {}).values()]
    return [Requirement(line) for group in groups for line in group]


def test_package_takes_what_colab_has():
    assert COLAB["python"] in SpecifierSet(PROJECT["requires-python"])
    for requirement in ranges():
        assert "==" not in str(requirement.specifier)
        if requirement.name in COLAB:
            assert COLAB[requirement.name] in requirement.specifier, requirement


def test_every_dependency_is_pinned_within_its_range():
    lines = pins() + pins("requirements-kernels.txt")
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for requirement in ranges():
        assert pinned[requirement.name] in requirement.specifier, requirement


def test_every_pinned_package_says_what_it_is_for_and_under_which_licence():
    rows = list(dependencies.ROW.finditer(dependencies.TABLE.read_text("utf-8")))
    names = [row["name"] for row in rows if row["name"] != "package"]
    assert sorted(names) == sorted(dependencies.pinned())
    assert not [row["name"] for row in rows if not row["licence"].strip()]


def test_version_is_the_newest_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## \[?v?(\d+\.\d+\.\d+)", changelog, flags=re.M)
    assert newest
    assert newest[1] == PROJECT["version"]


# What is committed


def committed():
    """Files that git tracks, or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


# Built from parts, so that this file does not find itself. Folders of one machine, a host with
# a port, an address with a password, a host that only one network knows.
FOREIGN = "|".join(
    [
        r"(?<![\w.}*-])/(?:wo" + r"rk|ro" + r"ot|op" + r"t|srv)/\w",
        r"/tm" + r"p/w/",
        r"https?://(?!localhost|127\.0\.0\.1)[\w.-]+:" + r"\d",
        r"https?://[^/\s]+:" + r"[^/\s]+@",
        r"https?://(?!localhost\b)[\w-]+" + r"(?:/|\s|$)",
        r"https?://(?:[\w-]+\.)+(?:internal|" + r"local|lan|corp)\b",
        r"https?://(?!127\.)(?:\d+\.){3}" + r"\d",
    ]
)


def test_no_file_tells_of_the_machine_it_was_written_on():
    found = {}
    for path in committed():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if match := re.search(FOREIGN, text):
            found[path.relative_to(ROOT).as_posix()] = match[0]
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "see /wo" + "rk/main",
        "cd '/ro" + "ot/x'",
        "file:///op" + "t/simple",
        "http://mirror.example.org:" + "8080/simple",
        "https://me:" + "secret@example.org/simple",
        "https://mirror" + "/simple",
        "https://pypi.inter" + "nal/simple",
        "http://10.0.0" + ".7/simple",
    ],
)
def test_an_address_of_one_machine_is_found(text):
    assert re.search(FOREIGN, text)


@pytest.mark.parametrize(
    "text",
    ["https://example.org/work/a", "http://localhost:8000/", "https://download.pytorch.org/whl"],
)
def test_a_public_address_is_not_taken_for_one(text):
    assert not re.search(FOREIGN, text)


def test_no_file_is_over_one_mebibyte():
    large = [path for path in committed() if path.stat().st_size > 2**20]
    assert large == []

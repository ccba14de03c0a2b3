"""The publishing step: what it refuses, what it writes, and that the site it builds leads right."""

import os
import re
import subprocess
import sys
from urllib.parse import urlsplit

import nbformat
import pytest
import yaml
from docutils import nodes, utils
from repository import NOBODY, ROOT, clone_of_working_tree, commit_all, files, git
from sphinx.addnodes import start_of_file
from sphinx.builders.latex.nodes import thebibliography

from tools import publish

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = (ROOT / "_config.yml").read_text(encoding="utf-8")
UNPUBLISHED = yaml.safe_load(CONFIG)["repository"]["url"]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))


@pytest.fixture
def edition(tmp_path):
    """A made-up course of one chapter and two other files."""
    for name in ("chapters/02_single_head.ipynb", "chapters/notation.md", "_static/front.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return publish.Edition(tmp_path, "https://github.com/ada/course", COMMIT, "https://book.org/b")


@pytest.mark.parametrize(
    ("text", "address", "pages"),
    [
        ("https://github.com/ada/c", "https://github.com/ada/c", "https://ada.github.io/c"),
        ("https://github.com/Ada/C.git", "https://github.com/Ada/C", "https://ada.github.io/C"),
        ("https://github.com/a-b/c_d.e/", "https://github.com/a-b/c_d.e", "https://a-b.github.io/c_d.e"),
        ("https://github.com/Ada/ada.github.io", "https://github.com/Ada/ada.github.io", "https://ada.github.io"),
    ],
)  # fmt: skip
def test_address_of_a_repository_gives_the_address_of_its_pages(text, address, pages):
    assert publish.parse_address(text) == (address, pages)


@pytest.mark.parametrize(
    "text",
    [
        UNPUBLISHED,
        "http://github.com/ada/course",
        "https://github.com/ada",
        "https://github.com/ada/",
        "https://github.com/ada/course/tree/main",
        "https://github.com/ada-/course",
        "https://github.com/a--b/course",
        f"https://github.com/{'a' * 40}/course",
        "https://github.com/ada/..",
        "https://github.com/ada/cours e",
        "https://github.com/ada/course?x=1",
        "https://github.com/ada/course\n",
        "https://github.com.evil.org/ada/course",
        "https://user@github.com/ada/course",
        "git@github.com:ada/course.git",
        "https://gitlab.com/ada/course",
        "ada/course",
        "",
    ],
)
def test_address_that_github_does_not_give_out_is_refused(text):
    with pytest.raises(publish.PublishError, match=r"https://github\.com/OWNER/REPO"):
        publish.parse_address(text)


def test_address_of_the_repository_stands_in_one_file_once():
    name = urlsplit(UNPUBLISHED).path.strip("/").encode()
    found = {path: (ROOT / path).read_bytes().count(name) for path in files()}
    assert {path: count for path, count in found.items() if count} == {"_config.yml": 1}


def test_address_in_the_configuration_is_replaced_and_nothing_else():
    published = publish.set_address(CONFIG, "https://github.com/ada/course")
    assert yaml.safe_load(published)["repository"]["url"] == "https://github.com/ada/course"
    assert published.replace("https://github.com/ada/course", UNPUBLISHED) == CONFIG


def test_configuration_that_holds_the_address_twice_is_refused():
    with pytest.raises(publish.PublishError, match=r"exactly once.* Got it 2 times"):
        publish.set_address(f"{CONFIG}\n# {UNPUBLISHED}\n", "https://github.com/ada/course")


def test_published_setup_installs_the_commit_in_colab_alone(edition):
    test, install = publish.setup_cell(edition).rsplit("\n", 1)
    assert publish.SETUP_CELL.startswith(f"{test}\n")
    source = f"git+https://github.com/ada/course@{COMMIT}"
    assert install == f'    %pip install -q "attention-lib @ {source}"'
    extra = publish.setup_cell(edition, "vision")
    assert extra == f'{test}\n    %pip install -q "attention-lib[vision] @ {source}"'


@pytest.mark.parametrize(
    ("link", "published"),
    [
        ("[a](02_single_head.ipynb)", "[a](https://book.org/b/chapters/02_single_head.html)"),
        ("[a b](notation.md#axes)", "[a b](https://book.org/b/chapters/notation.html#axes)"),
        ("![x](../_static/front.png)", f"![x](https://github.com/ada/course/raw/{COMMIT}/_static/front.png)"),
        ("[x](../_static/front.png)", f"[x](https://github.com/ada/course/blob/{COMMIT}/_static/front.png)"),
        ('[a](notation.md "title")', '[a](https://book.org/b/chapters/notation.html "title")'),
        ("[a](https://arxiv.org/abs/1706.03762)", "[a](https://arxiv.org/abs/1706.03762)"),
        ("[a](#axes) and $w[i](x)$", "[a](#axes) and $w[i](x)$"),
    ],
)  # fmt: skip
def test_link_in_a_colab_copy_leads_out_of_it(link, published, edition):
    text = f"Two of them: {link}, {link}."
    assert publish.absolute_links(text, edition) == text.replace(link, published)


def test_link_to_a_file_that_is_not_there_is_refused(edition):
    with pytest.raises(publish.PublishError, match=r"leads to chapters/03_scaling\.ipynb"):
        publish.absolute_links("[next](03_scaling.ipynb)", edition)


def test_chapter_without_the_setup_cell_is_refused(edition):
    cells = [nbformat.v4.new_markdown_cell("# 1"), nbformat.v4.new_code_cell("import numpy")]
    with pytest.raises(publish.PublishError, match="first code cell must be SETUP_CELL"):
        publish.colab_copy(nbformat.v4.new_notebook(cells=cells), edition)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.name)
def test_colab_copy_differs_from_its_chapter_in_setup_and_links_alone(chapter):
    original = nbformat.read(chapter, as_version=4)
    edition = publish.Edition(ROOT, "https://github.com/ada/course", COMMIT, "https://book.org")
    copy = publish.colab_copy(nbformat.read(chapter, as_version=4), edition)
    pairs = list(zip(original.cells, copy.cells, strict=True))
    changed = [old for old, new in pairs if old != new and old.cell_type == "code"]
    assert [cell.source for cell in changed] == [publish.SETUP_CELL]
    for old, new in pairs:
        assert old.get("outputs") == new.get("outputs")
        local = re.findall(r"\]\((?!https://|#)[^)]*\)|(?:href|src)=.(?!https://|#)", new.source)
        assert new.cell_type == "code" or local == []


def test_references_stay_under_their_heading_on_paper(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "_ext")
    import bookfix

    document = utils.new_document("book")
    sections = [nodes.section(ids=[name]) for name in ("tools", "references-in-full", "checked")]
    references = thebibliography("", nodes.citation())
    document += [*sections, references]  # where Sphinx puts them
    bookfix.KeepReferencesInPlace(document).run()
    assert document.children == sections
    assert [references in section.children for section in sections] == [False, True, False]


def test_front_page_is_one_chapter_on_paper(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "_ext")
    import bookfix

    document = utils.new_document("book")
    title, page = nodes.title("", "Book"), nodes.compound("", start_of_file("", nodes.section()))
    front = [nodes.paragraph(), nodes.section(ids=["map"]), nodes.section(ids=["look"])]
    document += nodes.section("", title, *front, page)
    bookfix.MakeTheFrontPageOneChapter(document).run()
    chapter = document[0][1]
    assert document[0].children == [title, chapter, page]
    assert isinstance(chapter, nodes.section)
    assert chapter.children[1:] == front


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository whose one commit is the working tree."""
    folder = tmp_path_factory.mktemp("repository")
    clone_of_working_tree(folder)
    return folder


def test_commit_is_found_by_any_of_its_names(repository):
    head = git("rev-parse", "HEAD", folder=repository)
    assert re.fullmatch("[0-9a-f]{40}", head)
    for name in ("HEAD", "main", head, head[:10]):
        assert publish.resolve_commit(name, repository) == head


def test_commit_that_is_not_checked_out_is_refused(repository):
    old = git("rev-parse", "HEAD", folder=repository)
    new = commit_all(repository)
    with pytest.raises(publish.PublishError, match=f"Checked out is {new}. Got {old}"):
        publish.resolve_commit(old, repository)
    with pytest.raises(publish.PublishError, match="There is no commit no-such-name"):
        publish.resolve_commit("no-such-name", repository)


@pytest.mark.parametrize("name", ["README.md", "chapters/new.md"])
def test_files_that_differ_from_the_commit_are_refused(name, repository):
    path = repository / name
    before = path.read_bytes() if path.exists() else None
    path.write_text("changed")
    try:
        with pytest.raises(publish.PublishError, match=f"(?s)Commit first.*{name}"):
            publish.resolve_commit("HEAD", repository)
    finally:
        path.write_bytes(before) if before is not None else path.unlink()


def test_export_holds_the_files_of_the_commit_and_no_ignored_ones(repository, tmp_path):
    (repository / "_build").mkdir()
    (repository / "_build" / "left_over.html").touch()
    publish.export("HEAD", tmp_path, repository)
    names = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert names == set(git("ls-files", folder=repository).split("\n"))


def test_command_says_in_one_sentence_what_to_put_right(repository):
    command = [sys.executable, "tools/publish.py", UNPUBLISHED]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("Not published. The address must be that of a repository")
    assert result.stderr.count("\n") == 1


WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8"))
STEPS = {step.get("name"): step for step in WORKFLOW["jobs"]["make"]["steps"]}
FORK = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "Somebody/their-fork",
    "BOOK_URL": "https://somebody.github.io/their-fork",
}


def run_step(name, folder, **variables):
    """Run a step of the workflow *Publish* as GitHub would in a fork."""
    step = STEPS[name]
    subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=folder / step.get("working-directory", ""),
        env=os.environ | NOBODY | FORK | variables,
        check=True,
    )


def write_script(path, text):
    """A program that bash runs."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A clone of the working tree, in which the workflow's own step has made both forms."""
    folder = tmp_path_factory.mktemp("source")
    commit = clone_of_working_tree(folder)
    write_script(folder / ".venv" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    run_step("Make the copies for Colab and the site", folder, GITHUB_SHA=commit)
    return folder


@pytest.fixture(scope="module")
def published(source):
    """Colab copies and site of the working tree, published under a made-up address."""
    return source / "_build" / "publish"


@pytest.mark.site
def test_workflow_replaces_the_branch_of_the_copies_and_nothing_else(source, published, tmp_path):
    bare = tmp_path / "bare"
    git("clone", "--quiet", "--bare", str(source), str(bare), folder=tmp_path)
    git("branch", "colab", "main", folder=bare)  # what an earlier publication left
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f'[url "{bare.as_uri()}"]\n    insteadOf = https://github.com/Somebody/their-fork\n'
    )
    write_script(tmp_path / "bin" / "gh", "exit 0")
    run_step(
        "Replace the branch colab",
        source,
        GITHUB_SHA=COMMIT,
        GIT_CONFIG_GLOBAL=str(settings),
        PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
    )
    names = git("ls-tree", "-r", "--name-only", "colab", folder=bare).splitlines()
    assert names == ["README.md", *(f"chapters/{path.name}" for path in CHAPTERS)]
    head = git("rev-parse", "HEAD", folder=source)
    assert git("rev-parse", "main", folder=bare) == head


@pytest.mark.site
def test_published_pages_have_a_preview_an_address_and_a_place_in_the_site_map(published):
    html = published / "html"
    book = FORK["BOOK_URL"]
    site_map = (html / "sitemap.xml").read_text(encoding="utf-8")
    for path in html.glob("chapters/*.html"):
        address = f"{book}/chapters/{path.name}"
        assert f"<loc>{address}</loc>" in site_map
        page = path.read_text(encoding="utf-8")
        assert f'<link rel="canonical" href="{address}"' in page
        assert f'<meta property="og:url" content="{address}"' in page
        said = re.search(r'<meta property="og:description" content="([^"]+)"', page)[1]
        assert not set(said) & set("\\$"), "a formula is written plainly"
        picture = re.search(r'<meta property="og:image" content="([^"]+)"', page)[1]
        assert (html / picture.removeprefix(f"{book}/")).is_file()
        assert f'href="{book}/attention-course.zip"' in page
    assert (html / "attention-course.zip").is_file()


@pytest.mark.site
@pytest.mark.parametrize("page", ["01_lookup", "notation", "index"])
def test_published_page_has_a_link_for_an_edit_and_one_for_feedback(page, published):
    found = links(published / "html" / "chapters" / f"{page}.html")
    repository = "https://github.com/Somebody/their-fork"
    assert any(link.startswith(f"{repository}/edit/main/chapters/{page}.") for link in found)
    assert any(link.startswith(f"{repository}/issues/new") for link in found)


def links(page):
    """Every address that a page of the site links to."""
    return set(re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8")))


@pytest.mark.site
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.name)
def test_buttons_of_the_published_site_lead_to_the_copy_and_to_the_source(chapter, published):
    found = links(published / "html" / "chapters" / f"{chapter.stem}.html")
    name = f"chapters/{chapter.name}"
    colab = "https://colab.research.google.com/github/Somebody/their-fork/blob"
    assert {link for link in found if "colab.research" in link} == {f"{colab}/colab/{name}"}
    assert (published / "colab" / name).is_file()
    assert f"https://github.com/Somebody/their-fork/edit/main/{name}" in found
    assert not any(urlsplit(UNPUBLISHED).path in link for link in found)


@pytest.mark.site
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.name)
def test_links_of_a_colab_copy_lead_to_pages_that_the_site_has(chapter, published):
    copy = (published / "colab" / "chapters" / chapter.name).read_text(encoding="utf-8")
    pages = re.findall(r"https://somebody\.github\.io/their-fork/([^)#\s]+)", copy)
    assert pages, "a chapter links to another page"
    assert [page for page in pages if not (published / "html" / page).is_file()] == []


@pytest.mark.site
def test_site_that_is_not_published_has_no_button_that_leads_nowhere():
    pages = sorted((ROOT / "_build" / "html").rglob("*.html"))
    assert len(pages) > len(CHAPTERS)
    dead = ("https://colab.research.google.com", UNPUBLISHED)
    assert [page for page in pages if any(link.startswith(dead) for link in links(page))] == []

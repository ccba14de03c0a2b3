"""What a reader does with the book: search, fold out, copy, download, turn the page, switch.

As in `reading`, a check gives what is wrong, so that `test_planted` can show that it sees it.
"""

import ast
import re
import subprocess
import sys
from urllib.parse import urljoin

import nbformat
import pytest
import yaml
from reading import ROOT, open_page

CONTENTS = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
ORDER = [CONTENTS["root"]]
ORDER += [chapter["file"] for part in CONTENTS["parts"] for chapter in part["chapters"]]
CHAPTERS = [name for name in ORDER if name[9].isdigit()]
HREFS = "links => links.map(link => link.href)"
MODE = "[document.documentElement.dataset.mode, document.documentElement.dataset.theme]"


def stuck_folds(page):
    """What is folded and does not open and close from the keyboard."""
    folds = page.locator("article details:visible")
    stuck = []
    for fold in folds.all():
        fold.locator("summary").first.focus()
        states = [fold.evaluate("fold => fold.open")]
        for _ in range(2):
            page.keyboard.press("Enter")
            states.append(fold.evaluate("fold => fold.open"))
        if states != [False, True, False]:
            stuck.append(fold.inner_text())
    return stuck if folds.count() else ["nothing is folded"]


def copies(page, count=3):
    """What the first copy buttons copy, beside the text of their cells."""
    for button in page.locator("button.copybtn:visible").all()[:count]:
        page.evaluate("navigator.clipboard.writeText('nothing')")
        button.click()
        page.wait_for_timeout(50)
        cell = button.locator("xpath=..").locator("pre").inner_text()
        yield page.evaluate("navigator.clipboard.readText()").strip(), cell.strip()


def wrong_copies(page):
    """Cells whose button copies something else."""
    pairs = list(copies(page))
    return [pair for pair in pairs if pair[0] != pair[1]] if pairs else ["no button"]


def copied_prompts(page):
    """What the first button copies from an example, if a prompt is left in it."""
    code, _ = next(copies(page), ("no button", ""))
    try:
        return [] if ast.parse(code).body else ["nothing"]
    except SyntaxError:
        return [code]


def unnamed_solutions(page, name):
    """Titles of folded cells that no label on the page says."""
    cells = nbformat.read(ROOT / f"{name}.ipynb", as_version=4).cells
    titles = re.findall("^# @title (.+)", "\n".join(cell.source for cell in cells), re.M)
    labels = page.locator("details.hide summary:visible").all_inner_texts()
    return [title for title in titles if title not in labels] if titles else ["no title"]


def wrong_downloads(page, name):
    """Download buttons that do not give the notebook itself, byte for byte."""
    links = page.eval_on_selector_all("a.btn-download-source-button", HREFS)
    wanted = (ROOT / f"{name}.ipynb").read_bytes()
    same = [page.request.get(link).body() == wanted for link in links]
    return [] if same == [True] else links or ["no button"]


def wrong_neighbours(page, name):
    """Links to the previous and the next page that do not follow the reading order."""
    at = ORDER.index(name)
    wanted = {"left-prev": ORDER[at - 1] if at else None}
    wanted["right-next"] = ORDER[at + 1] if at + 1 < len(ORDER) else None
    wrong = []
    for side, target in wanted.items():
        found = page.eval_on_selector_all(f".prev-next-area a.{side}", HREFS)
        if [link.endswith(f"/{target}.html") for link in found] != [True] * bool(target):
            wrong.append((side, found))
    return wrong


def missed(page, site, word, target):
    """What the search finds for a word, if the page that it stands on is not among it."""
    page.goto(f"{site}search.html?q={word}")
    page.wait_for_selector("#search-results .search-summary:has-text('found')")
    hits = page.eval_on_selector_all("#search-results li a", HREFS)
    return [] if any(f"chapters/{target}" in hit for hit in hits) else hits or ["nothing"]


def wrong_switch(page):
    """The states that the light switch goes through, if they are not the three, once each."""
    states = []
    for _ in range(4):
        states.append(tuple(page.evaluate(MODE)))
        page.locator(".theme-switch-button:visible").click()
    good = states[0] == states[3] == ("auto", "dark")
    return [] if good and set(states[1:3]) == {("dark", "dark"), ("light", "light")} else states


def forgotten_switch(page):
    """What the next page shows to a reader who has chosen light, if that is not light."""
    while page.evaluate(MODE)[0] != "light":
        page.locator(".theme-switch-button:visible").click()
    page.goto(urljoin(page.url, "notation.html"))
    state = page.evaluate(MODE)
    return [] if state == ["light", "light"] else [state]


def stuck_search_key(page):
    """Where Ctrl-K leads the keyboard, if not into the search, and that not to results."""
    page.keyboard.press("Control+K")
    focus = page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    if 'type="search"' not in focus:
        return [focus]
    page.keyboard.type("mask")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    return [] if "/search.html?q=mask" in page.url else [page.url]


def unlisted(page):
    """Pages of the contents that the front page has no link to."""
    contents = page.eval_on_selector_all(".bd-sidebar-primary .toctree-l1 > a", HREFS)
    linked = page.eval_on_selector_all("article a", HREFS)
    missing = [link for link in contents if link not in linked and not link.endswith("#")]
    return missing if len(contents) == len(ORDER) else contents


def faulty_fonts(page):
    """Fonts of a page that do not load, and a lack of fonts for its formulas."""
    page.evaluate("window.MathJax.startup.promise.then(() => document.fonts.ready).then(() => 1)")
    fonts = page.evaluate("[...document.fonts].map(font => font.family + ' ' + font.status)")
    loaded = [font for font in fonts if font.startswith("MJX") and font.endswith(" loaded")]
    return [font for font in fonts if font.endswith(" error")] + ["no font"] * (not loaded)


def stuck_menu(page):
    """The menu of a phone, if it does not open over the page, list the chapters and close."""
    chapters = page.locator(".bd-sidebar-primary .toctree-l1 > a:visible")
    counts = [chapters.count()]
    page.locator("button.primary-toggle:visible").click()
    page.wait_for_timeout(500)
    counts.append(chapters.count())
    page.keyboard.press("Escape")
    page.wait_for_timeout(500)
    counts.append(chapters.count())
    return [] if counts == [0, len(ORDER), 0] else counts


def unreadable_offline(page, folder):
    """What a page of the unpacked book lacks when a browser opens it from a file."""
    page.goto((folder / "book.html").as_uri())
    page.wait_for_url("**/book/chapters/index.html")
    page.goto((folder / "book" / "chapters" / "01_lookup.html").as_uri())
    faults = faulty_fonts(page)
    formulas, rendered = (page.locator(f".math{e}").count() for e in ("", " mjx-container"))
    return faults + [f"{rendered} of {formulas} formulas"] * (not rendered == formulas > 0)


def wrong_unpacked(folder):
    """Chapters of the unpacked package that are not those of the course, and its library, if a
    program that is run there finds another."""
    names = [f"{name}.ipynb" for name in CHAPTERS]
    wrong = [n for n in names if (folder / n).read_bytes() != (ROOT / n).read_bytes()]
    code = "import attention_lib; print(attention_lib.__file__, attention_lib.softmax([0.0, 0.0]))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    answer = (run.stdout + run.stderr).strip()
    wanted = f"{folder / 'attention_lib' / '__init__.py'} [0.5 0.5]"
    return wrong + [answer] * (answer != wanted)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_unfolds_copies_and_downloads(name, page, site):
    page.goto(f"{site}{name}.html")
    assert stuck_folds(page) == []
    assert unnamed_solutions(page, name) == []
    assert wrong_copies(page) == []
    assert wrong_downloads(page, name) == []


def test_previous_and_next_follow_the_reading_order(page, site):
    for name in ORDER:
        page.goto(f"{site}{name}.html", wait_until="domcontentloaded")
        assert wrong_neighbours(page, name) == [], name


def test_examples_of_the_front_page_are_copied_without_prompts(page, site):
    page.goto(site + "chapters/index.html")
    assert copied_prompts(page) == []


WORDS = {
    "temperature": "notation.html",
    "retrieved": "08_retrieval.html",  # text
    "assert_close": "02_single_head.html",  # code
    "soft_lookup": "api.html",  # API
    "scaled_dot_product_attention": "api.html",
    "注意力权重": "notation.html",
}


@pytest.mark.parametrize(("word", "target"), WORDS.items())
def test_search_finds(word, target, page, site):
    assert missed(page, site, word, target) == []


def test_search_opens_from_the_keyboard_and_leads_to_results(page, site):
    page.goto(site + "chapters/index.html")
    assert stuck_search_key(page) == []


def test_root_leads_to_the_front_page_and_that_to_every_page_of_the_contents(page, site):
    page.goto(site)
    page.wait_for_url("**/chapters/index.html")
    assert unlisted(page) == []


def test_light_switch_goes_round_and_is_remembered(browser, site):
    page = open_page(browser, "wide dark")
    page.goto(site + "chapters/index.html")
    assert wrong_switch(page) == []
    assert forgotten_switch(page) == []
    page.context.close()


def test_menu_of_a_phone_opens_and_closes(browser, site):
    page = open_page(browser, "phone light")
    page.goto(site + "chapters/index.html")
    assert stuck_menu(page) == []
    page.context.close()


def test_downloaded_book_opens_without_a_server(page, unpacked):
    assert unreadable_offline(page, unpacked) == []


@pytest.mark.parametrize(("word", "target"), WORDS.items())
def test_search_of_the_downloaded_book_finds(word, target, page, unpacked):
    assert missed(page, f"{(unpacked / 'book').as_uri()}/", word, target) == []


def test_downloaded_library_and_chapters_are_those_of_the_course(unpacked):
    assert wrong_unpacked(unpacked) == []

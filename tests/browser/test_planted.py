"""Every check of the book reports a defect that is planted in a page.

A check that finds nothing in a clean book proves nothing until it has found something.
"""

import shutil

import nbformat
import pytest
import reading
import test_pages
import test_use
from reading import BOOK, CHECKS, ROOT, anchors_of, dead_links, open_page, read

LOOKUP = "chapters/01_lookup.html"
END = "</article>"
MOVING = "<img alt='a word' src='../_static/logo.svg'>"
DIMMED = MOVING.replace("<img", "<img style='filter: brightness(0.8)'")
# A pixel that is never there.
MISSING = "<img alt='a word' width='1' height='1' src='../_images/none.png'>"
ASKS = "<script>fetch('https://example.org/').catch(() => 0)</script>"
LIGHT = "<script>onload = () => { document.documentElement.dataset.theme = 'light' }</script>"
ABOUT = '<meta name="description"'


def plant(page, name, old, new):
    """Let the browser get a page of the book with one passage changed."""
    html = (BOOK / name).read_text(encoding="utf-8")
    assert old in html, "the passage to change is there"
    changed = html.replace(old, new, 1)
    page.route(f"**/{name}", lambda route: route.fulfill(body=changed, content_type="text/html"))


# check, setting, old passage, new passage, in chapter 1
DEFECTS = [
    ("errors", "wide light", END, f"<script>console.error('planted')</script>{END}"),
    ("errors", "wide light", END, f"<script>nothing.at.all</script>{END}"),
    ("errors", "wide light", END, f"{MISSING}{END}"),
    ("requests_outside", "wide light", END, f"{ASKS}{END}"),
    ("unrendered_formulas", "wide light", END, f"<span class='math'>x</span>{END}"),
    ("unrendered_formulas", "wide light", r'nohighlight">\(', r'nohighlight">\(\nomacro '),
    ("raw_tex", "wide light", END, f"<p>a $x$ is left</p>{END}"),
    ("needless_mathjax", "wide light", "mathjax/tex-mml-chtml.js", "none.js"),
    ("sideways_scroll", "phone light", END, f"<p style='width: 500px'>wide</p>{END}"),
    ("wrong_number_of_searches", "wide light", "search-button__button", "none"),
    ("wrong_scheme", "wide dark", END, f"{LIGHT}{END}"),
    ("unread_images", "wide light", END, f"{MISSING}{END}"),
    ("unread_images", "wide light", END, f"{MOVING.replace('a word', 'logo.svg')}{END}"),
    ("light_boxes", "phone dark", END, f"{DIMMED}{END}"),
    ("moving_images", "wide light", END, f"{MOVING}{END}"),
    ("insecure_links", "wide light", END, f"<a href='http://example.org/'>a site</a>{END}"),
    ("wrong_description", "wide light", ABOUT, "<meta name='none'"),
    ("wrong_description", "wide light", f'{ABOUT} content="', fr'{ABOUT} content="\sqrt{{d}} '),
    ("barriers", "wide light", END, f"<button></button>{END}"),
    ("barriers", "phone dark", END, f"<p style='color: #555'>faint</p>{END}"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "setting", "old", "new"), DEFECTS)
def test_check_of_a_page_reports(check, setting, old, new, browser, site):
    page = open_page(browser, setting)
    plant(page, LOOKUP, old, new)
    visit = read(page, LOOKUP, setting, site, axe=check == "barriers")
    page.context.close()
    assert getattr(reading, check)(visit) != []


def test_check_of_the_weight_reports_a_heavy_page(page, site, monkeypatch):
    visit = read(page, LOOKUP, "wide light", site)
    assert 100_000 < visit.weight(own=True) < visit.weight(own=False)
    monkeypatch.setattr(reading, "WEIGHT", visit.weight(own=True) - 1)
    assert reading.too_heavy(visit) != []


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("nowhere.html", ("chapters/nowhere.html", "")),
        ("index.html#nowhere", ("chapters/index.html", "nowhere")),
        ("#nowhere", (LOOKUP, "nowhere")),
    ],
)
def test_check_of_links_reports_a_dead_one(link, fault, page, site):
    plant(page, LOOKUP, END, f"<a href='{link}'>a place</a>{END}")
    visits = [read(page, name, "wide light", site) for name in (LOOKUP, "chapters/index.html")]
    assert fault in map(tuple, dead_links(visits[0], anchors_of(visits)))


def test_every_check_has_a_planted_defect():
    shown = {check for check, *_ in DEFECTS} | {"too_heavy"}
    assert {check.__name__ for check in CHECKS} == shown


STUCK = "<script>addEventListener('keydown', event => event.preventDefault(), true)</script>"
COPY = "<script>addEventListener('click', event => event.stopPropagation(), true)</script>"
# before the page's own script listens
DEAF = STUCK.replace("preventDefault", "stopImmediatePropagation")
FORGETS = "<script>addEventListener('pagehide', () => localStorage.clear())</script>"
USES = [
    (test_use.stuck_folds, "wide light", END, f"{STUCK}{END}"),
    (test_use.wrong_copies, "wide light", END, f"{COPY}{END}"),
    (test_use.wrong_switch, "wide dark", END, f"{COPY}{END}"),
    (test_use.forgotten_switch, "wide dark", END, f"{FORGETS}{END}"),
    (test_use.stuck_search_key, "wide light", END, f"{DEAF}{END}"),
    (test_use.stuck_search_key, "wide light", 'action="../search.html"', 'action="index.html"'),
    (test_use.stuck_menu, "phone light", END, f"{COPY}{END}"),
]


@pytest.mark.parametrize(("check", "setting", "old", "new"), USES)
def test_check_of_what_a_reader_does_reports(check, setting, old, new, browser, site):
    page = open_page(browser, setting)
    plant(page, LOOKUP, old, new)
    page.goto(site + LOOKUP)
    assert check(page) != []
    page.context.close()


def test_check_of_the_front_page_reports_a_chapter_without_a_link(page, site):
    link = '<p><a class="reference internal" href="15_devices.html">'  # not that of the side bar
    plant(page, "chapters/index.html", link, link.replace("15_devices", "14_decoding"))
    page.goto(site + "chapters/index.html")
    assert test_use.unlisted(page) == [site + "chapters/15_devices.html"]


def test_check_of_the_fonts_reports_one_that_is_not_there(page, site):
    page.route("**/*.woff*", lambda route: route.abort())
    page.goto(site + LOOKUP)
    assert any(font.startswith("MJX") for font in test_use.faulty_fonts(page))


def test_check_of_copies_reports_prompts(page, site):
    script = (BOOK / "_static" / "copybutton.js").read_text(encoding="utf-8")
    taken_out = "', true, true, true,"  # the third: prompts are removed
    assert taken_out in script
    changed = script.replace(taken_out, "', true, true, false,")
    page.route("**/copybutton.js*", lambda route: route.fulfill(body=changed))
    page.goto(site + "chapters/index.html")
    assert test_use.copied_prompts(page)[0].startswith(">>> ")


def test_check_of_labels_reports_solutions_that_do_not_say_which_they_are(page, site):
    page.route("**/book.js*", lambda route: route.abort())
    page.goto(site + LOOKUP)
    assert "Solution 1.1" in test_use.unnamed_solutions(page, "chapters/01_lookup")


def stored_figures():
    """The number of figures that each chapter stores."""
    for name in test_use.CHAPTERS:
        cells = nbformat.read(ROOT / f"{name}.ipynb", as_version=4).cells
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        yield f"{name}.html", sum("image/png" in output.get("data", {}) for output in outputs)


def test_check_of_the_counts_reports_a_wrong_one_and_a_chapter_left_out(page, site):
    name = "chapters/checked.html"
    wrong = "<script>document.querySelector('article tbody tr').cells[3].textContent = 99</script>"
    plant(page, name, END, f"{wrong}{END}")
    page.goto(site + name)
    figures = dict(stored_figures())
    assert test_pages.wrong_counts(page, figures) == [LOOKUP]
    more = figures | {"chapters/17_more.html": 0}
    assert test_pages.wrong_counts(page, more) == [LOOKUP, "chapters/17_more.html"]


def test_check_of_the_unpacked_book_reports_fonts_that_are_not_packed(page, unpacked):
    shutil.rmtree(unpacked / "book" / "_static" / "mathjax" / "output")
    assert any(font.startswith("MJX") for font in test_use.unreadable_offline(page, unpacked))


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("attention_lib/lookup.py", "attention_lib"),
        ("chapters/05_parity.ipynb", "chapters/05_parity.ipynb"),
    ],
)
def test_check_of_the_unpacked_package_reports_another_library_and_chapter(path, fault, unpacked):
    (unpacked / path).write_text("# another\n")
    assert fault in test_use.wrong_unpacked(unpacked)[0]


def test_check_of_the_unpacked_package_reports_a_library_that_is_not_packed(unpacked):
    shutil.rmtree(unpacked / "attention_lib")
    assert len(test_use.wrong_unpacked(unpacked)) == 1


def test_check_of_downloads_reports_another_file(page, site):
    plant(page, LOOKUP, "_sources/chapters/01_lookup.ipynb", "_sources/chapters/index.md")
    page.goto(site + LOOKUP)
    assert test_use.wrong_downloads(page, "chapters/01_lookup") != []


def test_check_of_neighbours_reports_a_page_left_out(page, site):
    name = "chapters/02_single_head"
    plant(page, f"{name}.html", 'href="03_scaling.html"\n', 'href="04_multi_head.html"\n')
    page.goto(f"{site}{name}.html")
    assert [side for side, _ in test_use.wrong_neighbours(page, name)] == ["right-next"]


def test_check_of_the_search_reports_a_page_that_is_not_indexed(page, site):
    index = (BOOK / "searchindex.js").read_text(encoding="utf-8")
    index = index.replace("chapters/notation", "chapters/elsewhere")
    page.route("**/searchindex.js*", lambda route: route.fulfill(body=index))
    assert test_use.missed(page, site, "temperature", "notation.html") != []

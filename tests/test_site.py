"""The built book, read with a browser: every page, wide and narrow, light and dark.

Each page is opened once in each setting; what it shows is kept, and the tests look at that.
BOOK_HTML names another folder to read, CHROMIUM another browser.
"""

import functools
import http.server
import os
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

pytestmark = pytest.mark.site

BOOK = Path(os.environ.get("BOOK_HTML", Path(__file__).parents[1] / "_build" / "html")).resolve()
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge"]
# name: (width, height, colour scheme)
SETTINGS = {
    "wide light": (1280, 900, "light"),
    "wide dark": (1280, 900, "dark"),
    "phone": (390, 844, "light"),
}
# label-content-name-mismatch, a name that differs from what is on the screen, is off by default.
# preload would fetch style sheets again, some from places where none are.
AXE = {
    "resultTypes": ["violations"],
    "rules": {"label-content-name-mismatch": {"enabled": True}},
    "preload": False,
}

# What the reader sees, as data. `$` and `\(` are looked for outside code and rendered formulas.
LOOK = r"""async () => {
    await window.MathJax?.startup?.promise;
    const all = (selector, pick, root = document) => [...root.querySelectorAll(selector)].map(pick);
    const shown = (element) => element.checkVisibility() && element.offsetWidth > 0;
    const article = document.querySelector("article, .bd-search-container");
    const prose = article.cloneNode(true);
    const code = "pre, code, script, style, mjx-container, .sig";
    prose.querySelectorAll(code).forEach((element) => element.remove());
    const image = (element) => {
        const style = getComputedStyle(element);
        return {name: element.src, alt: element.alt, loaded: element.naturalWidth > 0,
                box: style.backgroundColor, filter: style.filter};
    };
    return {
        text: prose.textContent,
        formulas: all(".math", (e) => e).length,
        rendered: all(".math mjx-container", (e) => e).length,
        mathjax: "MathJax" in window && "startup" in window.MathJax,
        faults: all("mjx-merror, [data-mjx-error]", (e) => e.textContent),
        images: all("img", image),
        boxes: all(".cell_output .text_html", (e) => getComputedStyle(e).backgroundColor),
        links: all("a[href]", (e) => e.href),
        anchors: all("[id]", (e) => e.id),
        searches: all(".search-button__button, input[type=search]", (e) => e)
            .filter((e) => shown(e) && !article.contains(e)).length,
        excess: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        theme: document.documentElement.dataset.theme,
    };
}"""


@dataclass
class Visit:
    """One page in one setting: what the browser complained about, and what it showed."""

    page: str
    setting: str
    errors: list = field(default_factory=list)
    outside: list = field(default_factory=list)
    axe: list = field(default_factory=list)
    seen: dict = field(default_factory=dict)

    def __str__(self):
        return f"{self.page} ({self.setting})"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def site():
    """The address of the built book on a server of this machine."""
    if not (BOOK / "index.html").is_file():
        pytest.fail(f"There is no book in {BOOK}. Build it first: make book")
    handler = functools.partial(QuietHandler, directory=BOOK)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def find_browser(playwright):
    """The first browser on this machine that will do."""
    names = [os.environ.get("CHROMIUM", ""), *BROWSERS, playwright.chromium.executable_path]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            "These tests need Chromium, Chrome or Edge. Install one, or name it: "
            "CHROMIUM=/path/to/chrome make site-test"
        )
    return found


@pytest.fixture(scope="module")
def browser():
    """A browser that can reach this machine and nothing else."""
    offline = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", offline]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_browser(playwright), args=arguments
        )
        yield browser
        browser.close()


def open_page(browser, setting):
    """A fresh page of the size and the colour scheme of a setting."""
    width, height, scheme = SETTINGS[setting]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(10_000)
    return context.new_page()


def pages(setting):
    """Paths of the pages to read. Listings that Sphinx makes are read once, where space is least.

    index.html at the root only leads to the front page.
    """
    found = sorted(p.relative_to(BOOK).as_posix() for p in BOOK.rglob("*.html"))
    found = [name for name in found if name != "index.html" and not name.startswith("_static/")]
    return [name for name in found if setting == "phone" or name.startswith("chapters/")]


@pytest.fixture(scope="module")
def visits(site, browser):
    """Every page in every setting."""
    done = []
    for setting in SETTINGS:
        page = open_page(browser, setting)
        current = None

        def note(kind, text, setting=setting):
            getattr(done[-1], kind).append(text)

        def request(r):
            if not r.url.startswith((site, "data:", "blob:")):
                note("outside", r.url)

        page.on("request", request)
        page.on("pageerror", lambda error: note("errors", str(error)))
        page.on("console", lambda m: m.type == "error" and note("errors", m.text))
        for name in pages(setting):
            done.append(current := Visit(name, setting))
            page.goto(site + name, wait_until="load")
            # axe tells an icon from a word by its font
            page.evaluate("document.fonts.ready.then(() => true)")
            current.seen = page.evaluate(LOOK)
            for violation in Axe().run(page, options=AXE).response["violations"]:
                nodes = [node["html"][:200] for node in violation["nodes"]]
                current.axe.append((violation["id"], nodes))
        page.context.close()
    return done


def faults(visits, look):
    """What `look` finds wrong, with the page and the setting; an empty list is a clean book."""
    return [f"{visit}: {fault}" for visit in visits for fault in look(visit)]


def test_browser_reports_no_error(visits):
    assert faults(visits, lambda v: v.errors) == []


def test_every_page_works_offline(visits):
    assert faults(visits, lambda v: v.outside) == []


def test_every_formula_is_rendered_without_fault(visits):
    assert faults(visits, lambda v: v.seen["faults"]) == []
    unrendered = [str(v) for v in visits if v.seen["rendered"] != v.seen["formulas"]]
    assert unrendered == []
    assert any(v.seen["formulas"] for v in visits)


def test_no_raw_tex_stands_in_the_text(visits):
    marks = ("$", "\\(", "\\[", "\\begin", "{{")
    assert faults(visits, lambda v: [m for m in marks if m in v.seen["text"]]) == []


def test_only_pages_with_formulas_load_mathjax(visits):
    assert [str(v) for v in visits if v.seen["mathjax"] != (v.seen["formulas"] > 0)] == []


def test_no_page_is_wider_than_the_screen(visits):
    assert [f"{v}: {v.seen['excess']} px" for v in visits if v.seen["excess"] > 0] == []


def test_every_page_shows_one_search(visits):
    assert [f"{v}: {v.seen['searches']}" for v in visits if v.seen["searches"] != 1] == []


def test_page_follows_the_colour_scheme_of_the_system(visits):
    expected = {"wide light": "light", "wide dark": "dark", "phone": "light"}
    assert [str(v) for v in visits if v.seen["theme"] != expected[v.setting]] == []


def test_every_image_loads_and_has_a_text_alternative(visits):
    def look(visit):
        for image in visit.seen["images"]:
            alt = image["alt"].strip()
            if not image["loaded"] or not alt or alt.endswith((".png", ".svg", ".jpg")):
                yield image

    assert faults(visits, look) == []


def test_images_have_no_light_box_in_the_dark(visits):
    clear = "rgba(0, 0, 0, 0)"

    def look(visit):
        if visit.setting == "wide dark":
            yield from (box for box in visit.seen["boxes"] if box != clear)
            for image in visit.seen["images"]:
                if (image["box"], image["filter"]) != (clear, "none"):
                    yield image

    assert faults(visits, look) == []


def test_every_link_inside_the_book_leads_somewhere(visits, site):
    anchors = {v.page: {"", *v.seen["anchors"]} for v in visits}

    def look(visit):
        for link in visit.seen["links"]:
            if link.startswith(site):
                path, anchor = urldefrag(unquote(link.removeprefix(site)))
                known = anchors.get(path, {""}) if (BOOK / path).is_file() else set()
                if anchor not in known:
                    yield link.removeprefix(site)

    assert faults(visits, look) == []


def test_links_to_other_sites_are_secure(visits, site):
    allowed = (site, "https://", "mailto:")
    assert faults(visits, lambda v: [a for a in v.seen["links"] if not a.startswith(allowed)]) == []


def test_pages_are_accessible(visits):
    assert faults(visits, lambda v: v.axe) == []


def test_root_leads_to_the_front_page_and_that_to_every_page_of_the_contents(browser, site):
    page = open_page(browser, "wide light")
    page.goto(site)
    page.wait_for_url("**/chapters/index.html")
    collect = "links => links.map(a => a.getAttribute('href'))"
    contents = page.eval_on_selector_all(".bd-sidebar-primary .toctree-l1 > a", collect)
    linked = page.eval_on_selector_all("article a", collect)
    assert len(contents) >= 6
    assert [a for a in contents if a not in linked and a != "#"] == []
    page.context.close()


def test_page_on_checking_counts_what_the_chapters_show(visits, browser, site):
    page = open_page(browser, "wide light")
    page.goto(site + "chapters/checked.html")
    rows = page.locator("article tbody tr").all()
    for row in rows:
        chapter = row.locator("a").get_attribute("href")
        shown = next(v.seen["images"] for v in visits if v.page == f"chapters/{chapter}")
        figures = [image for image in shown if "/_images/" in image["name"]]
        assert row.locator("td").nth(3).inner_text() == str(len(figures))
    assert len(rows) == len(list(BOOK.glob("chapters/[0-9]*.html")))
    page.context.close()


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("temperature", "notation.html"),
        ("soft_lookup", "api.html"),
        ("scaled_dot_product_attention", "api.html"),
        ("注意力权重", "notation.html"),
    ],
)
def test_search_finds(word, target, browser, site):
    page = open_page(browser, "wide light")
    page.goto(f"{site}search.html?q={word}")
    page.wait_for_selector("#search-results .search-summary:has-text('found')")
    hits = page.eval_on_selector_all("#search-results li a", "links => links.map(a => a.href)")
    assert any(f"chapters/{target}" in hit for hit in hits)
    page.context.close()


def test_search_opens_from_the_keyboard_and_leads_to_results(browser, site):
    page = open_page(browser, "wide light")
    page.goto(site + "chapters/index.html")
    page.keyboard.press("Control+K")
    page.keyboard.type("mask")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=mask*")
    page.context.close()


def test_light_switch_goes_round_and_is_remembered(browser, site):
    page = open_page(browser, "wide dark")
    page.goto(site + "chapters/index.html")
    switch = page.locator(".theme-switch-button:visible")
    read = "[document.documentElement.dataset.mode, document.documentElement.dataset.theme]"
    states = [tuple(page.evaluate(read))]
    for _ in range(3):
        switch.click()
        states.append(tuple(page.evaluate(read)))
    assert states[0] == states[3] == ("auto", "dark")
    assert sorted(states[1:3]) == [("dark", "dark"), ("light", "light")]
    while page.evaluate(read)[0] != "light":
        switch.click()
    page.goto(site + "chapters/notation.html")
    assert page.evaluate(read) == ["light", "light"]
    page.context.close()


def test_folded_solution_says_which_it_is(browser, site):
    page = open_page(browser, "wide light")
    page.goto(site + "chapters/01_lookup.html")
    labels = page.locator("details.hide summary:visible").all_inner_texts()
    assert "Solution 1.1" in labels
    page.context.close()

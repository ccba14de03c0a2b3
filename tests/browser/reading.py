"""Read pages of the built book with a browser: what each shows, and what is wrong with it.

A check is a function of a `Visit` that gives its faults. The tests apply the checks to the book
and, so that no check is blind, to pages with a planted defect.
BOOK_HTML names another folder to read, CHROMIUM another browser.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe

ROOT = Path(__file__).parents[2]
BOOK = Path(os.environ.get("BOOK_HTML", ROOT / "_build" / "html")).resolve()
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge"]
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", OFFLINE]
# name: (width, height, colour scheme)
SETTINGS = {
    "wide light": (1280, 900, "light"),
    "wide dark": (1280, 900, "dark"),
    "phone light": (390, 844, "light"),
    "phone dark": (390, 844, "dark"),
}
# Both sizes and both schemes are among these; axe takes longer than all else together.
AXE_SETTINGS = ("wide light", "phone dark")
# label-content-name-mismatch, a name that differs from what is on the screen, is off by default.
# preload would fetch style sheets again, some from places where none are.
AXE = {
    "resultTypes": ["violations"],
    "rules": {"label-content-name-mismatch": {"enabled": True}},
    "preload": False,
}
WEIGHT = 1_000_000  # bytes that a page may add to what all pages share
CLEAR = "rgba(0, 0, 0, 0)"

# What the reader sees, as data. `$` and `\(` are looked for outside code and rendered formulas.
LOOK = r"""async () => {
    await window.MathJax?.startup?.promise;
    await document.fonts.ready;  // axe tells an icon from a word by its font
    const all = (selector, pick, root = document) => [...root.querySelectorAll(selector)].map(pick);
    const shown = (element) => element.checkVisibility() && element.offsetWidth > 0;
    const article = document.querySelector("article, .bd-search-container");
    const prose = article.cloneNode(true);
    const code = "pre, code, script, style, mjx-container, .sig";
    prose.querySelectorAll(code).forEach((element) => element.remove());
    const image = (element) => {
        const style = getComputedStyle(element);
        return {name: element.src, alt: element.alt, loaded: element.naturalWidth > 0,
                sized: style.aspectRatio !== "auto",
                box: style.backgroundColor, filter: style.filter};
    };
    const shifts = await new Promise((resolve) => {
        const observer = new PerformanceObserver((list) => resolve(list.getEntries()));
        observer.observe({type: "layout-shift", buffered: true});
        setTimeout(() => resolve([]), 50);
    });
    return {
        text: prose.textContent,
        formulas: all(".math", (e) => e).length,
        rendered: all(".math mjx-container", (e) => e).length,
        mathjax: "MathJax" in window && "startup" in window.MathJax,
        // MathJax prints a macro that it does not know in red, and calls it no error
        faults: all("mjx-merror, [data-mjx-error], mjx-container [style*='color: red']",
            (e) => e.textContent),
        images: all("img", image),
        boxes: all(".cell_output .text_html", (e) => getComputedStyle(e).backgroundColor),
        links: all("a[href]", (e) => e.href),
        anchors: all("[id]", (e) => e.id),
        searches: all(".search-button__button, input[type=search]", (e) => e)
            .filter((e) => shown(e) && !article.contains(e)).length,
        excess: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        theme: document.documentElement.dataset.theme,
        about: all("meta[name=description], meta[property='og:title']", (e) => e.content),
        paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
        shift: shifts.reduce((sum, entry) => sum + entry.value, 0),
    };
}"""


@dataclass
class Visit:
    """One page in one setting: what the browser complained about, and what it showed."""

    page: str
    setting: str
    site: str
    errors: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    axe: list = field(default_factory=list)
    seen: dict = field(default_factory=dict)

    def __str__(self):
        return f"{self.page} ({self.setting})"

    def files(self):
        """The files of the book that the browser asked for."""
        paths = {urlsplit(url).path for url in self.requests if url.startswith(self.site)}
        return [file for path in paths if (file := BOOK / unquote(path).lstrip("/")).is_file()]

    def weight(self, *, own):
        """Bytes of these files; `own`: of text and figures, without what all pages share."""
        kinds = {".html", ".png"}
        chosen = [path for path in self.files() if not own or path.suffix in kinds]
        return sum(path.stat().st_size for path in chosen)


def find_browser(playwright):
    """The first browser on this machine that will do."""
    names = [os.environ.get("CHROMIUM", ""), *BROWSERS, playwright.chromium.executable_path]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            "These tests need Chromium, Chrome or Edge. Install one, or name it: "
            "CHROMIUM=/path/to/chrome make browser"
        )
    return found


def open_page(browser, setting="wide light"):
    """A fresh page of the size and the colour scheme of a setting."""
    width, height, scheme = SETTINGS[setting]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )
    return context.new_page()


def pages(setting):
    """Paths of the pages to read. Listings that Sphinx makes are read once, where space is least.

    index.html at the root only leads to the front page.
    """
    found = sorted(p.relative_to(BOOK).as_posix() for p in BOOK.rglob("*.html"))
    found = [name for name in found if name != "index.html" and not name.startswith("_static/")]
    return [name for name in found if setting == "phone dark" or name.startswith("chapters/")]


def violations(page):
    """What axe finds: pairs of a rule and the elements that break it."""
    found = Axe().run(page, options=AXE).response["violations"]
    return [(v["id"], [node["html"][:200] for node in v["nodes"]]) for v in found]


def read(page, name, setting, site, axe=False):
    """Open a page of the book and keep what it shows."""
    visit = Visit(name, setting, site)
    listeners = {
        "request": lambda request: visit.requests.append(request.url),
        "pageerror": lambda error: visit.errors.append(str(error)),
        "console": lambda m: m.type == "error" and visit.errors.append(m.text),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(site + name, wait_until="load")
    visit.seen = page.evaluate(LOOK)
    if axe:
        visit.axe = violations(page)
        if visit.axe:  # axe takes an icon for a word while its font is late: what stays, counts
            page.wait_for_timeout(1000)
            visit.axe = [violation for violation in violations(page) if violation in visit.axe]
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    return visit


# The checks of a page: each gives what is wrong with a visit


def errors(visit):
    """The console holds an error, a failed request among them."""
    return visit.errors


def requests_outside(visit):
    """A page asks another server for something; the book must work offline."""
    return [u for u in visit.requests if not u.startswith((visit.site, "data:", "blob:"))]


def unrendered_formulas(visit):
    """A formula is not rendered, or MathJax found fault with it."""
    missing = visit.seen["formulas"] - visit.seen["rendered"]
    return visit.seen["faults"] + [f"{missing} not rendered"] * (missing != 0)


def raw_tex(visit):
    """TeX, or a substitution, stands in the text as it was typed."""
    return [m for m in ("$", "\\(", "\\[", "\\begin", "{{") if m in visit.seen["text"]]


def needless_mathjax(visit):
    """A page without a formula loads MathJax, or one with formulas does not."""
    return ["MathJax"] * (visit.seen["mathjax"] != (visit.seen["formulas"] > 0))


def sideways_scroll(visit):
    """The page is wider than the screen."""
    return [f"{visit.seen['excess']} px"] * (visit.seen["excess"] > 0)


def wrong_number_of_searches(visit):
    """There is no search field, or more than one."""
    return [visit.seen["searches"]] * (visit.seen["searches"] != 1)


def wrong_scheme(visit):
    """The page does not follow the colour scheme of the system."""
    return [visit.seen["theme"]] * (visit.seen["theme"] != visit.setting.split()[1])


def unread_images(visit):
    """An image does not load, or has no text alternative but its file name."""
    names = (".png", ".svg", ".jpg")
    texts = [(i, i["alt"].strip()) for i in visit.seen["images"]]
    return [i for i, alt in texts if not i["loaded"] or not alt or alt.endswith(names)]


def light_boxes(visit):
    """An image or a table stands on a light box, or is dimmed, in the dark."""
    if not visit.setting.endswith("dark"):
        return []
    images = [i for i in visit.seen["images"] if (i["box"], i["filter"]) != (CLEAR, "none")]
    return images + [box for box in visit.seen["boxes"] if box != CLEAR]


def moving_images(visit):
    """An image has no size before it is there, so text moves when it comes."""
    return [i["name"] for i in visit.seen["images"] if not i["sized"]]


def too_heavy(visit):
    """The page's own files are over the limit."""
    weight = visit.weight(own=True)
    return [f"{weight} bytes"] * (weight > WEIGHT)


def insecure_links(visit):
    """A link leads to another site without encryption."""
    allowed = (visit.site, "https://", "mailto:")
    return [link for link in visit.seen["links"] if not link.startswith(allowed)]


def wrong_description(visit):
    """A page that the authors wrote says nothing of itself to who shares a link to it, or TeX."""
    said = len(visit.seen["about"]) == 2 and len(max(visit.seen["about"], key=len)) > 40
    said = said and not any(mark in "".join(visit.seen["about"]) for mark in ("\\", "$"))
    return [visit.seen["about"]] * (visit.page.startswith("chapters/") and not said)


def barriers(visit):
    """The axe engine finds something that shuts out readers."""
    return visit.axe


def dead_links(visit, anchors):
    """A link inside the book leads to no page, or to no place on it; `anchors` of every page."""
    links = [link for link in visit.seen["links"] if link.startswith(visit.site)]
    parts = [urldefrag(unquote(link.removeprefix(visit.site))) for link in links]
    return [p for p in parts if not (BOOK / p[0]).is_file() or p[1] not in anchors.get(p[0], {""})]


def anchors_of(visits):
    """The places that a link can lead to, for every page that was read."""
    return {visit.page: {"", *visit.seen["anchors"]} for visit in visits}


CHECKS = [
    errors,
    requests_outside,
    unrendered_formulas,
    raw_tex,
    needless_mathjax,
    sideways_scroll,
    wrong_number_of_searches,
    wrong_scheme,
    unread_images,
    light_boxes,
    moving_images,
    too_heavy,
    insecure_links,
    wrong_description,
    barriers,
]

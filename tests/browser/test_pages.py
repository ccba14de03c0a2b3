"""Every page of the built book, wide and narrow, light and dark; `make browser` prints a table."""

from itertools import groupby

import pytest
from reading import BOOK, CHECKS, anchors_of, dead_links

COLUMNS = [
    "own kB",
    "all kB",
    "requests",
    "first paint ms",
    "layout shift",
    "console errors",
    "axe",
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_no_page_has(check, visits):
    assert [f"{visit}: {fault}" for visit in visits for fault in check(visit)] == []


def test_every_link_inside_the_book_leads_somewhere(visits):
    anchors = anchors_of(visits)
    assert [f"{v}: {fault}" for v in visits for fault in dead_links(v, anchors)] == []


def test_the_pages_read_hold_what_is_checked(visits):
    for kind in ("formulas", "images", "links", "about"):
        assert any(visit.seen[kind] for visit in visits), kind
    assert len({visit.page for visit in visits}) > len(list(BOOK.glob("chapters/*.html")))


def row(page, visits):
    """A line of the table: sums of what is counted, the worst of what is measured."""
    return [
        page,
        f"{max(v.weight(own=True) for v in visits) / 1000:.0f}",
        f"{max(v.weight(own=False) for v in visits) / 1000:.0f}",
        max(len(v.requests) for v in visits),
        f"{max(v.seen['paint'] for v in visits):.0f}",
        f"{max(v.seen['shift'] for v in visits):.3f}",
        sum(len(v.errors) for v in visits),
        sum(len(v.axe) for v in visits),
    ]


def test_table_has_a_row_for_every_page(visits, record_property):
    ordered = sorted(visits, key=lambda visit: visit.page)
    rows = [row(page, list(group)) for page, group in groupby(ordered, key=lambda v: v.page)]
    width = max(len(cells[0]) for cells in rows)
    lines = ["", f"{'page':<{width}}  {'  '.join(COLUMNS)}"]
    for name, *cells in rows:
        pairs = zip(COLUMNS, cells, strict=True)
        lines.append(f"{name:<{width}}  " + "  ".join(f"{c:>{len(h)}}" for h, c in pairs))
    record_property("table", "\n".join(lines))
    assert len(rows) == len({visit.page for visit in visits})


def wrong_counts(page, figures):
    """Chapters whose number of figures the page on checking gives wrongly, or not at all.

    `figures` is the number that each page shows.
    """
    given = {}
    for line in page.locator("article table").first.locator("tbody tr").all():
        chapter = f"chapters/{line.locator('a').get_attribute('href')}"
        given[chapter] = line.locator("td").nth(3).inner_text()
    wanted = {page: str(count) for page, count in figures.items()}
    return sorted(dict(given.items() ^ wanted.items()))


def test_page_on_checking_counts_what_the_chapters_show(visits, page, site):
    chapters = {path.relative_to(BOOK).as_posix() for path in BOOK.glob("chapters/[0-9]*.html")}
    figures = {
        visit.page: sum("/_images/" in image["name"] for image in visit.seen["images"])
        for visit in visits
        if visit.page in chapters
    }
    page.goto(site + "chapters/checked.html")
    assert wrong_counts(page, figures) == []

"""The built book on a server, the browser that reads it, and every page as it was read."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from reading import (
    ARGUMENTS,
    AXE_SETTINGS,
    BOOK,
    ROOT,
    SETTINGS,
    find_browser,
    open_page,
    pages,
    read,
)

from tools import download


def pytest_collection_modifyitems(items):
    """All of this needs the built book and a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.site)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def site():
    """The address of the built book on a server of this machine."""
    if not (BOOK / "index.html").is_file():
        pytest.fail(f"There is no book in {BOOK}. Build it first: make book")
    handler = functools.partial(QuietHandler, directory=BOOK)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    """A browser that can reach this machine and nothing else."""
    with sync_playwright() as playwright:
        path = find_browser(playwright)
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A fresh wide page."""
    page = open_page(browser)
    yield page
    page.context.close()


@pytest.fixture(scope="session")
def visits(site, browser):
    """Every page in every setting."""
    done = []
    for setting in SETTINGS:
        page = open_page(browser, setting)
        for name in pages(setting):
            done.append(read(page, name, setting, site, axe=setting in AXE_SETTINGS))
        page.context.close()
    return done


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """The zip for reading offline."""
    path = tmp_path_factory.mktemp("download") / "course.zip"
    download.write_zip(ROOT, BOOK, path)
    return path


@pytest.fixture
def unpacked(package, tmp_path):
    """The folder that is in the zip, unpacked anew for each test."""
    shutil.unpack_archive(package, tmp_path)
    return tmp_path / "attention-course"

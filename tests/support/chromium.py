"""A Chromium for tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser; skip the test where there is none. While it lives, its event loop is the
    thread's."""
    if not CHROMIUM.exists():
        pytest.skip("no /usr/bin/chromium: the page was not seen in a browser")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=SWITCHES)
        yield started
        started.close()


UNFOLD = "document.querySelectorAll('.fold').forEach((fold) => { fold.open = true; })"
"""Script that opens every part of a page."""
NOT_DRAWN = '[...document.querySelectorAll(".live")].filter((e) => e.hidden).map((e) => e.id)'
"""Script that returns the pictures that no script has drawn."""


def assert_drawn_alone(browser: Browser, path: Path) -> None:
    """Unfold a page and scroll to every figure. Fail if one is not drawn, if a script reports
    anything, or if anything but the page itself is asked for."""
    page, wrong = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text))
    page.on("request", lambda asked: wrong.append(asked.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
    page.evaluate(UNFOLD)
    for figure in page.locator("figure").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".live .main-svg").first.wait_for(state="visible", timeout=20_000)
    assert page.evaluate(NOT_DRAWN) == []
    assert wrong == [path.as_uri()]

"""A Chromium for tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, FloatRect, Locator, Page, sync_playwright

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


@contextmanager
def opened(
    browser: Browser,
    path: Path,
    width: int = 1280,
    *,
    scheme: Literal["light", "dark"] = "light",
    unfolded: bool = False,
    scrolled: bool = False,
    ready: bool = True,
    script: str = "",
    **context: Any,
) -> Iterator[Page]:
    """Open a page, with every section and past every figure if asked for; `ready`: once its own
    scripts have run, after `script`. Fail if a script reports anything, or if anything but the page
    itself is asked for."""
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        reduced_motion="reduce",
        **context,
    )
    wrong = list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text))
    page.on("request", lambda asked: wrong.append(asked.url))
    page.add_init_script(script)
    page.goto(path.as_uri())
    if ready:
        page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
    if unfolded or scrolled:
        page.evaluate(UNFOLD)
    for figure in page.locator("figure").all() if scrolled else ():
        figure.scroll_into_view_if_needed()
        figure.locator(".live .main-svg").first.wait_for(state="visible", timeout=20_000)
    yield page
    assert set(wrong) == {path.as_uri()}
    page.close()


def assert_drawn_alone(browser: Browser, path: Path) -> None:
    """Fail if a figure of a page is not drawn, or if it asks for anything."""
    with opened(browser, path, scrolled=True) as page:
        assert page.evaluate(NOT_DRAWN) == []


def box_of(place: Locator) -> FloatRect:
    """Return where an element lies, which must be visible."""
    box = place.bounding_box()
    assert box is not None
    return box

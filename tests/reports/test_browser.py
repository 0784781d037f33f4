"""The page in a real browser: pictures are drawn, nothing fails, nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from support.analyses import PAIR, analysis_of, pair
from support.runs import Spec

from driftscope_reports.html import to_html

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
PICTURES = 2 + 4 + 2 + 2
"""Acceptance, hidden state, attention of two runs, confidence."""

LINES_BY_PICTURE = """[...document.querySelectorAll(".picture")].map(
    (picture) => picture.querySelectorAll(".scatterlayer .trace").length)"""
WIDER_THAN_THEIR_PLACE = """[...document.querySelectorAll(".picture")].filter((picture) => {
    const drawn = picture.querySelector(".main-svg").getBoundingClientRect();
    return drawn.width > picture.clientWidth + 1;
}).length"""
TICK_COLOUR = "getComputedStyle(document.querySelector('.picture .xtick text')).fill"

pytestmark = pytest.mark.skipif(
    not CHROMIUM.exists(), reason="no /usr/bin/chromium: the report was not seen in a browser"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=SWITCHES)
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(to_html(pair(path.parent)), encoding="utf-8")
    return path


def _open(browser: Browser, report: Path, *, width: int, scheme: str) -> tuple[Page, list[str]]:
    """The drawn page, and everything that went wrong or was asked for on the way."""
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("console", lambda line: wrong.append(f"console: {line.text}"))
    page.on("request", lambda asked: wrong.append(f"request: {asked.url}"))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=20_000)
    page.wait_for_timeout(200)
    return page, [entry for entry in wrong if entry != f"request: {report.as_uri()}"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_draws_at_every_size(browser: Browser, report: Path, width: int, scheme: str) -> None:
    page, wrong = _open(browser, report, width=width, scheme=scheme)
    assert wrong == []
    drawn = page.evaluate(LINES_BY_PICTURE)
    assert len(drawn) == PICTURES
    assert min(drawn) >= 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "eagle3 drifts" in page.locator("h1").inner_text()
    page.close()


def test_pictures_follow_the_colour_scheme(browser: Browser, report: Path) -> None:
    page, _ = _open(browser, report, width=1000, scheme="light")
    light = page.evaluate(TICK_COLOUR)
    page.emulate_media(color_scheme="dark")
    _becomes(page, lambda colour: colour != light)
    page.emulate_media(media="print")
    _becomes(page, lambda colour: colour == light)
    page.close()


def test_pictures_fit_the_paper(browser: Browser, report: Path) -> None:
    """One column on this screen, two on paper, and no resize in between."""
    page, _ = _open(browser, report, width=780, scheme="dark")
    page.emulate_media(media="print")
    page.wait_for_timeout(300)
    assert page.evaluate(WIDER_THAN_THEIR_PLACE) == 0
    page.close()


def _becomes(page: Page, wanted: Callable[[str], bool]) -> None:
    """Wait until the ticks have such a colour; polled, as the page's policy forbids eval."""
    for _ in range(100):
        if wanted(page.evaluate(TICK_COLOUR)):
            return
        page.wait_for_timeout(50)
    raise AssertionError("the pictures kept their colours")


def test_the_same_numbers_open_as_a_table(browser: Browser, report: Path) -> None:
    page, _ = _open(browser, report, width=1000, scheme="light")
    table = page.locator("#acceptance table")
    assert not table.is_visible()
    page.locator("#acceptance summary").first.click()
    assert table.is_visible()
    page.close()


def test_without_javascript_verdict_and_tables_are_there(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("h1").is_visible()
    assert page.locator("#fallback table").is_visible()
    assert page.locator("#acceptance noscript").first.inner_text()
    context.close()


def test_hostile_names_run_nothing(browser: Browser, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=document.title='boom'><a href=javascript:boom()>x"
    specs = {name: Spec(labels=(name,)), "other": PAIR["eagle3.1"]}
    path = tmp_path / "report.html"
    path.write_text(to_html(analysis_of(tmp_path, specs)), encoding="utf-8")
    page, wrong = _open(browser, path, width=1000, scheme="light")
    assert wrong == []
    assert page.title() != "boom"
    assert page.locator("img, .picture a, main a").count() == 0
    page.close()

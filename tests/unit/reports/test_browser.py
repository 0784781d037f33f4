"""The page in a real browser: pictures are drawn, nothing fails, nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from support.analyses import PAIR, analysis_of, pair, with_texts
from support.chromium import NOT_DRAWN, UNFOLD
from support.runs import Spec

from driftscope.pipeline import Analysis, Inputs, analyze
from driftscope_reports.html import sections, to_html

HOSTILE = "</script><img src=x onerror=document.title='boom'><a href=javascript:boom()>x"

HEIGHT = "document.documentElement.scrollHeight"
EMPTY = """[...document.querySelectorAll("figure")].filter((figure) => !figure.querySelector(
    ".live .trace, .live .point, .live .bars path")).map((figure) => figure.id)"""
TICK_COLOUR = "getComputedStyle(document.querySelector('.live .xtick text')).fill"
CURSORS = """[...document.querySelectorAll('.drawing[data-axis="depth"]')].map(
    (drawing) => drawing.querySelector(".cursor:not([hidden])")?.dataset.word ?? null)"""
MARKED = """[...document.querySelectorAll("#acceptance-marginal tbody tr.at")].map(
    (row) => row.textContent).join(" ")"""
SCROLLS = """[...document.querySelectorAll("body *")].filter((e) => {
    if (e.closest("code, svg, .hidden") || !e.checkVisibility()) return false;
    const { overflowX: x, overflowY: y } = getComputedStyle(e);
    return (x !== "visible" && e.scrollWidth > e.clientWidth + 1)
        || (y !== "visible" && e.scrollHeight > e.clientHeight + 1);
}).map((e) => `${e.tagName}.${e.className} in ${e.closest("section")?.id}`)"""
"""Elements but code of which a part is out of sight, or behind scroll bars."""


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def report(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(to_html(analysis), encoding="utf-8")
    return path


def _open(browser: Browser, report: Path, width: int = 1280, scheme: str = "light") -> Page:
    """The page; what goes wrong or is asked for on the way is in `page.wrong`."""
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("console", lambda line: wrong.append(f"console: {line.text}"))
    page.on(
        "request",
        lambda asked: None if asked.url == report.as_uri() else wrong.append(f"asked {asked.url}"),
    )
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
    page.wrong = wrong  # type: ignore[attr-defined]
    return page


def _unfolded(page: Page) -> Page:
    """With every section open, as a reader opens them one by one."""
    page.evaluate(UNFOLD)
    return page


def _scrolled(page: Page) -> Page:
    """Past every picture, so that each is drawn."""
    page = _unfolded(page)
    for figure in page.locator("figure").all():
        figure.scroll_into_view_if_needed()
        _becomes(page, lambda f=figure: f.locator(".live").is_visible())  # type: ignore[misc]
    return page


def _becomes(page: Page, holds: Callable[[], bool]) -> None:
    """Polled from here, as the page's policy forbids eval."""
    for _ in range(200):
        if holds():
            return
        page.wait_for_timeout(25)
    raise AssertionError("it never happened")


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_draws_at_every_size(browser: Browser, report: Path, width: int, scheme: str) -> None:
    page = _scrolled(_open(browser, report, width, scheme))
    assert page.wrong == []  # type: ignore[attr-defined]
    assert page.evaluate(NOT_DRAWN) == []
    assert page.evaluate(EMPTY) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        "eagle3.1: it cannot be told whether acceptance is worse" in page.locator("h1").inner_text()
    )
    page.close()


def test_every_section_is_there(browser: Browser, report: Path, analysis: Analysis) -> None:
    page = _open(browser, report)
    for section in sections(analysis):
        assert page.locator(f"#{section.id} > details > summary h2").is_visible()
        content = page.locator(f"#{section.id} > details > .content")
        assert not content.is_visible()
        page.locator(f"nav a[href='#{section.id}']").click()
        _becomes(page, lambda name=section.id: page.url.endswith(f"#{name}"))  # type: ignore[misc]
        _becomes(page, content.is_visible)
    assert page.wrong == []  # type: ignore[attr-defined]
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Browser, report: Path, scheme: str) -> None:
    page = browser.new_page(
        viewport={"width": 1280, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=True,  # for axe itself
    )
    page.goto(report.as_uri())
    _unfolded(page).locator("#drift figure").first.scroll_into_view_if_needed()
    page.locator("#drift .live .main-svg").first.wait_for(state="visible")
    for summary in page.locator("#acceptance-marginal summary, #findings .pop summary").all():
        summary.click()
    page.locator("button.open").first.click()
    found = Axe().run(page).response["violations"]
    faults = [
        (fault["id"], fault["impact"], [node["html"][:120] for node in fault["nodes"][:3]])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
    assert faults == []
    page.close()


def test_a_depth_is_marked_everywhere_by_pointer_and_keyboard(
    browser: Browser, report: Path, analysis: Analysis
) -> None:
    page = _scrolled(_open(browser, report))
    picture = page.locator("#acceptance-marginal")
    picture.scroll_into_view_if_needed()
    box = picture.locator(".live .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.36 * box["width"], box["y"] + 0.5 * box["height"])
    _becomes(page, lambda: page.evaluate(CURSORS)[0] is not None)
    assert set(page.evaluate(CURSORS)) == {"2"}
    assert len(page.evaluate(CURSORS)) > 8
    page.mouse.move(2, 2)
    _becomes(page, lambda: set(page.evaluate(CURSORS)) == {None})
    drawing = picture.locator(".drawing")
    drawing.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert set(page.evaluate(CURSORS)) == {"3"}
    rates = [f"{run.acceptance.marginal[2]:.3f}" for run in analysis.runs]
    assert all(rate in page.evaluate(MARKED) for rate in rates)
    said = page.locator("#said").inner_text()
    assert "depth 3" in said
    assert f"eagle3 {rates[0]}" in said
    page.keyboard.press("End")
    assert set(page.evaluate(CURSORS)) == {"4"}
    page.keyboard.press("Escape")
    assert set(page.evaluate(CURSORS)) == {None}
    page.close()


def test_pictures_follow_the_colour_scheme(browser: Browser, report: Path) -> None:
    page = _scrolled(_open(browser, report))
    light = page.evaluate(TICK_COLOUR)
    page.emulate_media(color_scheme="dark")
    _becomes(page, lambda: page.evaluate(TICK_COLOUR) != light)
    page.emulate_media(color_scheme="light")
    _becomes(page, lambda: page.evaluate(TICK_COLOUR) == light)
    assert page.wrong == []  # type: ignore[attr-defined]
    page.close()


def test_paper_gets_everything_unfolded_with_numbers_in_place_of_pictures(
    browser: Browser, report: Path, tmp_path: Path
) -> None:
    page = _open(browser, report, 780, "dark")
    page.locator(".verdict .live .main-svg").first.wait_for(state="visible")
    page.emulate_media(media="print")
    for figure in page.locator("figure").all():
        assert figure.locator("table").is_visible()
        assert figure.locator(".how .panel").is_visible()
        assert not figure.locator(".drawing").is_visible()
    assert page.locator("#findings .finding").first.is_visible(), "folded sections are printed open"
    assert page.locator("#provenance table").is_visible()
    body = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert body == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    page.close()


def test_the_same_numbers_open_as_a_table(browser: Browser, report: Path) -> None:
    page = _open(browser, report)
    table = page.locator("#acceptance-marginal table")
    assert not table.is_visible()
    page.locator("#acceptance-marginal summary", has_text="Numbers").click()
    _becomes(page, table.is_visible)
    drawing = page.locator("#acceptance-marginal .drawing").bounding_box()
    page.locator("#acceptance-marginal summary", has_text="Definition").click()
    _becomes(page, lambda: not table.is_visible())
    panel = page.locator("#acceptance-marginal .pop[open] .panel").bounding_box()
    assert drawing and panel
    assert panel["y"] >= drawing["y"] + drawing["height"], "it opens below the picture"
    page.keyboard.press("Escape")
    _becomes(page, lambda: page.locator("#acceptance-marginal .pop[open]").count() == 0)
    page.close()


def test_a_link_opens_the_report_at_a_picture(browser: Browser, report: Path) -> None:
    page = _open(browser, report)
    page.goto(f"{report.as_uri()}#acceptance-conditional")
    _becomes(page, page.locator("#acceptance-conditional").is_visible)
    _becomes(page, lambda: page.evaluate("window.scrollY") > 300)
    place = page.locator("#acceptance-conditional").bounding_box()
    assert place is not None
    assert -10 <= place["y"] < 900
    page.close()


def test_one_request_opens(browser: Browser, report: Path, analysis: Analysis) -> None:
    closeup = analysis.runs[0].closeup
    assert closeup is not None
    opened = closeup.opened[0]
    page = _unfolded(_open(browser, report))
    button = page.get_by_role("button", name=opened.request, exact=True).first
    button.focus()
    page.keyboard.press("Enter")
    story = page.locator("#opened")
    assert opened.request in story.locator("h3").inner_text()
    strips = story.locator(".strips svg")
    assert strips.count() == 1 + len(opened.masses) + 1
    titles = strips.first.locator("title").all_text_contents()
    assert sum("accepted" in t for t in titles) == sum(opened.accepted)
    assert len(titles) == sum(opened.verified) + 4 * opened.verified.count(0)
    assert page.wrong == []  # type: ignore[attr-defined]
    page.keyboard.press("Enter")
    assert story.count() == 0
    page.close()


def test_requests_are_searched_and_sorted(browser: Browser, report: Path) -> None:
    page = _unfolded(_open(browser, report))
    rows = page.locator("#request-table tbody tr")
    page.locator("#search").fill("plain-text")
    shown = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < rows.count()
    assert page.locator("#found").inner_text() == f"{len(shown)} found"
    page.locator("#search").fill("")
    head = page.locator("#request-table thead th", has_text="tokens per round")
    head.locator("button").click()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    lengths = [float(text) for text in rows.locator("td:nth-child(4)").all_text_contents()]
    assert lengths == sorted(lengths, reverse=True)
    assert sum(row.is_visible() for row in rows.all()) == 20, "a page of rows"
    page.get_by_role("button", name=f"Show all {rows.count()} rows").click()
    assert all(row.is_visible() for row in rows.all())
    page.close()


def test_without_javascript_everything_but_the_drill_down_is_there(
    browser: Browser, report: Path
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("h1").is_visible()
    assert not page.locator("button.copy").first.is_visible()
    assert not page.locator("#fallback table").last.is_visible()
    for summary in page.locator(".fold > summary").all():
        summary.click()
    assert page.locator("#fallback table").last.is_visible()
    assert page.locator("#request-table code").first.is_visible()
    assert not page.locator("#search").is_visible()
    for figure in page.locator("figure").all():
        assert figure.locator("table").is_visible()
        assert not figure.locator(".drawing").is_visible()
    context.close()


def test_the_first_screen_has_its_picture_at_once_and_folded_ones_wait(
    browser: Browser, report: Path, analysis: Analysis
) -> None:
    page = _open(browser, report)
    picture = page.locator(".verdict .live .main-svg").first
    picture.wait_for(state="visible")
    box = picture.bounding_box()
    assert box is not None
    assert box["height"] > 200
    assert box["y"] + box["height"] <= 900
    assert page.locator(".verdict .live .trace").count() == len(analysis.runs)
    assert page.locator(".main-svg").count() == page.locator(".verdict .main-svg").count()
    page.close()


def test_a_browser_that_cannot_unpack_shows_the_numbers(browser: Browser, report: Path) -> None:
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(report.as_uri())
    assert page.locator("figure table").first.is_visible()
    assert not page.locator(".drawing").first.is_visible()
    assert wrong == []
    page.close()


def test_depths_stand_at_one_place_in_every_picture(browser: Browser, report: Path) -> None:
    """In every picture over depth of a section, live as drawn, each depth has the same x."""
    page = _unfolded(_open(browser, report))
    drawn = page.locator("#drift .pictures .drawing[data-axis='depth']")
    for chart in drawn.all():
        chart.scroll_into_view_if_needed()
        _becomes(page, chart.locator(".live").is_visible)
    drawn.first.focus()
    page.keyboard.press("ArrowRight")
    places = set()
    for chart in drawn.all():
        box, cursor = chart.bounding_box(), chart.locator(".cursor").bounding_box()
        assert box is not None
        assert cursor is not None
        places.add(round((cursor["x"] - box["x"]) / 3))
    assert len(places) == 1
    page.close()


def test_differences_are_told_apart_without_colour(browser: Browser, tmp_path: Path) -> None:
    better = Spec(conditional=(0.9, 0.9, 0.9, 0.9), drafter="other")
    report = tmp_path / "report.html"
    report.write_text(to_html(analysis_of(tmp_path, {"one": Spec(), "other": better})))
    page = _unfolded(_open(browser, report))
    assert "differs" in page.locator("#compare table[data-sortable]").inner_text()
    assert page.locator("#compare-acceptance .legend li svg path").count() > 0
    page.close()


GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "traces"


def test_changes_over_time_are_drawn(browser: Browser, tmp_path: Path) -> None:
    """A server whose acceptance falls at a moment, beside one where it stays."""
    path = tmp_path / "report.html"
    paths = [GALLERY / name for name in ("server", "healthy")]
    made = analyze(Inputs(sources=paths, labels=["a", "b"]))
    path.write_text(to_html(made), encoding="utf-8")
    page = _scrolled(_open(browser, path))
    assert page.wrong == []  # type: ignore[attr-defined]
    assert page.evaluate(SCROLLS) == []
    changes = made.runs[0].changes
    assert changes is not None
    (point,) = changes.points
    words = f"{point.before:.2f} → {point.after:.2f}"
    over_time = page.locator("#where-changes")
    assert words in (over_time.locator(".live .annotation").text_content() or "")
    assert f"falls from {point.before:.2f} to {point.after:.2f}" in over_time.inner_text()
    for name in ("batch", "temperature", "structured"):
        assert page.locator(f"#where-{name} .live .bars path").count() > 1
    page.close()


def test_hostile_names_run_nothing(browser: Browser, tmp_path: Path) -> None:
    specs = {HOSTILE: Spec(labels=(HOSTILE,), undrafted=(HOSTILE,)), "other": PAIR["eagle3.1"]}
    path = tmp_path / "report.html"
    path.write_text(to_html(analysis_of(tmp_path, specs)), encoding="utf-8")
    page = _scrolled(_open(browser, path))
    page.locator("button.open").first.click()
    assert page.wrong == []  # type: ignore[attr-defined]
    assert page.title() != "boom"
    assert page.locator("img").count() == 0
    assert page.locator("a:not([href^='#'])").count() == 0
    page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_an_opened_request_shows_its_texts(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    made = analyze(with_texts(tmp_path, "Once", f"\n  upon{HOSTILE}", "x" * 5_000, prompt=HOSTILE))
    path.write_text(to_html(made), encoding="utf-8")
    page = _unfolded(_open(browser, path, width))
    page.locator("button.open").first.click()
    prompt, answer = page.locator("#opened .kept").all()
    assert not prompt.is_visible()
    page.locator("#opened summary").click()
    assert prompt.is_visible() and prompt.text_content() == HOSTILE
    pieces = answer.locator("span")
    assert pieces.all_text_contents()[:2] == ["Once", f"\n  upon{HOSTILE}"]
    assert "more characters]" in (pieces.last.text_content() or "")
    closeup = made.runs[0].closeup
    assert closeup is not None
    first = closeup.opened[0].accepted[0]
    assert pieces.nth(1).get_attribute("title") == f"round 1, {first} of 4 accepted"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(SCROLLS) == []
    assert page.wrong == [] and page.title() != "boom"  # type: ignore[attr-defined]
    page.close()


LIMITS = ((1280, 1800), (390, 3400))
"""Width of a window, and the largest height of a folded page in it."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the gallery's two drafters, like the one that the demo writes."""
    folder = tmp_path_factory.mktemp("compared")
    sources = [GALLERY / name for name in ("drifting", "healthy")]
    path = folder / "report.html"
    made = analyze(Inputs(sources=sources, labels=["eagle3", "eagle3.1"]))
    path.write_text(to_html(made, command="driftscope analyze a b"), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "highest"), LIMITS)
def test_a_folded_page_takes_two_screens_and_four_on_a_phone(
    browser: Browser, report: Path, compared: Path, width: int, highest: int
) -> None:
    for path in (report, compared):
        page = _open(browser, path, width)
        assert page.evaluate(HEIGHT) <= highest
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        headline = page.locator("h1").bounding_box()
        assert headline is not None
        assert headline["y"] < 300
        page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_but_code_scrolls_inside_the_page(
    browser: Browser, report: Path, compared: Path, width: int
) -> None:
    """With every section, the numbers of every picture and one request open."""
    for path in (report, compared):
        page = _scrolled(_open(browser, path, width))
        page.evaluate("document.querySelectorAll('.numbers').forEach((e) => { e.open = true; })")
        page.locator("button.open").first.click()
        assert page.locator("#opened svg").first.is_visible()
        assert page.evaluate(SCROLLS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()


def test_the_picture_of_attention_by_depth_takes_the_width_of_its_section(
    browser: Browser, compared: Path
) -> None:
    page = _unfolded(_open(browser, compared))
    boxes = [page.locator(f"#attention-{run} .drawing").bounding_box() for run in (0, 1)]
    first, second = boxes
    assert first and second
    assert second["x"] + second["width"] - first["x"] > 1180
    assert first["y"] == second["y"]
    assert first["height"] > 400
    page.close()


def test_the_story_and_what_to_do_stand_on_the_first_screen(
    browser: Browser, compared: Path
) -> None:
    page = _open(browser, compared)
    for part in (".state", "h1", ".cause", ".figures", "#acceptance-marginal .drawing", "#do li"):
        box = page.locator(part).first.bounding_box()
        assert box is not None, part
        assert box["y"] + box["height"] <= 900, part
    page.close()


def test_a_term_is_explained_where_it_stands(browser: Browser, report: Path) -> None:
    page = _open(browser, report)
    term = page.locator(".figures .term").nth(1)
    tip = page.locator(f"#{term.get_attribute('aria-describedby')}")
    assert not tip.is_visible()
    term.focus()
    assert tip.is_visible(), "the keyboard is enough"
    assert "accepted" in tip.inner_text()
    page.close()


def test_a_command_is_copied(browser: Browser, tmp_path: Path) -> None:
    sources = [GALLERY / name for name in ("drifting", "healthy")]
    path = tmp_path / "report.html"
    command = "driftscope analyze 'a b' --since 1s -o report.html"
    path.write_text(to_html(analyze(Inputs(sources=sources, labels=["a", "b"])), command=command))
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
    _unfolded(page)
    page.locator("#provenance button.copy").click()
    _becomes(page, lambda: page.locator("#said").inner_text() == "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == command
    context.close()

"""The page in a real browser: pictures are drawn, nothing fails, nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from support.analyses import PAIR, analysis_of, with_texts
from support.chromium import NOT_DRAWN, box_of, opened
from support.runs import Spec

from driftscope.pipeline import Analysis, Inputs, analyze
from driftscope_reports.html import sections, to_html

GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "traces"
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
def report(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _written(tmp_path_factory.mktemp("report"), analysis)


def _written(folder: Path, analysis: Analysis, command: str = "") -> Path:
    path = folder / "report.html"
    path.write_text(to_html(analysis, command=command), encoding="utf-8")
    return path


def _of_gallery(*names: str, labels: tuple[str, str] = ("a", "b")) -> Analysis:
    return analyze(Inputs(sources=[GALLERY / name for name in names], labels=labels))


def _becomes(page: Page, holds: Callable[[], bool]) -> None:
    """Polled from here, as the page's policy forbids eval."""
    for _ in range(200):
        if holds():
            return
        page.wait_for_timeout(25)
    raise AssertionError("it never happened")


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_draws_at_every_size(browser: Browser, report: Path, width: int, scheme: Any) -> None:
    with opened(browser, report, width, scheme=scheme, scrolled=True) as page:
        assert page.evaluate(NOT_DRAWN) == []
        assert page.evaluate(EMPTY) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert (
            "eagle3.1: it cannot be told whether acceptance is worse"
            in page.locator("h1").inner_text()
        )


def test_every_section_is_there(browser: Browser, report: Path, analysis: Analysis) -> None:
    with opened(browser, report) as page:
        for section in sections(analysis):
            assert page.locator(f"#{section.id} > details > summary h2").is_visible()
            content = page.locator(f"#{section.id} > details > .content")
            assert not content.is_visible()
            page.locator(f"nav a[href='#{section.id}']").click()
            _becomes(page, lambda name=section.id: page.url.endswith(f"#{name}"))  # type: ignore[misc]
            _becomes(page, content.is_visible)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Browser, report: Path, scheme: Any) -> None:
    # Axe itself breaks the page's policy.
    with opened(browser, report, scheme=scheme, unfolded=True, bypass_csp=True) as page:
        page.locator("#drift figure").first.scroll_into_view_if_needed()
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


def test_a_depth_is_marked_everywhere_by_pointer_and_keyboard(
    browser: Browser, report: Path, analysis: Analysis
) -> None:
    with opened(browser, report, scrolled=True) as page:
        picture = page.locator("#acceptance-marginal")
        picture.scroll_into_view_if_needed()
        box = box_of(picture.locator(".live .nsewdrag").first)
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


def test_pictures_follow_the_colour_scheme(browser: Browser, report: Path) -> None:
    with opened(browser, report, scrolled=True) as page:
        light = page.evaluate(TICK_COLOUR)
        page.emulate_media(color_scheme="dark")
        _becomes(page, lambda: page.evaluate(TICK_COLOUR) != light)
        page.emulate_media(color_scheme="light")
        _becomes(page, lambda: page.evaluate(TICK_COLOUR) == light)


def test_paper_gets_everything_unfolded_with_numbers_in_place_of_pictures(
    browser: Browser, report: Path, tmp_path: Path
) -> None:
    with opened(browser, report, 780, scheme="dark") as page:
        page.locator(".verdict .live .main-svg").first.wait_for(state="visible")
        page.emulate_media(media="print")
        for figure in page.locator("figure").all():
            assert figure.locator("table").is_visible()
            assert figure.locator(".how .panel").is_visible()
            assert not figure.locator(".drawing").is_visible()
        assert page.locator("#findings .finding").first.is_visible(), (
            "folded sections are printed open"
        )
        assert page.locator("#provenance table").is_visible()
        body = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert body == "rgb(255, 255, 255)"
        page.emulate_media(media="screen")
        page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_the_same_numbers_open_as_a_table(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        table = page.locator("#acceptance-marginal table")
        assert not table.is_visible()
        page.locator("#acceptance-marginal summary", has_text="Numbers").click()
        _becomes(page, table.is_visible)
        drawing = box_of(page.locator("#acceptance-marginal .drawing"))
        page.locator("#acceptance-marginal summary", has_text="Definition").click()
        _becomes(page, lambda: not table.is_visible())
        panel = box_of(page.locator("#acceptance-marginal .pop[open] .panel"))
        assert panel["y"] >= drawing["y"] + drawing["height"], "it opens below the picture"
        page.keyboard.press("Escape")
        _becomes(page, lambda: page.locator("#acceptance-marginal .pop[open]").count() == 0)


def test_a_link_opens_the_report_at_a_picture(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        page.goto(f"{report.as_uri()}#acceptance-conditional")
        _becomes(page, page.locator("#acceptance-conditional").is_visible)
        _becomes(page, lambda: page.evaluate("window.scrollY") > 300)
        assert -10 <= box_of(page.locator("#acceptance-conditional"))["y"] < 900


def test_one_request_opens(browser: Browser, report: Path, analysis: Analysis) -> None:
    closeup = analysis.runs[0].closeup
    assert closeup is not None
    first = closeup.opened[0]
    with opened(browser, report, unfolded=True) as page:
        button = page.get_by_role("button", name=first.request, exact=True).first
        button.focus()
        page.keyboard.press("Enter")
        story = page.locator("#opened")
        assert first.request in story.locator("h3").inner_text()
        strips = story.locator(".strips svg")
        assert strips.count() == 1 + len(first.masses) + 1
        titles = strips.first.locator("title").all_text_contents()
        assert sum("accepted" in t for t in titles) == sum(first.accepted)
        assert len(titles) == sum(first.verified) + 4 * first.verified.count(0)
        page.keyboard.press("Enter")
        assert story.count() == 0


def test_requests_are_searched_and_sorted(browser: Browser, report: Path) -> None:
    with opened(browser, report, unfolded=True) as page:
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


def test_without_javascript_everything_but_the_drill_down_is_there(
    browser: Browser, report: Path
) -> None:
    with opened(browser, report, ready=False, java_script_enabled=False) as page:
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


def test_the_first_screen_has_its_picture_at_once_and_folded_ones_wait(
    browser: Browser, report: Path, analysis: Analysis
) -> None:
    with opened(browser, report) as page:
        picture = page.locator(".verdict .live .main-svg").first
        picture.wait_for(state="visible")
        box = box_of(picture)
        assert box["height"] > 200
        assert box["y"] + box["height"] <= 900
        assert page.locator(".verdict .live .trace").count() == len(analysis.runs)
        assert page.locator(".main-svg").count() == page.locator(".verdict .main-svg").count()


def test_a_browser_that_cannot_unpack_shows_the_numbers(browser: Browser, report: Path) -> None:
    script = "delete window.DecompressionStream"
    with opened(browser, report, ready=False, script=script) as page:
        assert page.locator("figure table").first.is_visible()
        assert not page.locator(".drawing").first.is_visible()


def test_depths_stand_at_one_place_in_every_picture(browser: Browser, report: Path) -> None:
    """In every picture over depth of a section, live as drawn, each depth has the same x."""
    with opened(browser, report, unfolded=True) as page:
        drawn = page.locator("#drift .pictures .drawing[data-axis='depth']")
        for chart in drawn.all():
            chart.scroll_into_view_if_needed()
            _becomes(page, chart.locator(".live").is_visible)
        drawn.first.focus()
        page.keyboard.press("ArrowRight")
        places = set()
        for chart in drawn.all():
            box, cursor = box_of(chart), box_of(chart.locator(".cursor"))
            places.add(round((cursor["x"] - box["x"]) / 3))
        assert len(places) == 1


def test_differences_are_told_apart_without_colour(browser: Browser, tmp_path: Path) -> None:
    better = Spec(conditional=(0.9, 0.9, 0.9, 0.9), drafter="other")
    report = _written(tmp_path, analysis_of(tmp_path, {"one": Spec(), "other": better}))
    with opened(browser, report, unfolded=True) as page:
        assert "differs" in page.locator("#compare table[data-sortable]").inner_text()
        assert page.locator("#compare-acceptance .legend li svg path").count() > 0


def test_changes_over_time_are_drawn(browser: Browser, tmp_path: Path) -> None:
    """A server whose acceptance falls at a moment, beside one where it stays."""
    made = _of_gallery("server", "healthy")
    with opened(browser, _written(tmp_path, made), scrolled=True) as page:
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


def test_hostile_names_run_nothing(browser: Browser, tmp_path: Path) -> None:
    specs = {HOSTILE: Spec(labels=(HOSTILE,), undrafted=(HOSTILE,)), "other": PAIR["eagle3.1"]}
    with opened(browser, _written(tmp_path, analysis_of(tmp_path, specs)), scrolled=True) as page:
        page.locator("button.open").first.click()
        assert page.title() != "boom"
        assert page.locator("img").count() == 0
        assert page.locator("a:not([href^='#'])").count() == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_an_opened_request_shows_its_texts(browser: Browser, tmp_path: Path, width: int) -> None:
    made = analyze(with_texts(tmp_path, "Once", f"\n  upon{HOSTILE}", "x" * 5_000, prompt=HOSTILE))
    with opened(browser, _written(tmp_path, made), width, unfolded=True) as page:
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
        assert page.title() != "boom"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the gallery's two drafters, like the one that the demo writes."""
    made = _of_gallery("drifting", "healthy", labels=("eagle3", "eagle3.1"))
    return _written(tmp_path_factory.mktemp("compared"), made, "driftscope analyze a b")


@pytest.mark.parametrize(("width", "highest"), [(1280, 1800), (390, 3400)])
def test_a_folded_page_takes_two_screens_and_four_on_a_phone(
    browser: Browser, report: Path, compared: Path, width: int, highest: int
) -> None:
    for path in (report, compared):
        with opened(browser, path, width) as page:
            assert page.evaluate(HEIGHT) <= highest
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert box_of(page.locator("h1"))["y"] < 300


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_but_code_scrolls_inside_the_page(
    browser: Browser, report: Path, compared: Path, width: int
) -> None:
    """With every section, the numbers of every picture and one request open."""
    for path in (report, compared):
        with opened(browser, path, width, scrolled=True) as page:
            page.evaluate(
                "document.querySelectorAll('.numbers').forEach((e) => { e.open = true; })"
            )
            page.locator("button.open").first.click()
            assert page.locator("#opened svg").first.is_visible()
            assert page.evaluate(SCROLLS) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_picture_of_attention_by_depth_takes_the_width_of_its_section(
    browser: Browser, compared: Path
) -> None:
    with opened(browser, compared, unfolded=True) as page:
        first, second = (box_of(page.locator(f"#attention-{run} .drawing")) for run in (0, 1))
        assert second["x"] + second["width"] - first["x"] > 1180
        assert first["y"] == second["y"]
        assert first["height"] > 400


def test_the_story_and_what_to_do_stand_on_the_first_screen(
    browser: Browser, compared: Path
) -> None:
    with opened(browser, compared) as page:
        for part in (
            ".state",
            "h1",
            ".cause",
            ".figures",
            "#acceptance-marginal .drawing",
            "#do li",
        ):
            box = box_of(page.locator(part).first)
            assert box["y"] + box["height"] <= 900, part


def test_a_term_is_explained_where_it_stands(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        term = page.locator(".figures .term").nth(1)
        tip = page.locator(f"#{term.get_attribute('aria-describedby')}")
        assert not tip.is_visible()
        term.focus()
        assert tip.is_visible(), "the keyboard is enough"
        assert "accepted" in tip.inner_text()


def test_a_command_is_copied(browser: Browser, tmp_path: Path) -> None:
    command = "driftscope analyze 'a b' --since 1s -o report.html"
    path = _written(tmp_path, _of_gallery("drifting", "healthy"), command)
    clipboard = ["clipboard-read", "clipboard-write"]
    with opened(browser, path, unfolded=True, permissions=clipboard) as page:
        page.locator("#provenance button.copy").click()
        _becomes(page, lambda: page.locator("#said").inner_text() == "Copied")
        assert page.evaluate("navigator.clipboard.readText()") == command

"""Write the pictures of reports in docs, first screens and opened sections: `python -m
support.first_screens` from the folder tests.

SmolLM2's runs are recorded; the others are simulated, as those of the gallery, so that the pictures
show what they are named for.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser
from support.analyses import client_row, write_replay
from support.chromium import chromium, opened
from support.gallery import DRIFTING, HEALTHY, SERVER, TRACES
from support.simulate.write import simulate

from driftscope.analysis.query.row_filters import Filter
from driftscope.pipeline import EVERYTHING, Inputs, analyze
from driftscope_reports.html import to_html

DOCS = Path(__file__).parents[2] / "docs"
WIDTH = 1280
_COLOURS = 64
"""Colours of a picture: enough for text and two lines, and a quarter of the bytes."""
_ASKED = ("as asked", "system prompt", "no template")


def real(_folder: Path) -> Inputs:
    """Return SmolLM2-135M with each of its drafters, and without."""
    return Inputs(
        sources=[TRACES / "smollm2-eagle3", TRACES / "smollm2-eagle3.1"],
        labels=["EAGLE-3", "EAGLE-3.1"],
        baseline=TRACES / "smollm2-without",
    )


def two_runs(folder: Path) -> Inputs:
    """Return a drafter that drifts, and one that does not, on the same prompts."""
    better = replace(DRIFTING, conditional=HEALTHY.conditional, drafter="eagle3.1-8b")
    better = replace(better, norm_output=True, growth=0.98, self_last=0.2, sink=(0.3, 0.27))
    runs = [simulate(folder / "old", DRIFTING), simulate(folder / "new", better)]
    return Inputs(sources=runs, labels=["eagle3", "eagle3.1"])


def one_run(folder: Path) -> Inputs:
    """Return a healthy run beside one without speculation."""
    run = simulate(folder / "run", replace(HEALTHY, requests=160))
    return Inputs(
        sources=[run],
        labels=["run"],
        baseline=simulate(folder / "without", replace(HEALTHY, requests=160, k_zero_above=0)),
    )


def part(folder: Path) -> Inputs:
    """Return the end of a server's run."""
    run = simulate(folder / "server", SERVER)
    return Inputs(sources=[run], labels=["server"], only=Filter(since="3s"))


def dead(folder: Path) -> Inputs:
    """Return a drafter of which nothing is accepted."""
    run = simulate(folder / "dead", replace(HEALTHY, conditional=(0.0,) * 7))
    return Inputs(sources=[run], labels=["run"], only=EVERYTHING)


def too_little(folder: Path) -> Inputs:
    """Return a run of three requests."""
    return Inputs(sources=[simulate(folder / "run", replace(HEALTHY, requests=3))], labels=["run"])


def replay(folder: Path) -> Inputs:
    """Return a replay of the same prompts, asked in three ways."""
    rows = [
        client_row(
            n,
            pair=f"p{n % 40}",
            condition=_ASKED[n // 40],
            accepted=[max(0, 3 - n // 40 - (n + turn) % 3) for turn in range(8)],
            verified=[4] * 8,
        )
        for n in range(120)
    ]
    return Inputs(sources=[write_replay(folder / "asked", rows)], labels=["asked"])


SCREENS: dict[str, Callable[[Path], Inputs]] = {
    "real": real,
    "two-runs": two_runs,
    "one-run": one_run,
    "part": part,
    "replay": replay,
    "dead": dead,
    "too-little": too_little,
}


SECTIONS = {"drift": "real", "compare": "real", "fallback": "part"}
"""Sections that are drawn open, each as wide as its page, with the state of their report."""


def section(browser: Browser, page: Path, name: str) -> bytes:
    """Return an opened section of a page with every picture drawn, as a small PNG."""
    with opened(browser, page, WIDTH) as shown:
        part = shown.locator(f"#{name}")
        part.locator(".fold > summary").click()
        shown.evaluate("document.querySelector('header').style.position = 'static'")
        for figure in part.locator("figure").all():
            figure.scroll_into_view_if_needed()
            figure.locator(".live .main-svg").first.wait_for(state="visible")
        return few_colours(part.screenshot())


def picture(browser: Browser, page: Path) -> bytes:
    """Return the first screen of a page as a small PNG."""
    with opened(browser, page, WIDTH) as shown:
        shown.locator(".verdict .live .main-svg, .verdict:not(:has(figure))").first.wait_for()
        return few_colours(shown.screenshot())


def few_colours(screenshot: bytes) -> bytes:
    """Return a PNG with fewer colours, of a quarter of the bytes."""
    out, seen = io.BytesIO(), Image.open(io.BytesIO(screenshot)).convert("RGB")
    seen.quantize(_COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def write(docs: Path = DOCS) -> list[Path]:
    """Write every picture below `docs`, and the first screen of the real model as `report.png`;
    return them."""
    written = []
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        for state, made in SCREENS.items():
            folder = Path(name) / state
            page = folder / "report.html"
            analysis = analyze(made(folder))
            folder.mkdir(exist_ok=True)
            page.write_text(to_html(analysis), encoding="utf-8")
            path = docs / "pictures" / f"first-screen-{state}.png"
            if state == "real":
                path = docs / "report.png"
            path.write_bytes(picture(browser, page))
            written.append(path)
            for part_of, drawn in SECTIONS.items():
                if drawn == state:
                    written.append(docs / "pictures" / f"section-{part_of}.png")
                    written[-1].write_bytes(section(browser, page, part_of))
    return written


if __name__ == "__main__":
    for file in write():
        print(f"{file}: {file.stat().st_size:,} bytes")

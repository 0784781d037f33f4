"""Measure a report's size and the time to its first picture: headless Chromium, from file://.

Opens pages of runs of several sizes in turn, each time in a separate browser profile. The first
picture is the one on the first screen, timed in the frame after the one that paints it.

    PYTHONPATH=tests python benchmarks/report.py [--rounds 1e5 1e6 1e7] [--repeats 9] [--json FILE]

The runs take a minute or two and 1.3 GB of disk to make.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.results_file import ResultsFile

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from driftscope.pipeline import Analysis

GALLERY = Path(__file__).resolve().parents[1] / "reports" / "gallery" / "traces"
CHROMIUM = "/usr/bin/chromium"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WITHIN_S = 1.0
"""Goal for the time to the first picture, in seconds, on two cores."""
MOST_BYTES = 2_000_000
WATCH = """
const found = () => {
  const picture = document.querySelector("main .live .main-svg");
  if (picture && picture.getBoundingClientRect().height > 0)
    requestAnimationFrame(() => requestAnimationFrame(() => {
      window.firstPicture = performance.now();
    }));
  else requestAnimationFrame(found);
};
requestAnimationFrame(found);
"""
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def pages(folder: Path, rounds: list[int]) -> dict[str, Path]:
    """Return the pages by name."""
    from driftscope_reports.html import to_html

    analyses: dict[str, Callable[[], Analysis]] = {
        "719 rounds": lambda: _analysed([GALLERY / "drifting"]),
        "two runs": lambda: _analysed([GALLERY / "drifting", GALLERY / "healthy"]),
        **{f"{n:,} rounds": partial(_simulated, folder, n) for n in rounds},
        "six runs of K = 16, 60 labels, 32 heads": lambda: _six(folder),
    }
    out = {name: folder / f"{name.replace(' ', '-')}.html" for name in analyses}
    for name, path in out.items():
        path.write_text(to_html(analyses[name]()), encoding="utf-8")
    return out


def _simulated(folder: Path, rounds: int) -> Analysis:
    from support.simulate import Prompts, Truth, simulate

    kinds = (Prompts(label="chat", shift=0.5), Prompts(label="code", tokens=(1000, 4000)))
    truth = Truth(requests=rounds // 100, rounds=100, prompts=kinds, batches=(1, 4, 16))
    run = folder / f"{rounds}"
    return _analysed([simulate(run, truth, zstd_level=1)])


def _six(folder: Path) -> Analysis:
    from support.runs import Spec, write_run

    from driftscope.pipeline import conclude

    wide = Spec(
        k=16,
        conditional=(0.9,) * 16,
        requests=40,
        rounds=50,
        layers=2,
        heads=16,
        labels=tuple(f"label {i}" for i in range(60)),
    )
    run = folder / "wide"
    one = _analysed([write_run(run, wide)]).runs[0]
    return conclude([replace(one, label=f"run {i}") for i in range(6)])


def _analysed(paths: list[Path]) -> Analysis:
    from driftscope.analysis.query.record_views import open_run
    from driftscope.pipeline import conclude, summarise

    return conclude([summarise(open_run(path), path.name) for path in paths])


def opened(browser: Browser, page: Path) -> dict[str, float]:
    """Return the times in seconds from the start of navigation."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.add_init_script(WATCH)
    tab.goto(page.as_uri())
    tab.wait_for_function("() => window.firstPicture", polling=20)
    found = {
        "painted_s": tab.evaluate(PAINTED) / 1000,
        "picture_s": tab.evaluate("() => window.firstPicture") / 1000,
    }
    context.close()
    return found


def show(rows: list[dict[str, Any]]) -> None:
    """Print the median (minimum to maximum) of each time."""
    print(f"{'page of':<42}{'bytes':>11}{'first paint, ms':>20}{'first picture, ms':>20}")
    for row in rows:
        times = "".join(f"{_spread(row[name]):>20}" for name in ("painted_s", "picture_s"))
        print(f"{row['page']:<42}{row['bytes']:>11,}{times}")


def _spread(seconds: list[float]) -> str:
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{1000 * middle:.0f} ({1000 * low:.0f}-{1000 * high:.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", nargs="+", type=float, default=[1e5, 1e6, 1e7])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        paths = pages(Path(folder).resolve(), [int(number) for number in wanted.rounds])
        found: dict[str, list[dict[str, float]]] = {name: [] for name in paths}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        version = browser.version
        for _ in range(wanted.repeats):
            for name, path in paths.items():
                found[name].append(opened(browser, path))
        browser.close()
        rows = [
            {
                "page": name,
                "bytes": path.stat().st_size,
                **{key: [row[key] for row in found[name]] for key in found[name][0]},
            }
            for name, path in paths.items()
        ]
    show(rows)
    slowest = max(statistics.median(row["picture_s"]) for row in rows)
    largest = max(row["bytes"] for row in rows)
    verdict = (
        f"first picture after at most {1000 * slowest:.0f} ms in the median of "
        f"{wanted.repeats}, pages of at most {largest:,} bytes"
    )
    print(verdict)
    ok = slowest < WITHIN_S and largest <= MOST_BYTES
    ResultsFile(wanted.json, "cpu", again=True).write(
        complete=True, ok=ok, verdict=verdict, chromium=version, rows=rows
    )
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())

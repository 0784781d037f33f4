"""Conclusions that `driftscope demo` must show of the shipped drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LABELS = ("eagle3", "eagle3.1")
GROWS, STEADY = 1.5, 1.2
"""Bounds of the fed RMS at depth 8 over depth 1: `make phenomenon` prints 2.3 and 1.0."""
KEPT = 0.8
"""Most of the sink's attention that EAGLE-3 keeps at depth 8."""
PARTS_AFTER = 3
"""Depth up to which the drafters accept alike; with fewer prompts it may be larger."""


def assert_shows_the_finding(report: dict[str, Any], folder: Path) -> None:
    """Assert that the report in `folder`, given as its JSON document too, says where the drafters
    part and why."""
    runs = {run["label"]: run for run in report["runs"]}
    assert tuple(runs) == LABELS
    fed = {label: run["hidden"]["fed_rms"] for label, run in runs.items()}
    assert fed["eagle3"][7] / fed["eagle3"][0] > GROWS
    assert fed["eagle3.1"][7] / fed["eagle3.1"][0] < STEADY
    (parting,) = [f for f in report["findings"] if f["id"] == "runs_part"]
    assert parting["evidence"]["depth"] - 1 >= PARTS_AFTER
    sink = {label: run["attention"]["sink_mass"] for label, run in runs.items()}
    assert sink["eagle3"][7] / sink["eagle3"][0] < KEPT < sink["eagle3.1"][7] / sink["eagle3.1"][0]
    headline = report["first_screen"]["headline"]
    assert "speculation" in headline and "× as fast as without" in headline, "does it pay, first"
    page = (folder / "report.html").read_text()
    assert "This target has no attention sink" not in page

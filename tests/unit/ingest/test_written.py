"""Files that the tools themselves wrote here (tests/unit/ingest/written) agree about one server."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftscope.ingest.base import Figures
from driftscope.ingest.catalogue import ingest
from driftscope.ingest.prometheus import ingest_window

WRITTEN = Path(__file__).parent / "written"
VLLM = WRITTEN / "vllm-0.32"


def _counts(figures: Figures) -> tuple[int | None, ...]:
    return figures.k, figures.rounds, figures.verified, figures.accepted


def _one(path: Path, reader: str) -> Figures:
    found, (figures,) = ingest(path)
    assert found.name == reader and figures.contradictions == ()
    return figures


def test_vllms_log_is_its_page() -> None:
    log, page = _one(VLLM / "server.log", "server-log"), _one(VLLM / "after.prom", "prometheus")
    assert _counts(log) == _counts(page) == (4, 621, 2484, 131)
    assert log.marginal == pytest.approx(page.marginal, abs=0.001)


def test_what_vllms_bench_prints_is_what_it_saves() -> None:
    printed, saved = (_one(VLLM / f"bench.{end}", "vllm-bench") for end in ("txt", "json"))
    assert _counts(printed) == _counts(saved) == (4, 540, 2160, 25)
    assert printed.marginal == pytest.approx(saved.marginal, abs=1e-4)
    assert printed.tpot_s == pytest.approx(saved.tpot_s, abs=1e-5)


def test_vllms_requests_and_bench_are_the_window_of_its_pages() -> None:
    """Three responses, one stream and the bench are all that it served between the two pages."""
    parts = [
        _one(VLLM / "responses.jsonl", "vllm-requests"),
        _one(VLLM / "stream.txt", "vllm-requests"),
        _one(VLLM / "bench.json", "vllm-bench"),
    ]
    _, (window,) = ingest_window(VLLM / "before.prom", VLLM / "after.prom")
    for name in ("rounds", "verified", "accepted"):
        assert sum(getattr(part, name) for part in parts) == getattr(window, name)

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


def test_what_aiperf_writes_agrees_with_the_responses() -> None:
    """Six requests, answered by the three responses twice."""
    folder, (responses,) = WRITTEN / "aiperf-0.13", ingest(VLLM / "responses.jsonl")[1]
    records = _one(folder / "profile_export.jsonl", "aiperf-records")
    summary = _one(folder / "profile_export_aiperf.json", "aiperf-summary")
    printed = _one(folder / "profile_export_console.txt", "aiperf-summary")
    assert _counts(records)[1:] == _counts(summary)[1:] == (122, 488, 150)
    assert records.rounds == 2 * (responses.rounds or 0) and records.k == 4
    assert records.marginal == pytest.approx(summary.marginal)
    assert printed.mean_length == pytest.approx(summary.mean_length, abs=0.005)


def test_guidellms_report_has_its_requests() -> None:
    found = _one(WRITTEN / "guidellm-0.8" / "benchmarks.json", "guidellm")
    assert (found.requests, found.k, found.rounds) == (6, 4, 184)
    assert found.mean_length_interval is not None and found.mean_length_interval.low >= 1.0
    assert found.ttft_s is not None and found.tpot_s is not None


def test_guidellms_console_and_csv_have_the_times_of_each_benchmark() -> None:
    folder = WRITTEN / "guidellm-0.8"
    console, table = (ingest(folder / name)[1] for name in ("console.txt", "benchmarks.csv"))
    assert [one.part for one in console] == ["concurrent@1", "concurrent@2"]
    for printed, saved in zip(console, table, strict=True):
        assert (printed.part, printed.requests) == (saved.part, saved.requests)
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s"):
            assert getattr(printed, name) == pytest.approx(getattr(saved, name), rel=0.03)


def test_what_sglangs_bench_prints_is_what_it_saves() -> None:
    folder = WRITTEN / "sglang-0.5.23"
    printed, saved = (_one(folder / f"bench.{end}", "sglang-bench") for end in ("txt", "jsonl"))
    assert (saved.k, saved.requests, printed.requests) == (5, 8, 8)
    for name in ("mean_length", "ttft_s", "tpot_s", "output_tokens_per_s"):
        assert getattr(printed, name) == pytest.approx(getattr(saved, name), rel=0.01)


def test_sglangs_log_has_the_rounds_of_its_page_and_the_requests_of_its_answers() -> None:
    """The server's own warm-up is in the log and on the page, and not in the answers."""
    folder = WRITTEN / "sglang-0.5.23"
    log = _one(folder / "server.log", "server-log")
    answers = _one(folder / "responses.jsonl", "sglang-requests")
    page = _one(folder / "page.prom", "prometheus")
    assert log.rounds == page.rounds == 106 and page.k == 5
    assert (answers.rounds, answers.verified) == (101, 505)
    warm_up = (log.rounds or 0) - 101, (log.accepted or 0) - (answers.accepted or 0)
    assert warm_up == (5, 3)
    # The gauge is of the end of the last answer, after which nothing ran.
    assert page.mean_length == 1.0 and "no request is running now" in page.observations[0]

"""Progress and outcome of the search for the fastest K."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from driftscope.cli.best_k import SearchBars, search_progress, why_it_ended
from driftscope.workloads.suites.plan import Level


def test_bars_show_the_run_and_the_requests_of_this_run_only() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    row: Any = SimpleNamespace(ended="answered", accepted=[1, 2], warmup=False)
    shot: Any = SimpleNamespace(level=Level(concurrency=2))
    with Progress(TextColumn("{task.fields[figures]}"), console=console) as progress:
        bars = SearchBars(progress, 8)
        for number, k in enumerate((8, 3), start=1):
            bars.serving(number, k)
            bars.planned([shot, shot])
            bars.ended(shot, row)
        runs, requests = progress.tasks
    assert (runs.completed, runs.total) == (1, 8)
    assert runs.fields["figures"] == "runs at most; K = 3: it is asked"
    assert (requests.completed, requests.total) == (1, 2)
    assert "2.50 tokens/round" in requests.fields["figures"]


def test_without_a_terminal_it_is_a_line_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        with search_progress(8, quiet=quiet) as listener:
            listener.serving(2, 3)
    assert capsys.readouterr().err == "run 2: serving with K = 3\n"


@pytest.mark.parametrize(
    ("next_k", "runs", "words"),
    [
        (None, 4, "settled after 4 runs"),
        (3, 8, "ended after 8 runs, and it is not settled; give --most-runs for more"),
        (3, 1, "stopped after 1 run, and it is not settled"),
    ],
)
def test_the_end_is_explained(next_k: int | None, runs: int, words: str) -> None:
    advice: Any = SimpleNamespace(choice=SimpleNamespace(next=next_k), useless=False)
    assert why_it_ended(advice, runs, 8) == words

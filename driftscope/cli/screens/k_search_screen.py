"""Progress and outcome of the search for the fastest K."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from driftscope.analysis.advice import Advice, answer
from driftscope.analysis.number_words import between, count, milliseconds, number
from driftscope.cli.screens.replay_output import Bar, say
from driftscope.trace.format.records import ClientRow
from driftscope.workloads.bench import Found, Listener
from driftscope.workloads.suites.plan import Shot


class SearchLines(Listener):
    """Progress as lines on stderr."""

    def serving(self, number: int, k: int) -> None:
        """Print which K is served."""
        say(f"run {number}: serving with K = {k}")


class SearchBars(Listener):
    """Progress as two bars: the runs, and the requests of the run."""

    def __init__(self, progress: Progress, most_runs: int) -> None:
        self._progress, self._most = progress, most_runs
        self._runs = progress.add_task("", total=most_runs, figures="")
        self._requests: Bar | None = None

    def serving(self, number: int, k: int) -> None:
        """Show which K is served, and that the server starts."""
        for task in self._progress.task_ids:
            if task != self._runs:
                self._progress.remove_task(task)
        words = f"runs at most; K = {k}: the server starts"
        self._progress.update(self._runs, completed=number - 1, figures=words)
        self._k = k

    def planned(self, shots: Sequence[Shot]) -> None:
        """Start the bar of the requests."""
        self._progress.update(self._runs, figures=f"runs at most; K = {self._k}: it is asked")
        self._requests = Bar(self._progress)
        self._requests.planned(shots)

    def ended(self, shot: Shot, row: ClientRow) -> None:
        """Advance the bar of the requests."""
        if self._requests is not None:
            self._requests.ended(shot, row)


@contextlib.contextmanager
def search_progress(most_runs: int, *, quiet: bool) -> Iterator[Listener]:
    """Yield bars on a terminal, lines elsewhere, and nothing if `quiet`."""
    console = Console(stderr=True)
    if quiet:
        yield Listener()
        return
    if not console.is_terminal:
        yield SearchLines()
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield SearchBars(progress, most_runs)


def say_found(found: Found) -> None:
    """Print the figures of one run and what is known now, on stderr."""
    advice, times = found.advice, found.advice.overall.tpot_s
    measured = times[found.k] if found.k < len(times) else None
    if measured is not None:
        spread = measured.interval
        ends = (
            ""
            if spread is None
            else (
                f" ({milliseconds(spread.low).removesuffix(' ms')} to {milliseconds(spread.high)})"
            )
        )
        say(f"K = {found.k}: {milliseconds(measured.value)} per token{ends}{_length(found)}")
    say(f"so far: {answer(advice)}")


def _length(found: Found) -> str:
    acceptance = getattr(found.summary, "acceptance", None)
    if acceptance is None:
        return ""
    spread = between(acceptance.mean_length_interval)
    return f", {number(acceptance.mean_length)} tokens per round{spread}"


def why_it_ended(advice: Advice, runs: int, most_runs: int) -> str:
    """Return why a search is over."""
    after = f"after {count(runs, 'run')}"
    if advice.choice.next is None or advice.useless:
        return f"settled {after}"
    if runs == most_runs:
        return f"ended {after}, and it is not settled; give --most-runs for more"
    return f"stopped {after}, and it is not settled"

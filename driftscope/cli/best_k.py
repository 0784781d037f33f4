"""Progress and outcome of the search for the fastest K."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from driftscope.analysis.advice import Advice, answer
from driftscope.analysis.number_words import between, count, milliseconds, number
from driftscope.cli.screens.replay import Bar, say
from driftscope.errors import EXIT_INTERRUPTED, EXIT_OK, DriftscopeError
from driftscope.json_report import advice_to_json
from driftscope.trace.records import ClientRow
from driftscope.workloads.client.replay import Order
from driftscope.workloads.contenders import Contender, Found, Listener, search
from driftscope.workloads.suites.plan import Shot
from driftscope_reports.terminal import show_advice


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search that the user asked for."""

    contender: Contender
    order: Order
    folder: Path
    start: int
    most_runs: int


def find_best_k(asked: Search, *, as_json: bool, quiet: bool) -> int:
    """Search, print the advice, and return the exit code. What was measured is printed as well if
    the search fails or the user stops it. Raises DriftscopeError."""
    found: list[Found] = []
    failed: DriftscopeError | SystemExit | None = None
    stopped = True
    with search_progress(asked.most_runs, quiet=quiet) as listener:
        try:
            for tried in search(
                asked.contender,
                asked.order,
                asked.folder,
                start=asked.start,
                most_runs=asked.most_runs,
                listener=listener,
            ):
                found.append(tried)
                if not quiet:
                    say_found(tried)
            stopped = _unsettled(found, asked)
        except KeyboardInterrupt:
            stopped = True
        except DriftscopeError as error:
            failed, stopped = error, False
        except SystemExit as asked_to_end:
            failed, stopped = asked_to_end, True
    _tell(found, asked, as_json=as_json, quiet=quiet, stopped=stopped)
    if failed is not None:
        raise failed
    return EXIT_INTERRUPTED if stopped else EXIT_OK


def _unsettled(found: Sequence[Found], asked: Search) -> bool:
    """Whether a search that ended without an error was stopped by the user."""
    if not found:
        return True
    following = found[-1].advice.choice.next
    open_end = following is not None and not found[-1].advice.useless
    return open_end and len(found) < asked.most_runs


def _tell(
    found: Sequence[Found], asked: Search, *, as_json: bool, quiet: bool, stopped: bool
) -> None:
    if not found:
        return
    advice, runs = found[-1].advice, [_row(tried) for tried in found]
    if as_json:
        sys.stdout.write(advice_to_json(advice, runs=runs, stopped=stopped))
    else:
        show_advice(advice)
    if not quiet:
        say(why_it_ended(advice, len(found), asked.most_runs))
        paths = " ".join(f"'{tried.result.server}'" for tried in found)
        say(f"written: {asked.folder}")
        say(f"next: driftscope analyze {paths}")


def _row(found: Found) -> dict[str, Any]:
    return {"k": found.k, "run": str(found.result.server), "client": str(found.result.client)}

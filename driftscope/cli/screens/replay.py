"""Screen output of a replay, of a comparison of two replays, and of `driftscope pays`."""

from __future__ import annotations

import contextlib
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from driftscope.analysis.comparability import Claim
from driftscope.analysis.number_words import between, listed, milliseconds, number
from driftscope.analysis.replays import BOUNDS, SPAN, ReplaySummary, is_replay
from driftscope.analysis.speed import THROUGHPUT, TPOT, TTFT, WHOLE, Speed, SpeedAtLoad
from driftscope.boundary.json_document import REPLAY, text
from driftscope.boundary.text import output_console, shown
from driftscope.cli import run_reports
from driftscope.errors import (
    EXIT_ERROR,
    EXIT_GATE_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NO_DATA,
    EXIT_OK,
    MixedTraceError,
    NoDataError,
)
from driftscope.findings.catalogue import Analysis
from driftscope.findings.finding import Answer, Finding, Topic
from driftscope.json_report import to_json
from driftscope.metrics.acceptance import mean_length
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.manifest import WAS_SIMULATED, read_manifest
from driftscope.trace.records import ClientRow
from driftscope.trace.runs import is_rollups
from driftscope.vocabulary import Ended
from driftscope.workloads.client.replay import Done, Watcher, require_answers
from driftscope.workloads.suites.plan import Shot

_WIDTH = 100


class Bar(Watcher):
    """Progress bar with the figures known so far; acceptance is the mean of all rounds."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._rounds = self._accepted = self._lost = 0

    def planned(self, shots: Sequence[Shot]) -> None:
        """Start the bar, with one step per planned request."""
        self._task = self._progress.add_task("", total=len(shots), figures="")

    def ended(self, shot: Shot, row: ClientRow) -> None:
        """Advance the bar by one request."""
        self._lost += row.ended != Ended.ANSWERED
        if row.accepted and not row.warmup:
            self._rounds += len(row.accepted)
            self._accepted += sum(row.accepted)
        figures = [shot.level.words()]
        if self._rounds:
            figures.append(f"{mean_length(self._accepted, self._rounds):.2f} tokens/round")
        if self._lost:
            figures.append(f"{self._lost} not answered")
        self._progress.update(self._task, advance=1, figures=", ".join(figures))


@contextlib.contextmanager
def watched(*, quiet: bool) -> Iterator[Watcher]:
    """Yield a progress bar on a terminal, else a watcher that shows nothing."""
    figures = TextColumn("{task.fields[figures]}")
    columns = (BarColumn(), MofNCompleteColumn(), figures, TimeElapsedColumn())
    with run_reports.progress_bar(*columns, quiet=quiet) as progress:
        yield Bar(progress) if progress else Watcher()


def tell(done: Done, *, as_json: bool, quiet: bool) -> int:
    """Print the outcome of a replay and return the exit code. Raises NoDataError without an answer.

    Rows missing from the run directory are reported even when `quiet`.
    """
    if as_json:
        sys.stdout.write(text(REPLAY, done, digits=None))
    say_lost(done)
    if not quiet:
        for note in done.notes:
            say(f"note: {note}")
        say(counted(done))
        say(f"written: {done.run}")
        say(f"next: driftscope analyze {shlex.quote(str(done.run))}")
    if done.stopped:
        return EXIT_INTERRUPTED
    require_answers(done)
    return EXIT_OK if done.whole else EXIT_ERROR


def say_lost(done: Done) -> None:
    """Print one line if the run directory lacks rows; every figure of the run lacks them, too."""
    if done.lost:
        causes = ", ".join(
            f"{cause.replace('_', ' ')} {count:,}" for cause, count in sorted(done.lost.items())
        )
        total = sum(done.lost.values())
        say(f"error: {done.run}: {total:,} rows lost ({causes}); free disk space and replay again")


def counted(done: Done) -> str:
    """Return the number of requests by how they ended, as one line."""
    ended = ", ".join(f"{count:,} {name}" for name, count in sorted(done.ended.items()))
    warmup = f" ({done.warmup:,} of them warm-up)" if done.warmup else ""
    return f"{'stopped; ' if done.stopped else ''}{done.planned:,} requests{warmup}: {ended}"


def say(words: str) -> None:
    """Print a line to stderr."""
    sys.stderr.write(f"{shown(words)}\n")


def lists() -> None:
    """Print the suites, prompts and transforms that a replay can use."""
    from driftscope.workloads.suites.prompts import TRIO, shipped_sets
    from driftscope.workloads.suites.suite import load_suite, shipped_suites
    from driftscope.workloads.suites.transforms import TRANSFORMS

    out = []
    for name in shipped_suites():
        suite = load_suite(name)
        conditions = f"conditions: {'; '.join(suite.conditions)}"
        out += [name, _indented(suite.file.about), _indented(conditions)]
    out += ["", f"prompts (--prompts): {', '.join([*shipped_sets(), TRIO])}, or a file", ""]
    for name, kind in TRANSFORMS.items():
        fields = ", ".join(
            f"{field}={info.default!r}" if not info.is_required() else field
            for field, info in kind.model_fields.items()
        )
        words = " ".join((kind.__doc__ or "").split())
        out += [f"{name}: {{{fields}}}", _indented(words)]
    sys.stdout.write("\n".join(out) + "\n")


def _indented(words: str) -> str:
    return textwrap.fill(
        words, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False
    )


def both_replays(first: Path, second: Path) -> bool:
    """Whether both runs are replays; raises MixedTraceError if only one is."""
    kinds = {is_rollups(run) or is_replay(read_manifest(run)) for run in (first, second)}
    if len(kinds) > 1 and (is_rollups(first) or is_rollups(second)):
        raise MixedTraceError(
            f"{first}, {second}: rollups and a run's rows; export the run with `driftscope export "
            "RUN --format rollup -o FOLDER`, and compare the folders"
        )
    if len(kinds) > 1:
        raise MixedTraceError(
            f"{first}, {second}: a replay and a probe's run, which measure different things; "
            "compare two of the same kind, or give both to `driftscope analyze`, which joins them"
        )
    return kinds == {True}


def difference_sentence(first: ReplaySummary, other: ReplaySummary) -> str:
    """Return in words that the lengths of two files' only parts differ; "" if they may be alike."""
    if len(first.cells) != 1 or len(other.cells) != 1:
        return ""
    a, b = first.cells[0], other.cells[0]
    words, x, y = BOUNDS, a.mean_length_interval, b.mean_length_interval
    lengths = [a.mean_length, b.mean_length]
    ks = [cell.totals.k for cell in (a, b) if cell.totals and cell.totals.k]
    if len({*ks}) > 1:  # a longer draft yields more of the same drafter
        k = min(ks)
        cut = [cell.totals.at_most(k) for cell in (a, b) if cell.totals]
        (x, y), lengths = [one.length_bounds for one in cut], [one.mean_length for one in cut]
        words = f"of at most {k} drafted, {BOUNDS}"
    if x is None or y is None or (x.low <= y.high and y.low <= x.high):
        return ""
    less = "more" if y.low > x.high else "less"
    return (
        f"{other.label} accepts {less} than {first.label}: {number(lengths[1])} "
        f"({y.low:.2f} to {y.high:.2f}) and {number(lengths[0])} ({x.low:.2f} to {x.high:.2f}) "
        f"tokens per round ({words}). Whether they had the same prompts is not in the files."
    )


def compare_replays(runs: Sequence[Path], labels: Sequence[str], *, as_json: bool) -> None:
    """Print the figures of both replays and their ratios, prompt by prompt.

    Raises NoDataError for a run that holds sums only, whose bounds do not decide, and for one whose
    acceptance was simulated; MixedTraceError for replays of different prompts.
    """
    analysis = analyze(Inputs(sources=runs, labels=labels))
    for run in analysis.senders:
        if run.manifest.is_simulated:
            raise NoDataError(f"{run.label}: {WAS_SIMULATED}; it is compared with nothing")
    compared = {label for pair in analysis.versus for label in (pair.first, pair.other)}
    for pair in analysis.versus:
        if pair.basis == SPAN and pair.length_ratio is not None:
            ratio = pair.length_ratio
            say(
                f"{pair.other} yields {number(ratio.value)}× the tokens per round of {pair.first}"
                f"{between(ratio.interval)} on the same labels, adapters, texts, contexts and "
                "depths"
            )
    sums = [r.label for r in analysis.senders if not r.has_rows and r.label not in compared]
    if sums and not (words := difference_sentence(*analysis.senders)):
        raise NoDataError(
            f"{listed(sums)}: cannot tell how the runs compare: no per-request rows, sums only; "
            "`driftscope analyze` shows the figures side by side"
        )
    if sums:
        sys.stderr.write(f"{words}\n")
    elif not analysis.versus:
        raise MixedTraceError(
            f"{runs[0]}, {runs[1]}: these replays have no prompt in common; replay the same suite"
        )
    for case in analysis.replay_cases:
        for claim, what in ((Claim.ACCEPTANCE, "accepts more"), (Claim.SPEED, "serves faster")):
            if explaining := case.comparability.explaining(claim):
                words = listed([found.words for found in explaining])
                say(f"which server {what} cannot be told: they differ in {words}")
    if as_json:
        typer.echo(to_json(analysis), nl=False)
    else:
        run_reports.show_table(analysis)


_QUANTITIES = {
    TPOT: "time per token",
    WHOLE: "with the first one",
    TTFT: "time to first token",
    THROUGHPUT: "tokens per second",
}
_CODES = {Answer.YES: EXIT_OK, Answer.NO: EXIT_GATE_FAILED, Answer.CANNOT_TELL: EXIT_NO_DATA}


def pays_answers(analysis: Analysis) -> list[Finding]:
    """Return the answers to whether speculation pays, of each run or replay."""
    found = [*analysis.answers, *analysis.findings]
    about = [one for one in found if one.topic is Topic.PAYS and not one.reference]
    return [one for one in about if one.answer is not None]


def exit_code(analysis: Analysis) -> int:
    """Return 0 if speculation pays with some drafter, 3 if with none, 4 if that cannot be told."""
    answers = {finding.answer for finding in pays_answers(analysis)}
    best = next((one for one in reversed(Answer) if one in answers), Answer.CANNOT_TELL)
    return _CODES[best]


def say_answer(analysis: Analysis, again: str = "") -> None:
    """Print the answer, and the speeds at each load. `again` is the command that asks a single
    running server a second time, then with or without its drafter."""
    console = output_console(_WIDTH)
    several = len(pays_answers(analysis)) > 1
    if again and {replay.speculates for replay in analysis.senders} != {True, False}:
        drafts = analysis.senders[0].speculates
        console.print(
            f"pays: cannot tell yet. The server with{'' if drafts else 'out'} speculation is "
            f"recorded: restart it with{'out' if drafts else ''} its drafter, and run the same "
            f"command again: {again}",
            highlight=False,
            soft_wrap=True,
        )
        return
    for finding in pays_answers(analysis):
        answer = finding.answer or Answer.CANNOT_TELL
        console.print(f"pays: {answer.value}. {finding.sentence(several)}", highlight=False)
        if answer is not Answer.YES and finding.advice:
            console.print(finding.advice, highlight=False, soft_wrap=True)
    valid = dict.fromkeys(one.validity.words for one in analysis.senders if one.speculates)
    for words in list(valid)[:1]:
        console.print(f"measurement: {words}.", highlight=False, soft_wrap=True)
    for replay in analysis.replay_cases:
        if replay.speeds:
            console.print()
            console.print(_table(replay.run.label, replay.speeds), highlight=False)


def _table(label: str, speeds: Sequence[SpeedAtLoad]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", title=shown(label))
    table.title_justify = "left"
    for name in ("load", "quantity", "clock"):
        table.add_column(name)
    for name in ("without", "with", "speed", "95% interval"):
        table.add_column(name, justify="right")
    for at_load in speeds:
        load = at_load.load
        for quantity, words in _QUANTITIES.items():
            for clock, by_quantity in (
                ("client", at_load.by_client),
                ("server", at_load.by_server),
            ):
                if (speed := by_quantity.get(quantity)) is not None:
                    table.add_row(load, words, clock, *_cells(speed, quantity))
                    load = ""
    return table


def _cells(speed: Speed, quantity: str) -> tuple[str, ...]:
    form = number if quantity == THROUGHPUT else milliseconds
    interval = speed.interval
    return (
        form(speed.other),
        form(speed.own),
        f"{speed.value:.2f}×",
        f"{interval.low:.2f}× to {interval.high:.2f}×",
    )

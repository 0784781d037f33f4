"""A run directory from another tool's file, which the analysis reads like a replay.

It holds the requests of the file with what each has: the tokens accepted in its rounds, and times.
A histogram says how many rounds accepted how many tokens, and not in which order. A part of a file
without histograms of single requests is held as its sums, in the manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from driftscope.analysis.log_changes import REQUEST
from driftscope.analysis.replays import TOTALS, FileTotals, to_workload
from driftscope.analysis.validity import IGNORES_STOP, PROMPT_TEXT
from driftscope.errors import TraceError, UsageError
from driftscope.ingest.base import THIS_RUN, Figures, Histogram, Reader, RequestCounts
from driftscope.trace.manifest import CLIENT, INGESTED, MANIFEST, Manifest, client_manifest
from driftscope.trace.records import ClientRow
from driftscope.trace.runs import remove
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import Ended
from driftscope.workloads.client.recording import QUEUE_ROWS, new_run_id

WHOLE = "all requests"
"""Condition of requests whose part the file does not name."""
UNTIMED = "the times at which requests were sent are not in the file; the load is not known"
NO_ROWS = (
    "holds sums only: what needs rows of single requests is not known, and a length has bounds in "
    "place of an interval"
)
_SOURCE, _OPTIONS = f"{CLIENT}-ingest", WriterOptions(queue_items=QUEUE_ROWS)


def write_run(run: Path, path: Path, reader: Reader, found: Sequence[Figures]) -> tuple[int, int]:
    """Write the requests of a file as a run; a part without rounds of single requests is written as
    its sums. Return the number of requests, and of such parts.

    Raises TraceError if `run` already holds a run or cannot be written whole, and UsageError for
    figures that a run cannot hold.
    """
    found = [figures for figures in found if not figures.is_sum]
    sums = [
        _totals_of(figures)
        for figures in found
        if not _has_rows(figures) and not (figures.is_empty and figures.accepted is None)
    ]
    if (run / MANIFEST).exists():
        raise TraceError(f"{run}: already holds a run; give -o a new directory")
    rows = any(map(_has_rows, found))
    create_run(run, _manifest(path, reader, found, sums, rows=rows))
    writer, requests = TraceWriter(run, source=_SOURCE, options=_OPTIONS), 0
    for row in _rows(path, found):
        writer.put(row)
        requests += 1
    writer.close()
    if lost := sum((status := writer.status()).dropped.values()):
        with contextlib.suppress(TraceError, OSError):
            remove(run)
        raise TraceError(
            f"{run}: {lost:,} of {requests:,} requests could not be written "
            f"({status.first_error}); make room and give -o again"
        )
    return requests, len(sums)


MOST_ROUNDS = 1 << 22
"""Rounds of all requests of a part that are held as rows; a part with more is held as its sums."""


def _has_rows(figures: Figures) -> bool:
    """Whether the rounds of single requests of a part are known and held as rows."""
    histograms = [one.histogram for one in figures.single if one.histogram is not None]
    return bool(histograms) and sum(map(sum, histograms)) <= MOST_ROUNDS


def _manifest(
    path: Path,
    reader: Reader,
    found: Sequence[Figures],
    sums: Sequence[FileTotals],
    *,
    rows: bool,
) -> Manifest:
    try:
        totals = to_workload(sums)
    except ValueError as error:
        raise UsageError(f"{path}: {reader.title}: {error}; a run cannot hold that") from error
    stated: dict[str, set[Any]] = {
        PROMPT_TEXT: {figures.prompts for figures in found},
        IGNORES_STOP: {figures.ignores_stop for figures in found},
    }
    ingested = {
        **{
            name: next(iter(values)) if len(values) == 1 else None
            for name, values in stated.items()
        },
        "format": reader.name,
        "tool": reader.title,
        "file": path.name,
        TOTALS: totals,
    }
    notes = (
        *((UNTIMED,) if rows else ()),
        *((f"{path.name}: {NO_ROWS}",) if sums else ()),
        *_notes(found),
    )
    facts = {"version": reader.title}
    return client_manifest(new_run_id(), facts, {INGESTED: ingested}, notes)


def _notes(found: Sequence[Figures]) -> tuple[str, ...]:
    """Return what readers took for granted, the periods, and what does not fit together."""
    notes = [words for figures in found for words in figures.observations]
    notes += [
        change.statement
        for figures in found
        for change in figures.changes
        if not change.falls or (_has_rows(figures) and change.unit != REQUEST)
    ]
    notes += [words for figures in found for words in figures.assumptions]
    notes += [
        f"acceptance covers: {figures.period}"
        for figures in found
        if figures.period != THIS_RUN and figures.mean_length is not None
    ]
    notes += [words for figures in found for words in figures.contradictions]
    return tuple(dict.fromkeys(notes))


def _totals_of(figures: Figures) -> FileTotals:
    """Return a part's figures as sums, which have most of their names."""
    names = {field.name for field in fields(FileTotals)} & {field.name for field in fields(Figures)}
    return FileTotals(
        condition=figures.part or WHOLE,
        throughput=figures.output_tokens_per_s,
        **{name: getattr(figures, name) for name in names},
    )


def _rows(path: Path, found: Sequence[Figures]) -> Iterator[ClientRow]:
    """Yield the requests whose rounds are known. Without a question of its own a request is paired
    with none of another file."""
    digest = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:12]
    order = 0
    for figures in filter(_has_rows, found):
        for counts in figures.single:
            if counts.histogram is not None:
                yield _row(figures, counts, f"{digest}-{order}", order)
                order += 1


def _row(figures: Figures, counts: RequestCounts, name: str, order: int) -> ClientRow:
    verified, accepted = _rounds(figures, counts)
    absent: dict[str, Any] = dict.fromkeys(
        (
            *("response", "concurrency", "rate", "due_s", "sent_s", "status", "error", "e2e_s"),
            *("gaps_s", "prompt_tokens", "output_tokens", "cached_tokens", "finish_reason"),
            *("temperature", "max_tokens", "digest", "json_ok", "tool_ok", "early_stop"),
            *("garbled", "looping"),
        )
    )
    return ClientRow(
        time_s=time.time(),
        request=name,
        order=order,
        condition=figures.part or WHOLE,
        pair=counts.question or name,
        repeat=0,
        warmup=False,
        ended=Ended.ANSWERED,
        attempts=1,
        waited_s=0.0,
        ttft_s=counts.ttft_s,
        tpot_s=counts.tpot_s,
        verified=verified,
        accepted=accepted,
        **absent,
    )


def _rounds(
    figures: Figures, counts: RequestCounts
) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Return the tokens verified in each round, None if they are not known, and those accepted."""
    split = counts.by_verified if figures.by_verified is not None else None
    if split is None:
        return None, tuple(_repeated(counts.histogram or ()))
    pairs = [(n, tokens) for n, rounds in split.items() for tokens in _repeated(rounds)]
    pairs.sort(key=lambda pair: pair[1])
    return tuple(n for n, _ in pairs), tuple(tokens for _, tokens in pairs)


def _repeated(histogram: Histogram) -> Iterator[int]:
    return (tokens for tokens, rounds in enumerate(histogram) for _ in range(rounds))

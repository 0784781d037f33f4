"""A run directory from another tool's file, which the analysis reads like a replay.

It holds the requests of the file with what each has: the tokens accepted in its rounds, and times.
A histogram says how many rounds accepted how many tokens, and not in which order.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from driftscope.errors import NoDataError, TraceError
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import RequestCounts
from driftscope.ingest.reader import Reader
from driftscope.trace.format.manifest import CLIENT, MANIFEST
from driftscope.trace.format.records import ClientRow
from driftscope.trace.write.run_directory import create_run
from driftscope.trace.write.writer import TraceWriter
from driftscope.trace.write.writer_options import WriterOptions
from driftscope.vocabulary import Ended
from driftscope.workloads.client.replay_directory import QUEUE_ROWS, manifest_of, new_run_id

WHOLE = "all requests"
"""Condition of requests whose part the file does not name."""
UNTIMED = "the times at which requests were sent are not in the file; the load is not known"
_SOURCE = f"{CLIENT}-ingest"


def write_run(run: Path, path: Path, reader: Reader, found: Sequence[Figures]) -> int:
    """Write the requests of a file as a run, and return their number.

    Raises NoDataError for a file without rounds of single requests, and TraceError if `run` already
    holds a run or cannot be written.
    """
    rows = list(_rows(path, found))
    if not rows:
        raise NoDataError(
            f"{path}: {reader.title}: has no rounds of single requests, which a run needs; without "
            "-o its figures are printed"
        )
    if (run / MANIFEST).exists():
        raise TraceError(f"{run}: already holds a run; give -o a new directory")
    notes = tuple(dict.fromkeys(words for each in found for words in each.assumptions))
    problems = tuple(words for each in found for words in each.contradictions)
    workload = {"ingested": {"format": reader.name, "tool": reader.title, "file": path.name}}
    facts = {"version": reader.title}
    create_run(run, manifest_of(new_run_id(), facts, workload, (UNTIMED, *notes, *problems)))
    writer = TraceWriter(run, source=_SOURCE, options=WriterOptions(queue_items=QUEUE_ROWS))
    for row in rows:
        writer.put(row)
    writer.close()
    return len(rows)


def _rows(path: Path, found: Sequence[Figures]) -> Iterator[ClientRow]:
    """Yield the requests whose rounds are known. Without a question of its own a request is paired
    with none of another file."""
    digest = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:12]
    order = 0
    for figures in found:
        for counts in figures.single:
            if counts.histogram is not None:
                yield _row(figures, counts, f"{digest}-{order}", order)
                order += 1


def _row(figures: Figures, counts: RequestCounts, name: str, order: int) -> ClientRow:
    accepted = _accepted(counts)
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
        drafted=_drafted(figures, counts),
        accepted=accepted,
        **absent,
    )


def _accepted(counts: RequestCounts) -> tuple[int, ...]:
    histogram = counts.histogram or ()
    return tuple(tokens for tokens, rounds in enumerate(histogram) for _ in range(rounds))


def _drafted(figures: Figures, counts: RequestCounts) -> tuple[int, ...] | None:
    """Return K for each round if the counts say that every round drafted K."""
    k = figures.k
    if k is None or counts.drafted != k * counts.rounds:
        return None
    return (k,) * counts.rounds

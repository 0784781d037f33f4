"""SpecForge's bench_eagle3 (0.2): one JSON object with a list for each benchmark.

accept_length is completion tokens / verifications, and 1.0 also where the server did not speculate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.ingest.fields import count, length, number, objects
from driftscope.ingest.figures import Figures
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile

_COUNTED = "accept_length is completion tokens / verifications: it counts the prefill's token"


def _entries(file: ResultFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, entries in file.fields.items():
        if isinstance(entries, list):
            yield from ((name, each) for each in entries if isinstance(each, dict))


def _recognises(file: ResultFile) -> bool:
    return "model" in file.fields and any(
        "steps" in each and "metrics" in each for _, each in _entries(file)
    )


def _read(file: ResultFile) -> Iterator[Figures]:
    for name, entry in _entries(file):
        for metrics in objects(entry, "metrics"):
            yield Figures(
                part=f"{name}, batch {count(entry, 'batch_size')}",
                k=count(entry, "steps"),
                requests=count(entry, "num_samples"),
                length=length(metrics, "accept_length"),
                output_per_s=number(metrics, "output_throughput"),
                assumptions=(_COUNTED, "K is its number of steps"),
            )


READER = Reader(
    name="specforge",
    title="SpecForge bench_eagle3 results (0.2)",
    gives="acceptance length and throughput of each benchmark",
    lacks="counts, rates by position, intervals",
    recognises=_recognises,
    read=_read,
)

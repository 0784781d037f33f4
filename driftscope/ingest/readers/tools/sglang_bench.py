"""SGLang's bench_serving (0.5.23): one JSON line per run.

Source: sglang/benchmark/serving.py. Its accept_length is the server's mean since its start.
"""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.ingest.fields import count, length, milliseconds, number
from driftscope.ingest.figures import SINCE_START, THIS_RUN, Figures
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile

_OURS = ("accept_length", "median_itl_ms", "completed")
_SINCE = (
    "its acceptance length is the server's since its start, not this run's; times are the run's"
)


def _recognises(file: ResultFile) -> bool:
    return bool(file.objects) and all(name in file.objects[0] for name in _OURS)


def _read(file: ResultFile) -> Iterator[Figures]:
    for at, fields in enumerate(file.objects):
        accepted = length(fields, "accept_length")
        yield Figures(
            part=f"run {at + 1}" if len(file.objects) > 1 else "",
            period=THIS_RUN if accepted is None else SINCE_START,
            requests=count(fields, "completed"),
            length=accepted,
            ttft_s=milliseconds(fields, "mean_ttft_ms"),
            tpot_s=milliseconds(fields, "mean_tpot_ms"),
            output_per_s=number(fields, "output_throughput"),
            assumptions=() if accepted is None else (_SINCE,),
        )


READER = Reader(
    name="sglang-bench",
    title="SGLang bench_serving (0.5.23)",
    gives="acceptance length since the server's start, times of the run",
    lacks="rates by position, counts, the run's own acceptance",
    recognises=_recognises,
    read=_read,
)

"""Latencies are exported by the operation that the request's id tells of."""

from __future__ import annotations

from dataclasses import replace

from support.runs import Spec, rows

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.batch_counter import BatchCounter
from driftscope.telemetry.collect.tally import Tally
from driftscope.trace.format.records import RequestRow
from driftscope.trace.format.schema import to_batch


def _requests(*names: str) -> list[RequestRow]:
    finished = [row for row in rows(Spec(requests=len(names))) if isinstance(row, RequestRow)]
    return [replace(row, request=name) for row, name in zip(finished, names, strict=True)]


def test_chat_and_completions_are_counted_apart() -> None:
    tally = Tally()
    made = _requests("chatcmpl-1", "cmpl-2-0", "chatcmpl-3", "a1b2")
    BatchCounter(tally=tally).take("request", to_batch("request", made))
    counts = {
        dict(point.attributes)[i.OPERATION]: point.count
        for point in tally.snapshot().values()
        if point.name == i.TTFT.name
    }
    assert counts == {"chat": 2, "text_completion": 2}

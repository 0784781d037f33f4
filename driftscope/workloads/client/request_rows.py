"""Conversion of a sent request into a row of the trace."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from driftscope.trace.format.records import ClientRow
from driftscope.vocabulary import Ended
from driftscope.workloads.client.outcome import UNCHECKED, outcome_of
from driftscope.workloads.client.sending import Sent
from driftscope.workloads.suites.plan import Shot


def row_of(
    shot: Shot, sent: Sent, body: Mapping[str, Any], *, due_unix_s: float | None = None
) -> ClientRow:
    """Return the row of `shot`."""
    answer, counts = sent.answer, sent.counts
    output = counts.output_tokens
    whole = sent.ended == Ended.ANSWERED
    checked = outcome_of(shot.prompt, answer, output) if whole else UNCHECKED
    return ClientRow(
        time_s=time.time(),
        request=sent.request,
        response=answer.response,
        order=shot.order,
        condition=shot.condition,
        pair=shot.prompt.key,
        repeat=shot.repeat,
        warmup=shot.warmup,
        concurrency=shot.level.concurrency,
        rate=shot.level.rate,
        due_s=due_unix_s,
        sent_s=sent.sent_unix_s,
        ended=sent.ended,
        status=sent.status,
        error=sent.error,
        attempts=sent.attempts,
        waited_s=sent.waited_s,
        ttft_s=sent.pieces[0] - sent.sent if sent.pieces else None,
        tpot_s=_tpot_s(sent, output),
        e2e_s=sent.over - sent.begun if sent.attempts else None,
        gaps_s=[b - a for a, b in itertools.pairwise(sent.pieces)] if sent.pieces else None,
        prompt_tokens=counts.prompt_tokens,
        output_tokens=output,
        cached_tokens=counts.cached_tokens,
        finish_reason=answer.finish_reason,
        temperature=_number(body.get("temperature")),
        max_tokens=_count(body.get("max_completion_tokens", body.get("max_tokens"))),
        drafted=counts.drafted,
        accepted=counts.accepted,
        digest=answer.digest() if sent.pieces else None,
        json_ok=checked.json_ok,
        tool_ok=checked.tool_ok,
        early_stop=checked.early_stop,
        garbled=checked.garbled,
        looping=checked.looping,
    )


def unsent_row(shot: Shot, request: str, body: Mapping[str, Any]) -> ClientRow:
    """Return the row of a shot that was never fired."""
    return row_of(shot, Sent(request=request), body)


def _tpot_s(sent: Sent, output: int | None) -> float | None:
    if not output or output < 2 or len(sent.pieces) < 2:
        return None
    return (sent.pieces[-1] - sent.pieces[0]) / (output - 1)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None

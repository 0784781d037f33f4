"""Build vLLM's SchedulerOutput, as far as the probe reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from driftscope.trace.records import RequestRow


def schedule(
    tokens: Mapping[str, int] | None = None,
    *,
    new: Mapping[str, Any] | None = None,
    going_on: Mapping[str, int] | None = None,
    resumed: Mapping[str, int] | None = None,
    finished: tuple[str, ...] = (),
) -> Any:
    """Return a step's schedule; `tokens` by request, 1 where it is missing.

    `new`: request -> (prompt tokens, computed before); `going_on`: request -> computed before;
    `resumed`: those among them that were preempted -> their output tokens.
    """
    new, going_on, resumed = new or {}, going_on or {}, resumed or {}
    return SimpleNamespace(
        scheduled_new_reqs=[new_request(name, *of) for name, of in new.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(going_on),
            num_computed_tokens=list(going_on.values()),
            resumed_req_ids=set(resumed),
            num_output_tokens=[resumed.get(name, 1) for name in going_on],
        ),
        num_scheduled_tokens={name: (tokens or {}).get(name, 1) for name in (*new, *going_on)},
        finished_req_ids=set(finished),
    )


def new_request(name: str, prompt_tokens: int, computed: int = 0, **more: Any) -> Any:
    """Return vLLM's NewRequestData."""
    plain = {"prompt_token_ids": [0] * prompt_tokens, "prompt_embeds": None}
    return SimpleNamespace(
        req_id=name, num_computed_tokens=computed, sampling_params=None, **{**plain, **more}
    )


def ended_row(**values: Any) -> RequestRow:
    """Return the row of request "a" as its engine hands it over, before its times are known."""
    plain = {
        **dict.fromkeys(field.name for field in fields(RequestRow)),
        "request": "a",
        "finish_reason": "stop",
        "traced": True,
    }
    return RequestRow(**{**plain, **values})

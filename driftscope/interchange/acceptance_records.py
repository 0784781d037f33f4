"""AIPerf's records of speculative decoding: one JSON object per request.

Source: ai-dynamo/aiperf 0.13, src/aiperf/common/models/spec_decode_models.py and
`profile_export.jsonl`. What a run does not hold is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from driftscope.analysis.figures.run_sums import Sums
from driftscope.boundary import strict_json

MS = 1000.0
NS = 1e9


def records_of(run: Sums) -> Iterator[dict[str, Any]]:
    """Yield the record of each request with a round, in order of arrival, ready for JSON."""
    rounds, requests = run.rounds, run.requests
    there = np.flatnonzero(rounds.rounds > 0)
    arrival_s = requests.arrival_s[rounds.request[there]]
    begin_s = np.where(np.isfinite(arrival_s), arrival_s, run.first_s[there])
    names = requests.keys.column("request").to_pylist()
    for number, row in enumerate(there[np.argsort(begin_s, kind="stable")].tolist()):
        request = int(rounds.request[row])
        yield {
            "metadata": {
                "session_num": number,
                "x_request_id": names[request],
                **_start(float(requests.arrival_s[request])),
            },
            "metrics": dict(_metrics(run, request)),
            "spec_decode_acceptance": _acceptance(run, row),
        }


def records_to_jsonl(run: Sums) -> str:
    """Return the records as text, one line per request."""
    return "".join(strict_json.dumps(each, sort_keys=True) + "\n" for each in records_of(run))


def _start(arrival_s: float) -> dict[str, int]:
    return {"request_start_ns": round(arrival_s * NS)} if np.isfinite(arrival_s) else {}


def _metrics(run: Sums, request: int) -> Iterator[tuple[str, dict[str, Any]]]:
    requests = run.requests
    for name, values, unit, factor in (
        ("time_to_first_token", requests.ttft_s, "ms", MS),
        ("inter_token_latency", requests.tpot_s, "ms", MS),
        ("input_sequence_length", requests.prompt_tokens, "tokens", 1.0),
        ("output_sequence_length", requests.output_tokens, "tokens", 1.0),
    ):
        value = float(values[request])
        if np.isfinite(value):
            yield name, {"value": value * factor, "unit": unit}


def _acceptance(run: Sums, row: int) -> dict[str, Any]:
    rounds = run.rounds
    steps, drafted = int(rounds.rounds[row]), int(rounds.drafted[row])
    accepted = int(rounds.accepted[row])
    tokens = float(run.requests.output_tokens[int(rounds.request[row])])
    return {
        "engine": run.tables.manifest.engine,
        "mean_acceptance_length": 1.0 + accepted / steps,
        **({"draft_acceptance_rate": accepted / drafted} if drafted else {}),
        "acceptance_histogram": {
            str(tokens): int(number) for tokens, number in enumerate(rounds.histogram[row].tolist())
        },
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_steps": steps,
        "num_spec_tokens": run.tables.manifest.k,
        **({"completion_tokens": int(tokens)} if np.isfinite(tokens) else {}),
    }

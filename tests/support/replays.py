"""Runs of replays with known figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.runs import START_S, write_rows

from driftscope.trace.records import ClientRow
from driftscope.trace.status import Status, status_path
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import Ended
from driftscope.workloads.client.recording import manifest_of

BASELINE = "as asked"


def client_row(order: int, **values: Any) -> ClientRow:
    """Return an answered request's row; `values` override its columns."""
    plain: dict[str, Any] = {
        "time_s": START_S + order + 1.0,
        "request": f"abc-{order}",
        "response": f"chatcmpl-abc-{order}",
        "order": order,
        "condition": BASELINE,
        "pair": f"p{order}",
        "repeat": 0,
        "warmup": False,
        "concurrency": 2,
        "rate": None,
        "due_s": None,
        "sent_s": START_S + order,
        "ended": Ended.ANSWERED,
        "status": 200,
        "error": None,
        "attempts": 1,
        "waited_s": 0.0,
        "ttft_s": 0.1,
        "tpot_s": 0.02,
        "e2e_s": 1.0,
        "gaps_s": [0.02] * 9,
        "prompt_tokens": 20,
        "output_tokens": 10,
        "cached_tokens": None,
        "finish_reason": "stop",
        "temperature": 0.0,
        "max_tokens": 64,
        "verified": [4, 4],
        "accepted": [1, 3],
        "digest": "d",
        "json_ok": None,
        "tool_ok": None,
        "early_stop": None,
        "garbled": False,
        "looping": False,
    }
    return ClientRow(**{**plain, **values})


def write_replay(run: Path, rows: Iterable[ClientRow], **workload: Any) -> Path:
    """Write a replay's closed run directory."""
    server = {"model": "m", "url": "http://x/v1", "kv_tokens": 8192, "max_model_len": 1024}
    create_run(run, manifest_of("abc", server, {"baseline": BASELINE, **workload}, ()))
    write_rows(run, "client-1", rows)
    status = Status(source="client-1", closed=True, flushed_s=START_S)
    status_path(run, status.source).write_text(status.to_json())
    return run

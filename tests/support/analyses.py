"""Analyses of simulated runs, and runs of replays with known figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runs import START_S, Spec, write_rows, write_run

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import Analysis, Inputs, analyze
from driftscope.trace.manifest import client_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.records import ClientRow
from driftscope.trace.status import Status, status_path
from driftscope.trace.texts import TEXTS, TextFile
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import Ended

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
    create_run(run, client_manifest("abc", server, {"baseline": BASELINE, **workload}, ()))
    write_rows(run, "client-1", rows)
    status = Status(source="client-1", closed=True, flushed_s=START_S)
    status_path(run, status.source).write_text(status.to_json())
    return run


PAIR = {
    "eagle3": Spec(
        labels=("in distribution", "plain-text roles"),
        undrafted=("k_zero", "no_draft"),
        chunked=2,
        runner="v1",
        dropped={"queue_full": 3},
    ),
    "eagle3.1": Spec(
        conditional=(0.8, 0.65, 0.6, 0.6),
        growth=0.95,
        norm_output=True,
        drafter="tiny-eagle31",
        seed=8,
    ),
}
"""Runs like the shipped trio: one drafter drifts, the other does not, and the target has no
sink."""


def pair(folder: Path) -> Analysis:
    """Return the analysis of PAIR, recorded under `folder`."""
    return analysis_of(folder, PAIR)


def with_texts(folder: Path, *answer: str, prompt: str = "Why?") -> Inputs:
    """Return a simulated run, and a replay of its requests that kept this prompt and answer, whose
    pieces are rounds, of each."""
    run = write_run(folder / "run", Spec(requests=6))
    names = [f"req-{n}" for n in range(6)]
    rows = [client_row(n, response=name) for n, name in enumerate(names)]
    asked = write_replay(folder / "asked", rows, **{TEXTS: True})
    file = TextFile(asked)
    for name in names:
        file.put({"response": name, "prompt": prompt, "answer": answer, "by_round": True})
    file.close()
    return Inputs(sources=[asked, run], labels=["asked", "run"])


def analysis_of(folder: Path, specs: dict[str, Spec]) -> Analysis:
    """Return the analysis of simulated runs by label."""
    traces = [read_trace(write_run(folder / str(i), s)) for i, s in enumerate(specs.values())]
    return analyze(Inputs(sources=traces, labels=list(specs)))


def assert_same(ours: RunSummary, theirs: RunSummary, rel: float) -> None:
    """Assert that every figure is equal, and every float within `rel`."""
    for field in fields(RunSummary):
        a, b = (list(_leaves(getattr(run, field.name), field.name)) for run in (ours, theirs))
        assert [path for path, _ in a] == [path for path, _ in b]
        for (path, mine), (_, other) in zip(a, b, strict=True):
            if isinstance(mine, float) and isinstance(other, float):
                assert mine == pytest.approx(other, rel=rel, abs=1e-12, nan_ok=True), path
            else:
                assert mine == other, path


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            yield from _leaves(value[name], f"{path}.{name}")
    elif isinstance(value, np.ndarray):
        yield from _leaves(value.tolist(), path)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _leaves(item, f"{path}.{at}")
    else:
        yield path, value.item() if isinstance(value, np.generic) else value

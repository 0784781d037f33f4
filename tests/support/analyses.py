"""Analyses of simulated runs, and runs of replays with known figures."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.gallery import TRACES
from support.runs import START_S, Spec, write_rows, write_run
from support.simulate import Truth, simulate

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import Analysis, Inputs, analyze, summarise
from driftscope.trace.manifest import client_manifest
from driftscope.trace.reader import Trace
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


@functools.cache
def pair() -> Analysis:
    """Return the analysis of PAIR."""
    with tempfile.TemporaryDirectory() as folder:
        return analysis_of(Path(folder), PAIR)


@functools.cache
def gallery_run(name: str) -> RunSummary:
    """Return the summary of a run of the gallery."""
    return summarise(TRACES / name, name)


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


def analysis_of(folder: Path, worlds: dict[str, Spec | Truth]) -> Analysis:
    """Return the analysis of simulated runs by label."""
    runs = [written(folder / str(at), world) for at, world in enumerate(worlds.values())]
    return analyzed(*runs, labels=list(worlds))


def written(run: Path, world: Spec | Truth) -> Path:
    """Write a simulated run and return its directory."""
    return write_run(run, world) if isinstance(world, Spec) else simulate(run, world)


_SUMMARIES = dict[str, RunSummary]()
"""Summaries by what was simulated: many tests change one thing of a run that others take as it
is."""


def summary_of(run: Path, world: Spec | Truth, **how: Any) -> RunSummary:
    """Write a simulated run and return its summary, by the name of its directory."""
    path, key = written(run, world), repr((world, how))
    if key not in _SUMMARIES:
        _SUMMARIES[key] = summarise(path, run.name, **how)
    return replace(_SUMMARIES[key], label=run.name)


def analyzed(
    *runs: Path | Trace, labels: Sequence[str] = (), baseline: Path | Trace | None = None
) -> Analysis:
    """Return the analysis of runs, named after their directories unless they have `labels`."""
    names = labels or [run.name for run in runs if isinstance(run, Path)]
    return analyze(Inputs(sources=runs, labels=names, baseline=baseline))


def trimmed_trace(trace: Trace, one_in: int, reason: str) -> Trace:
    """Return a trace of K = 4 in which 2 tokens of one draft in so many were verified."""
    rows = trace.verify.to_pandas()
    cut = (rows.verified == 4) & (rows.index % one_in == 0)
    rows.loc[cut, "verified"] = 2
    rows.loc[cut, "accepted"] = rows.accepted[cut].clip(upper=2)
    rows.loc[cut, "reason"] = reason
    verify = pa.Table.from_pandas(rows, schema=trace.verify.schema, preserve_index=False)
    return replace(trace, verify=verify)


def finding_ids(analysis: Analysis) -> list[str]:
    """Return the ids of the findings, in their order."""
    return [finding.id for finding in analysis.findings]


def assert_same(ours: RunSummary, theirs: RunSummary, rel: float) -> None:
    """Assert that every figure is equal, floats within `rel`."""
    mine, wanted = (
        {
            path: value
            for f in fields(RunSummary)
            for path, value in leaves(getattr(run, f.name), f.name)
        }
        for run in (ours, theirs)
    )
    assert mine == pytest.approx(wanted, rel=rel, abs=1e-12, nan_ok=True)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what lists, records and dictionaries hold in the end, with its path."""
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    elif isinstance(value, pa.Table):
        value = value.to_pydict()
    if isinstance(value, dict) and value:
        for name in sorted(value, key=str):
            yield from leaves(value[name], f"{path}.{name}")
    elif isinstance(value, np.ndarray):
        yield from leaves(value.tolist(), path)
    elif isinstance(value, list | tuple) and value:
        for at, item in enumerate(value):
            yield from leaves(item, f"{path}.{at}")
    elif isinstance(value, dict | list | tuple):
        yield path, str(value)  # an empty one
    else:
        yield path, value.item() if isinstance(value, np.generic) else value

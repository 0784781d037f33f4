"""A real vLLM serves a LoRA adapter, and gets other weights while it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.checkpoints import TARGET, changed
from support.engine_process.job import CORES, ENGINE_TIMEOUT_S, HERE, Job, environment, forks
from support.engine_process.weights_main import ADAPTER, REQUESTS, VERSION
from support.lora import write_adapter

from driftscope.analysis.query.weight_updates import noted_updates
from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_adapters_and_updates_are_recorded(tmp_path: Path, runner: str) -> None:
    adapter = write_adapter(tmp_path / "adapter", TARGET)
    other = changed(tmp_path / "other", "target", weights=_negate_last_layer)
    run, answers = {}, {}
    for name, probe in (("on", {"EVERY": "1"}), ("off", {})):
        folder, job = tmp_path / name, Job(drafter="eagle31", runner=runner, probe=probe)
        folder.mkdir()
        code = forks(runner).run(
            HERE / "weights_main.py",
            [str(folder / "answers.json"), str(adapter), str(other)],
            environment(job, folder, CORES[0]),
            folder / "log.txt",
            ENGINE_TIMEOUT_S,
        )
        assert code == 0, (folder / "log.txt").read_text(errors="replace")[-4000:]
        run[name] = folder / "run"
        answers[name] = json.loads((folder / "answers.json").read_text())
    assert answers["on"] == answers["off"]
    assert answers["on"][0] != answers["on"][2] == answers["on"][3]

    trace = read_trace(run["on"])
    assert trace.problems == ()
    rows = trace.request.to_pylist()
    assert sum(row["adapter"] == ADAPTER for row in rows) == REQUESTS
    assert {row["label"] for row in rows} == {ADAPTER, None}
    (update,) = noted_updates(trace.statuses)[0][-1:]
    assert update.version == VERSION

    by = {part.label: part for part in summarise(run["on"], "run", by="adapter").segments}
    assert {name: part.requests for name, part in by.items()} == {
        "(no adapter)": 3 * REQUESTS,
        ADAPTER: REQUESTS,
    }
    summary = summarise(run["on"], "run", by="weights")
    parts = {part.label: part for part in summary.segments}
    assert {name: part.requests for name, part in parts.items()} == {
        "as started": 2 * REQUESTS,
        f"after update 1 ({VERSION})": 2 * REQUESTS,
    }
    assert [update.models for update in summary.updates] == [("target",)]


def _negate_last_layer(state: dict[str, object]) -> None:
    for name in state:
        if ".layers.2." in name and "norm" not in name:
            state[name] = -state[name]  # type: ignore[operator]

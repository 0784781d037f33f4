"""A real vLLM that ends with requests in flight: what is recorded of their kinds of text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.engine_process.job import CORES, ENGINE_TIMEOUT_S, HERE, Job, environment, forks
from support.engine_process.stopped_main import (
    ABORTED,
    EXIT,
    KILLED,
    RUNNING,
    SHUTDOWN,
    SIGTERM,
    WHOLE,
)

from driftscope.analysis.query.record_views import open_run
from driftscope.pipeline import summarise
from driftscope.regions import text_regions
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Region
from driftscope_lab.trio.prompts import SPECIAL_TOKENS

pytestmark = pytest.mark.vllm

Said = dict[str, tuple[list[int], str]]


def _run(folder: Path, way: str) -> tuple[Path, Said]:
    job = Job(drafter="eagle31", probe={"EVERY": "1"}, processes=way == SIGTERM)
    folder.mkdir()
    log, said = folder / "log.txt", folder / "said.json"
    main, env = HERE / "stopped_main.py", environment(job, folder, CORES[0])
    code = forks("v1").run(main, [str(said), way], env, log, ENGINE_TIMEOUT_S)
    assert (code == 0) is (way != KILLED), log.read_text(errors="replace")[-4000:]
    return folder / "run", json.loads(said.read_text())


def _rows(run: Path) -> dict[str, dict[str, Any]]:
    trace = read_trace(run)
    assert not [error for status in trace.statuses for error in status.errors]
    return {row["request"].partition("-")[0]: row for row in trace.request.to_pylist()}


def _names(text: str) -> list[str]:
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    return [each.region for each in text_regions(text, [m.span() for m in special.finditer(text)])]


@pytest.mark.parametrize("way", [SHUTDOWN, SIGTERM, EXIT])
def test_aborted_and_running_requests_have_regions(tmp_path: Path, way: str) -> None:
    run, said = _run(tmp_path / "run", way)
    rows = _rows(run)
    assert set(rows) == {WHOLE, ABORTED, RUNNING}
    for name, row in rows.items():
        ids, text = said[name]
        found, wanted = [Region.ALL[code] for code in row["region_codes"]], _names(text)
        if way == SIGTERM and name != WHOLE:  # the engine core goes on until it hears of the end
            assert row["output_tokens"] >= len(ids)
            assert found[: len(wanted)] == wanted
        else:
            assert row["output_tokens"] == len(ids)
            assert found == wanted
    reasons = {name: row["finish_reason"] for name, row in rows.items()}
    assert reasons == {WHOLE: "length", ABORTED: "abort", RUNNING: "abort"}
    segments = summarise(open_run(run), "run", by="region").segments
    assert {each.label for each in segments} <= set(Region.ALL)


def test_what_a_kill_leaves_is_not_recorded(tmp_path: Path) -> None:
    """The rounds are there, and the regions of the requests that had ended."""
    run, _ = _run(tmp_path / "run", KILLED)
    assert set(_rows(run)) == {WHOLE, ABORTED}
    verify = read_trace(run).verify.to_pylist()
    lost = sum(row["request"].startswith(RUNNING) and row["verified"] > 0 for row in verify)
    assert lost > 0
    found = {e.label: e.rounds for e in summarise(open_run(run), "run", by="region").segments}
    assert found["(not recorded)"] == lost
    assert sum(found.values()) == sum(row["verified"] > 0 for row in verify)

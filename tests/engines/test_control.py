"""A real vLLM applies changes while it runs: over its own RPC, its URL and its run directory."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.command import probe_answer
from support.engine_process.control_main import CHANGES
from support.engine_process.job import CORES, ENGINE_TIMEOUT_S, HERE, Job, environment, forks
from support.engine_process.serving import Server, serve

from driftscope.trace.reader import read_trace
from driftscope_lab.trio import load_prompts

pytestmark = pytest.mark.vllm
FOLLOWED_S = 2.0
"""Time, in seconds, after which the engine core has certainly applied a change made in the
worker."""


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_rpc_to_the_workers_of_an_llm(tmp_path: Path, runner: str) -> None:
    job, log = Job(drafter="eagle31", runner=runner, probe={"EVERY": "1"}), tmp_path / "log.txt"
    code = forks(runner).run(
        HERE / "control_main.py",
        [str(tmp_path / "said.json")],
        environment(job, tmp_path, CORES[0]),
        log,
        ENGINE_TIMEOUT_S,
    )
    assert code == 0, log.read_text(errors="replace")[-4000:]
    said = json.loads((tmp_path / "said.json").read_text())
    assert all(one["tokens"] == said[0]["tokens"] for one in said), "control changes no output"

    trace = read_trace(tmp_path / "run")
    assert trace.problems == ()
    rounds = _rows_by_request(trace.draft.to_pandas())
    status, stop, start, second, by_head, only_a, nobody, everybody, *wrong, governed = (
        [rounds.get(name, pd.DataFrame()) for name in one["ids"]] for one in said
    )
    lengths = [len(rows) for rows in status]
    assert min(lengths) > 0
    assert [len(rows) for rows in stop] == [0, 0, 0]
    assert [len(rows) for rows in start] == lengths
    assert abs(2 * sum(map(len, second)) - sum(lengths)) <= 2 * len(lengths)
    assert {rate for rows in second for rate in rows.rate} == {0.5}
    assert all(rows.head_mass.notna().all() for rows in by_head)
    assert [len(rows) for rows in only_a] == [lengths[0], 0, 0]
    assert [len(rows) for rows in nobody] == [0, 0, 0]
    assert [len(rows) for rows in everybody] == lengths
    assert all(rows.head_mass.isna().all() for rows in everybody)
    assert all([len(rows) for rows in one] == lengths for one in wrong), "nothing was changed"
    assert all(0 < rate <= 1 for rows in governed if len(rows) for rate in rows.rate)

    answers = {i: one["answer"] for i, one in enumerate(said)}
    failed = [i for i, answer in answers.items() if "error" in answer]
    assert failed == [8, 9, 10]
    assert answers[1]["recording"] is False and answers[2]["recording"] is True
    assert answers[len(CHANGES) - 1]["control"]["budget"] == 0.5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that opens vLLM's endpoints for control."""
    with serve(tmp_path, "--control") as started:
        yield started


def test_a_server_by_its_url_and_by_its_run_directory(server: Server) -> None:
    (worker,) = probe_answer("status", server.url)["processes"]
    assert (worker["recording"], worker["rate"]) == (True, 1.0)
    assert worker["run"] == str(server.run)
    probe_answer("set", server.url, "--label", "chosen", "--every", "2")
    time.sleep(FOLLOWED_S)
    _ask(server, "header", headers={"X-Driftscope-Label": "chosen"})
    _ask(server, "body", vllm_xargs={"driftscope_label": "chosen"})
    _ask(server, "other", headers={"X-Driftscope-Label": "other"})
    _ask(server, "unlabelled")

    processes = probe_answer("stop", str(server.run))["processes"]
    assert [p["answered"] for p in processes] == [True, True]
    assert {p["source"].split("-")[0]: p["recording"] for p in processes} == {
        "engine0": None,
        "worker0": False,
    }
    assert {tuple(p["control"]["labels"]) for p in processes} == {("chosen",)}
    _ask(server, "stopped", headers={"X-Driftscope-Label": "chosen"})
    probe_answer("start", str(server.run))
    probe_answer("set", str(server.run), "--all-labels", "--budget", "50%")
    (worker,) = probe_answer("status", server.url)["processes"]
    assert worker["control"] | {"revision": 0} == {
        "revision": 0,
        "labels": [],
        "every": None,
        "budget": 0.5,
        "per_head": False,
    }
    _ask(server, "all")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0
    trace = read_trace(server.run)
    assert trace.problems == ()
    requests = {_name(row["request"]): row for row in trace.request.to_pylist()}
    assert {name: row["label"] for name, row in requests.items()} == {
        "header": "chosen",
        "body": "chosen",
        "other": "other",
        "unlabelled": None,
        "stopped": "chosen",
        "all": None,
    }
    assert {name: row["traced"] for name, row in requests.items()} == {
        "header": True,
        "body": True,
        "other": False,
        "unlabelled": False,
        "stopped": True,
        "all": True,
    }
    drafted = trace.draft.to_pandas()
    drafted["name"] = [_name(each) for each in drafted.request]
    assert {"header", "body"} <= set(drafted.name) <= {"header", "body", "all"}
    assert set(drafted[drafted.name != "all"].rate) == {0.5}


def _ask(server: Server, name: str, **rest: Any) -> None:
    server.complete(
        name,
        prompt=load_prompts()[0].in_distribution,
        add_special_tokens=False,
        max_tokens=40,
        **rest,
    )


def _name(request: str) -> str:
    """Return the name in a request id: "cmpl-header-0-1a2b" -> "header"."""
    return request.split("-")[1]


def _rows_by_request(drafts: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(name).split("-")[0]: rows for name, rows in drafts.groupby("request")}

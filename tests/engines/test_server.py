"""`driftscope serve`: how users use it, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from support.command import probe_answer, run_command
from support.engine_process.serving import Server, serve_all

from driftscope.ingest.catalogue import ingest
from driftscope.telemetry.watch import FollowedEndpoint, view
from driftscope.trace.reader import Trace, read_trace
from driftscope.vocabulary import EngineName
from driftscope_lab.trio import load_prompts
from driftscope_probes.recorder import IDENTIFIERS_OFF

pytestmark = pytest.mark.vllm
LOST_AT_MOST_S = 1.0
ORPHANED_S = 20.0
"""Time that processes get to end after their parent was killed, in seconds."""
TRAFFIC_ROUNDS = 20
LABELS = ("label-0", "label-1")


def ask(server: Server, count: int, max_tokens: int) -> list[dict[str, Any]]:
    """Send `count` requests at once, each with an id and a label."""
    texts = [prompt.in_distribution for prompt in load_prompts()[:count]]

    def one(i: int) -> dict[str, Any]:
        return server.complete(
            f"req-{i}",
            prompt=texts[i],
            add_special_tokens=False,
            max_tokens=max_tokens,
            vllm_xargs={"driftscope_label": LABELS[i % 2]},
        )

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """One server for each way to end: one that records no identifiers, and one for two labels that
    does not open vLLM's endpoints for control."""
    options = {"sigint": (), "kill": ("--label", LABELS[0], "--label", LABELS[1])}
    environs = {"sigint": {"DRIFTSCOPE_IDENTIFIERS": "off"}}
    with serve_all(tmp_path_factory.mktemp("server"), options, environs) as started:
        yield started


def test_what_vllm_publishes_itself_is_read(servers: dict[str, Server], tmp_path: Path) -> None:
    """Its responses through `ingest`, and its metrics page through `watch --scrape`."""
    server = servers["kill"]
    answers = ask(server, 4, 40)
    told = [answer["metrics"]["speculative_decoding"] for answer in answers]
    rounds, accepted = (
        sum(each[name] for each in told) for name in ("num_spec_steps", "num_accepted_draft_tokens")
    )
    file = tmp_path / "responses.jsonl"
    file.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    reader, (figures,) = ingest(file)
    assert reader.name == "vllm-requests" and not figures.contradictions
    assert (figures.rounds, figures.accepted) == (rounds, accepted)
    seen = view(FollowedEndpoint(server.url, own=[EngineName.VLLM]).look())
    assert seen.rounds == rounds and seen.requests == len(answers)
    assert seen.length == pytest.approx(1 + accepted / rounds)
    assert [each.accepted for each in seen.depths] == pytest.approx(figures.marginal)
    assert seen.ttft_s is not None and seen.tpot_s is not None


def test_a_server_without_control_says_how_to_reach_it(servers: dict[str, Server]) -> None:
    server = servers["kill"]
    done = run_command("probe", "stop", server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "driftscope serve --control" in done.stderr
    assert "run directory" in done.stderr
    statuses = {p["source"][0]: p for p in probe_answer("status", str(server.run))["processes"]}
    assert statuses["w"]["control"]["every"] == 1
    for process in "we":
        assert tuple(statuses[process]["control"]["labels"]) == LABELS


@pytest.fixture(scope="module")
def interrupted(servers: dict[str, Server]) -> tuple[Trace, list[dict[str, Any]]]:
    """Trace and answers of a server that gets SIGINT while it answers, and ends well."""
    server = servers["sigint"]
    answers = ask(server, 4, 40)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(ask, server, 6, 200)
        time.sleep(1.0)
        server.process.send_signal(signal.SIGINT)
        answers += late.result(timeout=60)
        assert server.process.wait(60) == 0
    return read_trace(server.run), answers


def test_requests_are_recorded_and_sigint_loses_nothing(
    interrupted: tuple[Trace, list[dict[str, Any]]],
) -> None:
    trace, answers = interrupted
    assert trace.problems == ()
    requests = trace.request.to_pandas().set_index("request")
    assert len(requests) == len(answers) == 10
    assert set(requests.label) == set(LABELS)
    verify = trace.verify.to_pandas()
    accepted_by_name = []
    for name, rows in verify.groupby("request"):
        assert requests.loc[name, "output_tokens"] in (40, 200)
        accepted_by_name.append(rows.sort_values("step").accepted.tolist())
    theirs = [a["metrics"]["speculative_decoding"]["per_step_accepted"] for a in answers]
    assert sorted(accepted_by_name) == sorted(theirs)


def test_records_of_all_processes_join_by_the_same_hashes(
    interrupted: tuple[Trace, list[dict[str, Any]]],
) -> None:
    trace, answers = interrupted
    by_record = {
        record: set(getattr(trace, record).column("request").to_pylist())
        for record in ("draft", "verify", "request")
    }
    assert len({status.source.rpartition("-")[2] for status in trace.statuses}) == 2, "processes"
    assert len(by_record["request"]) == len(answers)
    assert by_record["draft"] == by_record["verify"] == by_record["request"]
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in by_record["request"])
    assert not [error for status in trace.statuses for error in status.errors]
    assert IDENTIFIERS_OFF in trace.manifest.notes


def test_kill_9_of_the_worker_leaves_a_readable_run(
    servers: dict[str, Server], tmp_path: Path
) -> None:
    server = servers["kill"]
    ask(server, 2, 20)
    thread = threading.Thread(target=lambda: _swallow(server), daemon=True)
    thread.start()
    time.sleep(3.0)
    (worker,) = [pid for pid, title in server.children().items() if "Worker" in title]
    os.kill(worker, signal.SIGKILL)
    killed_s = time.time()
    server.process.wait(90)
    report = tmp_path / "report.html"
    done = run_command("analyze", server.run, "-o", report)
    assert done.returncode == 0, done.stderr
    assert report.stat().st_size > 10_000
    trace = read_trace(server.run)
    worker_lines = [p for p in trace.problems if p.startswith("worker0")]
    assert len(worker_lines) == 1 and "killed" in worker_lines[0]
    assert killed_s - max(trace.draft.column("time_s").to_pylist()) < LOST_AT_MOST_S
    assert "killed" in done.stderr + done.stdout


@pytest.mark.nightly
def test_kill_9_of_the_api_server_leaves_the_others_as_without_the_probe(tmp_path: Path) -> None:
    environs = {"off": {"DRIFTSCOPE_DISABLE": "1"}}
    with serve_all(tmp_path, {"on": (), "off": ()}, environs) as started:
        alive: dict[str, list[str]] = {}
        for name, server in started.items():
            children = server.children()
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait(30)
            time.sleep(ORPHANED_S)
            lasting = [pid for pid in children if Path(f"/proc/{pid}").exists()]
            alive[name] = sorted(re.sub(r"\d+", "N", children[pid]) for pid in lasting)
            for pid in lasting:
                os.kill(pid, signal.SIGKILL)
    assert alive["on"] == alive["off"]


def _swallow(server: Server) -> None:
    """Send traffic until the kill interrupts it."""
    with contextlib.suppress(OSError, HTTPException, ValueError):
        for _ in range(TRAFFIC_ROUNDS):
            ask(server, 6, 400)

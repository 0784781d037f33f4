"""`driftscope serve` with a real server: how it is used, changed, watched and ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.collector import ERROR, HANG, OK, http
from support.command import probe_answer, run_command
from support.engine_process.job import Job, K, Outcome, engine, run_job, run_jobs
from support.engine_process.scenes import run_scene
from support.engine_process.serving import Server, serve, serve_all
from support.waiting import free_port, until
from verification.truth import V2

from driftscope.ingest.catalogue import ingest
from driftscope.pipeline import summarise
from driftscope.telemetry.watch import FollowedEndpoint, view
from driftscope.trace.manifest import BLOCK, EXACT, SIMULATED, WAS_SIMULATED
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
    """One server for each way to end: one that records no identifiers, and one for two labels,
    without digests and regions."""
    options = {"sigint": (), "kill": ("--label", LABELS[0], "--label", LABELS[1])}
    off = dict.fromkeys(("DRIFTSCOPE_PROMPT_DIGESTS", "DRIFTSCOPE_REGIONS"), "off")
    environs = {"sigint": {"DRIFTSCOPE_IDENTIFIERS": "off"}, "kill": off}
    with serve_all(tmp_path_factory.mktemp("server"), options, environs) as started:
        yield started


def test_what_vllm_publishes_itself_is_read(servers: dict[str, Server], tmp_path: Path) -> None:
    """Its responses through `ingest`, and its metrics page through `watch --engine vllm`."""
    server = servers["kill"]
    answers = ask(server, 4, 40)
    told = [answer["metrics"]["speculative_decoding"] for answer in answers]
    rounds, accepted = (
        sum(sums[name] for sums in told) for name in ("num_spec_steps", "num_accepted_draft_tokens")
    )
    file = tmp_path / "responses.jsonl"
    file.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    reader, (figures,) = ingest(file)
    assert reader.name == "vllm-requests" and not figures.contradictions
    assert (figures.rounds, figures.accepted) == (rounds, accepted)
    seen = view(FollowedEndpoint(server.url, own=EngineName.VLLM).look())
    assert seen.rounds == rounds and seen.requests == len(answers)
    assert seen.length == pytest.approx(1 + accepted / rounds)
    assert [depth.accepted for depth in seen.depths] == pytest.approx(figures.marginal)
    assert seen.ttft_s is not None and seen.tpot_s is not None


def test_a_server_records_the_labels_that_it_was_started_with(servers: dict[str, Server]) -> None:
    server = servers["kill"]
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


FOLLOWED_S = 2.0
"""Time, in seconds, after which the engine core has certainly applied a change made in the
worker."""


def test_a_server_by_its_run_directory(servers: dict[str, Server]) -> None:
    server = servers["kill"]
    worker = _worker(server)
    assert (worker["recording"], worker["rate"]) == (True, 1.0)
    probe_answer("set", str(server.run), "--label", "chosen", "--every", "2")
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
    assert _worker(server)["control"] | {"revision": 0} == {
        "revision": 0,
        "labels": [],
        "every": None,
        "budget": 0.5,
    }
    _ask(server, "all")
    until(lambda: "all" in _requests(read_trace(server.run)))
    trace = read_trace(server.run)
    assert all("is still recording" in problem for problem in trace.problems)
    assert {name: (row["label"], row["traced"]) for name, row in _requests(trace).items()} == {
        "header": ("chosen", True),
        "body": ("chosen", True),
        "other": ("other", False),
        "unlabelled": (None, False),
        "stopped": ("chosen", True),
        "all": (None, True),
    }
    switched_off = ("prompt_digest", "conversation", "region_starts")
    assert {row[name] for row in trace.request.to_pylist() for name in switched_off} == {None}
    drafted = trace.draft.to_pandas()
    drafted["name"] = [_name(name) for name in drafted.request]
    drafted = drafted[drafted.name != "req"]
    assert {"header", "body"} <= set(drafted.name) <= {"header", "body", "all"}
    assert set(drafted[drafted.name != "all"].rate) == {0.5}


def _requests(trace: Trace) -> dict[str, dict[str, Any]]:
    """Return the rows of the requests that `_ask` sent, by name."""
    rows = {_name(row["request"]): row for row in trace.request.to_pylist()}
    return {name: row for name, row in rows.items() if name != "req"}


def _worker(server: Server) -> dict[str, Any]:
    processes = probe_answer("status", str(server.run))["processes"]
    (worker,) = (process for process in processes if process["source"].startswith("worker"))
    return worker


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


def test_kill_9_of_the_worker_leaves_a_readable_run(
    servers: dict[str, Server], tmp_path: Path
) -> None:
    server = servers["kill"]
    probe_answer("set", str(server.run), "--every", "1")
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


@pytest.mark.parametrize("runner", [pytest.param("v1", marks=pytest.mark.nightly), "v2"])
def test_changes_of_an_llm(tmp_path: Path, runner: str) -> None:
    job = Job(drafter="eagle31", runner=runner, probe={"EVERY": "1"})
    said = run_scene("control", job, tmp_path)
    assert all(one["tokens"] == said[0]["tokens"] for one in said), "control changes no output"

    trace = read_trace(tmp_path / "run")
    assert trace.problems == ()
    drafts = trace.draft.to_pandas().groupby("request")
    rounds = {str(name).split("-")[0]: rows for name, rows in drafts}
    status, stop, start, second, only_a, nobody, everybody, governed = (
        [rounds.get(name, pd.DataFrame()) for name in one["ids"]] for one in said
    )
    lengths = [len(rows) for rows in status]
    assert min(lengths) > 0
    assert [len(rows) for rows in stop] == [0, 0, 0]
    assert [len(rows) for rows in start] == lengths
    assert abs(2 * sum(map(len, second)) - sum(lengths)) <= 2 * len(lengths)
    assert {rate for rows in second for rate in rows.rate} == {0.5}
    assert [len(rows) for rows in only_a] == [lengths[0], 0, 0]
    assert [len(rows) for rows in nobody] == [0, 0, 0]
    assert [len(rows) for rows in everybody] == lengths
    assert all(0 < rate <= 1 for rows in governed if len(rows) for rate in rows.rate)

    answers = [one["answer"] for one in said]
    assert answers[1]["recording"] is False and answers[2]["recording"] is True
    assert answers[-1]["control"]["budget"] == 0.5


TOKENS = 24
REFUSES, DIED = "refuses", "died"
"""Collector states: not started yet, and no longer running."""
REQUESTS = 5 * 4 + 1
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _samples(port: int) -> list[tuple[str, float]]:
    """Return name and value of every series as Prometheus counts them: buckets, sums and counts."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return [(sample.name, sample.value) for family in families for sample in family.samples]


def _total(port: int, name: str) -> float:
    return sum(value for sample, value in _samples(port) if sample == name)


def test_output_is_untouched_and_counts_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    port, otlp = free_port(), free_port()
    options = (
        "--otlp",
        f"http://127.0.0.1:{otlp}",
        "--prometheus",
        f"127.0.0.1:{port}",
        "--otlp-traces-endpoint",
        "http://127.0.0.1:9/v1/traces",
    )
    with serve(tmp_path, *options) as server:
        texts = {REFUSES: [_text(a) for a in ask(server, 4, TOKENS)]}
        with http(port=otlp) as first:
            for behaviour in (OK, HANG, ERROR):
                first.behaviour = behaviour
                texts[behaviour] = [_text(a) for a in ask(server, 4, TOKENS)]
                asked = first.asked
                until(lambda asked=asked: first.asked > asked)
        texts[DIED] = [_text(a) for a in ask(server, 4, TOKENS)]
        assert all(texts[name] == texts[OK] for name in texts)
        with http(port=otlp) as collector:
            server.complete(
                "traced", prompt="def f(", max_tokens=4, headers={"traceparent": PARENT}
            )
            until(lambda: _total(port, "driftscope_requests_total") == REQUESTS)
            until(lambda: bool(collector.metrics))
            scraped = _total(port, "driftscope_rounds_completed_total")
            assert 200 < len(_samples(port)) < 500
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(60) == 0
        trace = read_trace(server.run)
        summary = summarise(trace, "run")
        assert trace.problems == ()
        rounds = collector.value("driftscope.rounds.completed")
        assert rounds == scraped == summary.rounds
        for depth in range(1, 9):
            reached = collector.value("driftscope.rounds.reached", depth=depth)
            assert reached == sum(summary.acceptance.histogram[depth:])
        assert collector.value("driftscope.requests") == summary.requests == REQUESTS
        assert collector.value("driftscope.chains.recorded") == summary.recording.chains
        assert collector.value("driftscope.export.attempts", outcome="failure") > 0
        assert collector.value("driftscope.export.errors") == 0
        assert collector.value("gen_ai.server.request.duration") == REQUESTS
        for (name, labels), point in collector.points().items():
            having = dict(labels)
            assert having["gen_ai.request.model"] == "tiny", name
            assert having["gen_ai.provider.name"] == "vllm", name
            assert having.get("gen_ai.operation.name", "text_completion") == "text_completion"
            short = {key.rpartition(".")[2]: value for key, value in labels}
            if name == "driftscope.attention.mass" and short["class"] == "self":
                assert summary.attention.self_mass is not None
                expected = summary.attention.self_mass[int(short["depth"]) - 1]
                assert point.sum / point.count == pytest.approx(expected, abs=1e-4)
        spans = [*first.all_spans(), *collector.all_spans()]
        assert len(spans) == REQUESTS
        (traced,) = [s for s in spans if s.trace_id.hex() == PARENT.split("-")[1]]
        assert traced.parent_span_id.hex() == PARENT.split("-")[2]
        assert traced.name == "text_completion tiny"


def _text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


RATES = [0.95, 0.9, 0.85, 0.8, 0.8, 0.8, 0.8, 0.8]


def _job(rule: str) -> Job:
    job = Job(
        drafter="eagle31", requests=4, sampling={"max_tokens": 24}, probe={"EVERY": "1"}, **V2
    )
    drawn = {"synthetic_acceptance_rates": RATES} if rule == "synthetic" else {}
    speculation = {**engine(job)["speculative_config"], "rejection_sample_method": rule, **drawn}
    return replace(job, llm={"speculative_config": speculation})


@pytest.fixture(scope="module")
def rules(
    outcomes: dict[str, Outcome], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    folder: Path = tmp_path_factory.mktemp("rules")
    v2 = {rule: _job(rule) for rule in ("synthetic", "block")}  # vLLM's V1 has none on a CPU
    return {"standard": outcomes["v2 eagle31"], **run_jobs(v2, folder)}


def test_the_rule_is_in_the_manifest(rules: dict[str, Outcome]) -> None:
    found = {name: read_trace(rules[name].run).manifest.verification for name in rules}
    assert found == {"standard": EXACT, "synthetic": SIMULATED, "block": BLOCK}


def test_commands_say_that_acceptance_was_simulated(
    rules: dict[str, Outcome], tmp_path: Path
) -> None:
    run, other = rules["synthetic"].run, rules["standard"].run
    rounds = [row for row in read_trace(run).verify.to_pylist() if row["verified"]]
    assert sum(row["accepted"] for row in rounds) > 0.5 * K * len(rounds), "as drawn"
    analyzed = run_command("analyze", run, "-o", tmp_path / "report.html")
    assert WAS_SIMULATED in analyzed.stdout.lower() and analyzed.returncode == 0
    assert "tokens (" not in analyzed.stdout, "no answer about acceptance"
    checked = run_command("check", run, "--fail-on", "high", "--require", "k = 8")
    assert (checked.returncode, checked.stdout.count(WAS_SIMULATED)) == (4, 2)
    compared = run_command("compare", other, run)
    assert compared.returncode == 4 and WAS_SIMULATED in compared.stderr
    other_rule = run_command("compare", other, rules["block"].run)
    assert "rule of verification (exact against block)" in " ".join(other_rule.stdout.split())


@pytest.mark.filterwarnings("ignore")  # of what vLLM imports
def test_the_drafts_that_vllm_admits_are_those_that_the_scheduler_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM admits the 6 likeliest of 12 draft tokens of three requests. A server with adaptive
    verification needs a GPU; what it computes for a step does not."""
    import torch
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    from driftscope_probes.vllm.runner_v2 import admitted_drafts

    monkeypatch.setattr(
        adaptive, "_assign_draft_token_budget_compiled", adaptive._assign_draft_token_budget
    )
    manager = object.__new__(adaptive.AdaptiveVerificationManager)
    starts, capacity = torch.zeros(4, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
    manager.num_speculative_steps, manager.num_bonus_tokens = 4, 1
    manager.query_start_loc, manager._cu_num_logits = starts, torch.empty_like(starts)
    manager._batch_draft_capacity, manager._num_non_draft_tokens = capacity, capacity.clone()
    manager._confidence_probs = torch.tensor([[0.9] * 4, [0.2] * 4, [0.9, 0.9, 0.1, 0.1]])
    manager._batch_budget = dict.fromkeys("abc", 4), dict.fromkeys("abc", 1), 6
    ends, _, _ = manager.reallocate_drafts([*"abc"], torch.arange(3))
    state = SimpleNamespace(num_new_sampled_tokens_per_step=1)
    runner = SimpleNamespace(adaptive_verification=manager, model_state=state)
    batch = SimpleNamespace(cu_num_logits=ends, num_reqs=3)
    told = admitted_drafts(runner, batch)
    assert told is not None and told.tolist() == [4, 0, 2]
    runner.adaptive_verification = None
    assert admitted_drafts(runner, batch) is None


STRICT = {
    "DRIFTSCOPE_EVERY='often': give a whole number from 1": "often",
    "already holds a run": "1",
}
"""Error of a strict start -> the value of DRIFTSCOPE_EVERY that the start was given."""


@pytest.mark.parametrize("said", STRICT)
def test_an_engine_that_is_strict_does_not_start_and_says_why(said: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").touch()
    job = Job(drafter="eagle31", probe={"EVERY": STRICT[said], "STRICT": "1"})
    with pytest.raises(RuntimeError, match="engine ended with 1"):
        run_job(job, tmp_path)
    assert said in (tmp_path / "log.txt").read_text(errors="replace")

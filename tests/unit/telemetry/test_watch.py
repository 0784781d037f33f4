"""Following an engine from outside: a run that is being written, and a scrape endpoint."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from support.hostile.server import METRICS, Server, hostile_server
from support.runs import Spec, manifest, rows, write_run
from support.waiting import free_port, no_hang, until
from typer.testing import CliRunner

from driftscope.boundary.http_peer import AnswerLimits
from driftscope.cli.app import app
from driftscope.errors import NotATraceError, TelemetryError, UnknownKindError, UsageError
from driftscope.pipeline import summarise
from driftscope.telemetry import engine, watch
from driftscope.telemetry.prometheus import EngineName
from driftscope.telemetry.settings import PROMETHEUS, settings_from
from driftscope.telemetry.watch import Depth, FollowedEndpoint, FollowedRun, follow, outliers, view
from driftscope.trace.reader import read_trace
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import create_run

PAGE = Path(__file__).parents[2] / "verification" / "cases" / "inputs" / "13-ray.prom"
LLAMACPP_PAGE = (
    "llamacpp:spec_decode_num_drafts_total {rounds}\n"
    "llamacpp:spec_decode_num_accepted_tokens_total {accepted}\n"
)
SPEC = Spec(requests=6, undrafted=("k_zero",))
ROUNDS = SPEC.requests * SPEC.rounds


def test_a_run_that_is_being_written(tmp_path: Path) -> None:
    """Each row counts once: while it is in a stream, and when that was sealed."""
    create_run(tmp_path / "run", manifest(SPEC))
    writer = TraceWriter(tmp_path / "run", source="worker0-1", options=WriterOptions(flush_s=0.02))
    followed = FollowedRun(tmp_path / "run")
    assert view(followed.look()).rounds == 0 and not followed.has_ended
    for times in (1, 2):
        for row in rows(SPEC):
            assert writer.put(row)
        until(lambda times=times: view(followed.look()).rounds == times * ROUNDS)
    assert not followed.has_ended
    writer.close()
    seen = view(followed.look())
    assert followed.has_ended and seen.rounds == 2 * ROUNDS
    assert seen.chains == 2 * (ROUNDS + SPEC.requests)


def test_figures_are_those_of_analyze(tmp_path: Path) -> None:
    write_run(tmp_path / "run", SPEC)
    line = CliRunner().invoke(app, ["watch", str(tmp_path / "run"), "--json"]).output
    figures = json.loads(line)  # one line, as the run is over
    assert figures["rounds"] == ROUNDS and figures["over"] is True
    summary = summarise(read_trace(tmp_path / "run"), "run")
    seen = view(FollowedRun(tmp_path / "run").look())
    assert seen.rounds == summary.rounds and seen.k == SPEC.k
    assert seen.length == pytest.approx(summary.acceptance.mean_length)
    assert [d.accepted for d in seen.depths] == pytest.approx(summary.acceptance.marginal)
    assert [d.masses["self"] for d in seen.depths] == pytest.approx(summary.attention.self_mass)
    assert [d.fed_rms for d in seen.depths] == pytest.approx(summary.hidden.fed_rms, rel=1e-6)
    assert seen.rejected == pytest.approx(summary.fallback.rejected_share)
    assert sum(seen.undrafted.values()) == pytest.approx(summary.fallback.undrafted_share)
    assert seen.tpot_s == pytest.approx(summary.latency.tpot_s)
    write_run(tmp_path / "other", replace(SPEC, heads=0))
    seen = view(FollowedRun(tmp_path / "other").look())
    assert all(d.masses["self"] is None for d in seen.depths), "not measured is no zero"
    assert seen.depths[0].top1 is not None and seen.rate is None


def _figures(depth: Depth) -> dict[str, float | None]:
    plain = asdict(depth)
    return {**plain.pop("masses"), **plain}


def test_an_endpoint_says_the_same_as_the_run(tmp_path: Path) -> None:
    port = free_port()
    settings = settings_from({PROMETHEUS: f"127.0.0.1:{port}"})
    assert settings is not None
    create_run(tmp_path / "run", manifest(SPEC))
    writer = TraceWriter(tmp_path / "run", source="engine0-1", options=WriterOptions(flush_s=0.02))
    speaker = engine.EngineTelemetry(tmp_path / "run", writer.source, settings, writer.status)
    writer.subscribe(speaker.on_batches)
    for row in rows(SPEC):
        assert writer.put(row)
    followed = FollowedEndpoint(f"http://127.0.0.1:{port}")
    whole = ROUNDS + SPEC.requests
    until(lambda: view(followed.look()).chains == whole)
    there, here = view(followed.look()), view(FollowedRun(tmp_path / "run").look())
    assert there.rounds == here.rounds == ROUNDS and here.chains == whole
    for a, b in zip(there.depths, here.depths, strict=True):
        # Sums of the same rows in other batches differ in their last digit.
        assert _figures(a) == pytest.approx(_figures(b))
    writer.close()
    speaker.close()
    with pytest.raises(TelemetryError, match="no metrics there"):
        followed.look()


def _watched(*words: object) -> str:
    """Return what `watch` prints of one look."""
    done = CliRunner().invoke(app, ["watch", *map(str, words), "--once"])
    assert done.exit_code == 0, done.output
    return done.output


@contextmanager
def _serving(page: str) -> Iterator[str]:
    """Serve a page of metrics, and yield its URL."""
    with hostile_server(page=lambda peer, _: peer.answer(page)) as server:
        yield server.url("page")


def test_an_engines_own_page_shows_its_acceptance() -> None:
    page = LLAMACPP_PAGE.format(rounds=8, accepted=10) + (
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 6\n'
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 4\n'
    )
    with _serving(page) as url:
        said, line = _watched(url), _watched(url, "--json")
        with pytest.raises(UnknownKindError, match="is of no known kind: no metrics of") as other:
            follow([url], EngineName.VLLM)
    for words in ("llama.cpp's own metrics", "acceptance length  2.25", "75.0%", "50.0%"):
        assert words in said
    assert max(map(len, said.splitlines())) <= 80
    assert json.loads(line)["engine"] == "llama.cpp"
    assert other.value.unknown.not_recognised == ("vLLM",)


def test_a_page_says_what_its_length_leaves_out() -> None:
    idle = "sglang:spec_accept_length 1.0\nsglang:num_running_reqs 0.0\n"
    drafts = (
        "vllm:spec_decode_num_drafts_total {0}\nvllm:spec_decode_num_accepted_tokens_total {0}\n"
    )
    pages = (idle, *(drafts.format(n) + "vllm:generation_tokens_total 1000\n" for n in (20, 490)))
    printed = list[str]()
    for page in pages:
        with _serving(page) as url:
            printed.append(
                " ".join(CliRunner().invoke(app, ["watch", url, "--once"]).output.split())
            )
    assert "look again while requests run" in printed[0] and "to find out why" not in printed[0]
    assert "rounds with a draft, which yield 4% of the output tokens" in printed[1]
    assert "rounds with a draft" not in printed[2]


def _replicas(
    draw: np.random.Generator, lengths: Sequence[float], rounds: int
) -> dict[str, tuple[float, int]]:
    """Return lengths of replicas whose requests have 40 rounds each and differ among themselves."""
    out = {}
    for number, length in enumerate(lengths):
        chance = 1 - 1 / length
        requests = max(rounds // 40, 1)
        own = draw.beta(48 * chance, 48 * (1 - chance), requests) if chance else np.zeros(requests)
        accepted = np.minimum(draw.geometric(np.maximum(1 - own[:, None], 0.02), (requests, 40)), 8)
        out[f"engine {number}"] = (float(accepted.mean()), requests * 40)
    return out


@pytest.mark.parametrize("rounds", [40, 400, 4000])
def test_a_replica_is_named_if_it_differs_and_healthy_ones_are_not(rounds: int) -> None:
    """8 replicas at 3 tokens a round; one at 1.0, at 2, and none."""
    draw, pages = np.random.default_rng(7), 200
    named = {
        low: [outliers(_replicas(draw, [3.0] * 7 + [low], rounds)) for _ in range(pages)]
        for low in (3.0, 2.0, 1.0)
    }
    assert sum(bool(found) for found in named[3.0]) <= 0.03 * pages
    for many in (2, 64):
        healthy = [outliers(_replicas(draw, [3.0] * many, rounds)) for _ in range(pages // 4)]
        assert sum(map(bool, healthy)) <= 0.04 * len(healthy)
    assert all(set(found) == {"engine 7"} for found in named[1.0])
    if rounds >= 4000:
        assert sum(set(found) == {"engine 7"} for found in named[2.0]) >= 0.9 * pages


def test_a_replica_that_differs_is_said_with_its_numbers() -> None:
    page = {"engine 0": (2.33, 150), "engine 1": (2.64, 150), "engine 5": (1.08, 24)}
    said = "accepts 1.08 tokens a round in 24 rounds; its 2 siblings accept 2.33 to 2.64, median"
    assert outliers(page)["engine 5"].startswith(said) and len(outliers(page)) == 1
    assert list(outliers({**page, "engine 5": (5.9, 400)})) == ["engine 5"]
    of_models = {f"model_name {name == 'engine 5'}, {name}": own for name, own in page.items()}
    assert outliers(of_models) == {}
    assert outliers({"dp_rank 0": (3.1, None), "dp_rank 1": (2.5, None)}) == {}
    gauges = {"dp_rank 0": (3.1, None), "dp_rank 1": (1.02, None)}
    said = "accepts 1.02 tokens a round in its last log interval; its sibling accepts 3.10"
    assert outliers(gauges) == {"dp_rank 1": said}


def test_a_page_at_one_says_what_that_means_and_what_to_type() -> None:
    page = "sglang:spec_accept_length 1.0\nsglang:spec_num_steps 3.0\n"
    with _serving(page + "sglang:num_running_reqs 4.0\n") as url:
        busy = _watched(url)
    with _serving(page.replace("1.0", "2.9") + "sglang:spec_verify_calls_total 40\n") as url:
        healthy = _watched(url)
    words = " ".join(busy.split())
    assert "nothing is accepted: all 3 draft tokens of each round are rejected" in words
    assert "4 requests are running" in words and "K = 3" in words
    assert "driftscope inspect DRAFTER --target TARGET" in words
    assert "nothing is accepted" not in healthy and "inspect" not in healthy
    assert "acceptance length  2.90" in healthy and "40 rounds" in healthy
    assert "no acceptance by position" in healthy


def test_a_run_at_one_names_the_command_that_finds_the_cause(tmp_path: Path) -> None:
    dead = (0.0,) * len(SPEC.conditional)
    for requests, said in ((6, True), (1, False)):
        spec = replace(SPEC, requests=requests, rounds=10, conditional=dead, undrafted=())
        run = write_run(tmp_path / f"run{requests}", spec)
        output = _watched(run)
        assert ("nothing is accepted" in output) is said, "10 rounds may be chance"
        assert ("driftscope analyze" in output) is said


def test_replicas_of_a_page_are_listed_the_worst_first() -> None:
    with _serving(PAGE.read_text()) as url:
        lines, document = _watched(url).splitlines(), json.loads(_watched(url, "--json"))
    listed = [line.split() for line in lines if line.startswith(("engine ", "all 8 "))]
    assert [words[1] for words in listed][1:] == [*"56271034", "8"]
    assert " ".join(listed[0]).startswith("engine 5 accepts 1.08 tokens a round in 24 rounds; its")
    assert any("dashboards --engine vllm -o monitoring" in line for line in lines)
    assert document["replicas"][0] == {"replica": "engine 5", "rounds": 24, "length": 1 + 2 / 24}


def test_pages_of_several_replicas_are_one_screen_the_worst_first() -> None:
    healthy = LLAMACPP_PAGE.format(rounds=4000, accepted=6000)
    with _serving(healthy) as one, _serving(LLAMACPP_PAGE.format(rounds=400, accepted=0)) as other:
        lines = _watched(one, other).splitlines()
        document = json.loads(_watched(one, other, "--json"))
    assert lines[0].startswith("2 servers") and "4,400 rounds" in lines[1]
    names = [replica["replica"] for replica in document["replicas"]]
    assert [name.removeprefix("instance ") in one for name in names] == [False, True]
    assert any("accepts 1.00 tokens a round in 400 rounds; its sibling" in line for line in lines)


def test_an_endpoint_of_something_else_is_said(tmp_path: Path) -> None:
    """Also among replicas; and a run has no page to scrape."""
    page = "# TYPE vllm:num_requests gauge\nvllm:num_requests 1\n"
    with _serving(page) as url, _serving(LLAMACPP_PAGE.format(rounds=40, accepted=10)) as well:
        with pytest.raises(UnknownKindError, match="serve --prometheus PORT"):
            follow([url])
        with pytest.raises(UnknownKindError, match=url):
            follow([well, url])
    with pytest.raises(NotATraceError):
        follow([str(tmp_path / "nothing")])
    with pytest.raises(UsageError, match="is not a URL"):
        follow([str(write_run(tmp_path / "run", SPEC))], EngineName.VLLM)


def test_the_screen_fits_into_80_columns(tmp_path: Path) -> None:
    k, reasons = 16, ("k_zero", "context_limit", "structured_output", "token_budget")
    spec = replace(SPEC, k=k, conditional=(0.8,) * k, undrafted=reasons)
    write_run(tmp_path / "run", spec)
    lines = _watched(tmp_path / "run").splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("depth  accepted") for line in lines)
    assert sum(line.strip().split(" ")[0].isdigit() for line in lines) == k


pytestmark = pytest.mark.process

TAME = {"elsewhere", "no-labels", "bucket-le-word"}
"""Odd, and yet figures."""
OF_ANY_PEER = {
    *("byte-by-byte", "slow-head", "continues", "broken-chunks", "short-body", "short-gzip"),
    *("hangs-up", "no-http", "odd-coding", "many-headers", "redirect-loop"),
}
"""Faults below the page, which tests/unit/boundary/test_http_peer.py has."""
SECONDS = 1.0
ROOM_KB = 300 << 10
"""Most memory that reading a page of the largest size may add, in KiB."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hostile_server() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LIMITS", AnswerLimits(seconds=SECONDS, octets=watch.LIMITS.octets))


@pytest.mark.parametrize("behaviour", sorted(METRICS.keys() - TAME - OF_ANY_PEER))
def test_one_line_in_time(server: Server, behaviour: str) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with no_hang(), pytest.raises((TelemetryError, UnknownKindError)) as caught:
        view(watch.FollowedEndpoint(server.url(behaviour)).look())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < ROOM_KB
    message = str(caught.value)
    assert message.isprintable() and len(message) < 500, message


@pytest.mark.parametrize("behaviour", sorted(TAME))
def test_odd_figures_are_figures(server: Server, behaviour: str) -> None:
    seen = view(watch.FollowedEndpoint(server.url(behaviour)).look())
    assert seen.rounds == 10 and seen.k == 0
    assert set(seen.undrafted) <= {"unknown"}


def test_a_password_is_sent_and_shown_nowhere(server: Server) -> None:
    url = server.url("elsewhere", user="me:s3cret-word")
    watch.FollowedEndpoint(url)
    assert server.asked[-1].headers["authorization"] == "Basic bWU6czNjcmV0LXdvcmQ="
    for behaviour in ("silent", "raw-reason", "k-nan", "hangs-up"):
        with pytest.raises(TelemetryError) as caught:
            watch.FollowedEndpoint(server.url(behaviour, user="me:s3cret-word")).look()
        assert "s3cret" not in str(caught.value) and "me:" not in str(caught.value)


def test_nobody_is_sent_elsewhere(server: Server) -> None:
    assert server.elsewhere is not None
    with pytest.raises(TelemetryError, match=r"redirects \(HTTP 307\) to http://127"):
        watch.FollowedEndpoint(server.url("redirect"))
    assert server.elsewhere.asked == []

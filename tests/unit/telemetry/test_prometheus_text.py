"""Pages of metrics: driftscope's own, written and read back, and engines' own."""

from __future__ import annotations

import socketserver
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from support.waiting import no_hang

from driftscope.boundary.bounds import MAX_COUNT, MAX_K
from driftscope.telemetry import instruments as i
from driftscope.telemetry import prometheus
from driftscope.telemetry.instruments import Tally
from driftscope.telemetry.prometheus import (
    ENGINES,
    BadPageError,
    EngineName,
    EnginePage,
    families,
    page_of_samples,
    points_on,
    samples_of_engine,
)
from driftscope.telemetry.watch import view


def _page(text: str) -> EnginePage:
    found = samples_of_engine(text)
    assert found is not None
    return page_of_samples(*found)


def test_an_endpoint_that_does_not_stop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over, stopped = threading.Event(), socketserver.BaseServer.shutdown

    def hanging(server: socketserver.BaseServer) -> None:
        over.wait(60)
        stopped(server)

    monkeypatch.setattr(socketserver.BaseServer, "shutdown", hanging)
    monkeypatch.setattr(prometheus, "STOP_S", 0.1)
    stop = prometheus.serve(SimpleNamespace(snapshot=dict, identity=bool), "127.0.0.1", 0)
    with no_hang():
        stop()
    over.set()


VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 100.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 150.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 90.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 7.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 1.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.4
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 8.0
vllm:request_time_per_output_token_seconds_sum{engine="0",model_name="m"} 0.08
vllm:request_time_per_output_token_seconds_count{engine="0",model_name="m"} 8.0
""" + "".join(
    "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    f'{{engine="{engine}",model_name="m",position="{position}"}} {accepted:.1f}\n'
    for engine, counts in enumerate(((80, 45, 25), (60, 30, 0)))
    for position, accepted in enumerate(counts)
)
SGLANG = """sglang:spec_accept_length{dp_rank="0",model_name="m",tp_rank="0"} 2.5
sglang:spec_accept_length{dp_rank="1",model_name="m",tp_rank="0"} 3.5
sglang:spec_accept_length{dp_rank="0",model_name="m",tp_rank="1"} 2.5
sglang:spec_num_steps{dp_rank="0",model_name="m",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="0",model_name="m",tp_rank="0"} 4.0
sglang:spec_accept_rate{dp_rank="0",model_name="m",tp_rank="0"} 0.7
sglang:spec_verify_calls_total{engine_type="unified",model_name="m"} 40.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 12.5
sglang:time_to_first_token_seconds_count{model_name="m"} 50.0
"""
TRTLLM = """trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 33.0
trtllm_spec_decode_drafted_tokens_total{model_name="m",token_position="0"} 30.0
trtllm_spec_decode_drafted_tokens_total{model_name="m",token_position="1"} 30.0
trtllm_spec_decode_accepted_tokens_total{model_name="m",token_position="0"} 24.0
trtllm_spec_decode_accepted_tokens_total{model_name="m",token_position="1"} 9.0
trtllm_request_success_total{finished_reason="stop",model_name="m"} 3.0
"""
LLAMACPP = """llamacpp:spec_decode_num_drafts_total 8
llamacpp:spec_decode_num_draft_tokens_total 24
llamacpp:spec_decode_num_accepted_tokens_total 10
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1
llamacpp:n_decode_total 1200
"""
LMDEPLOY = LLAMACPP.replace("llamacpp", "lmdeploy")


@pytest.mark.parametrize(
    ("text", "engine", "rounds", "length", "marginal"),
    [
        # 2 engines: 1 + (150 + 90) / 200; (80 + 60) / 200, (45 + 30) / 200, 25 / 200.
        (VLLM, EngineName.VLLM, 200, 2.2, [0.7, 0.375, 0.125]),
        # A round drafts its first position: 1 + 33 / 30; 24 / 30, 9 / 30.
        (TRTLLM, EngineName.TRTLLM, 30, 2.1, [0.8, 0.3]),
        (LLAMACPP, EngineName.LLAMACPP, 8, 2.25, [0.75, 0.375, 0.125]),
        (LMDEPLOY, EngineName.LMDEPLOY, 8, 2.25, [0.75, 0.375, 0.125]),
        # Rates are over the rounds that drafted a depth: 9 / 12, and unknown where none is counted.
        (TRTLLM.replace('"1"} 30.0', '"1"} 12.0'), EngineName.TRTLLM, 30, 2.1, [0.8, 0.75]),
        (LLAMACPP.replace(" 24\n", " 16\n"), EngineName.LLAMACPP, 8, 2.25, [0.75, None, None]),
    ],
)
def test_counters_are_the_figures_of_driftscope(
    text: str, engine: EngineName, rounds: int, length: float, marginal: list[float]
) -> None:
    page = _page(text)
    seen = view(page.points)
    assert page.metrics is ENGINES[engine] and page.length is None
    assert seen.rounds == rounds and seen.k == len(marginal)
    assert seen.length == pytest.approx(length)
    assert [depth.accepted for depth in seen.depths] == pytest.approx(marginal)
    assert seen.rejected == pytest.approx(1 - marginal[0])
    assert seen.chains == 0 and seen.depths[0].fed_rms is None
    if engine is EngineName.VLLM:
        assert (seen.requests, seen.ttft_s, seen.tpot_s) == pytest.approx((8, 0.05, 0.01))


def test_a_counter_may_lack_its_suffix() -> None:
    assert view(_page(LLAMACPP.replace("_total", "")).points) == view(_page(LLAMACPP).points)


def test_a_collection_of_our_own_pages_is_refused() -> None:
    """As Prometheus federates them: figures of one engine would replace another's."""
    one = 'driftscope_rounds_completed_total{{instance="{}"}} 3\n'
    with pytest.raises(BadPageError, match="more than one engine"):
        points_on(one.format("a") + one.format("b"))


def test_a_window_is_the_difference_of_two_looks() -> None:
    later = LLAMACPP.replace("_total 8", "_total 10").replace("accepted_tokens_total 10", "x 0")
    later += "llamacpp:spec_decode_num_accepted_tokens_total 16\n"
    seen = view(_page(later).points, _page(LLAMACPP).points)
    assert seen.rounds == 2 and seen.length == pytest.approx(1 + 6 / 2)


def test_sglang_publishes_a_length_and_no_position() -> None:
    """Data-parallel replicas are averaged; tensor-parallel ranks repeat each other."""
    page = _page(SGLANG)
    seen = view(page.points)
    assert page.length == pytest.approx(3.0)
    assert seen.rounds == 40 and seen.k == 3 and seen.length is None and page.running == 4
    assert all(depth.accepted is None for depth in seen.depths)
    assert seen.rejected is None and seen.ttft_s == pytest.approx(0.25)
    assert _page(SGLANG.replace("2.5", "0.0").replace("3.5", "0.0")).length is None, "idle"


_GAUGE = "sglang:spec_accept_length{{{}}} {}\n"
_COUNTERS = """{0}spec_decode_num_drafts_total{{{1}}} 100
{0}spec_decode_num_accepted_tokens_total{{{1}}} {2}
"""


@pytest.mark.parametrize(
    ("template", "labels", "label"),
    [
        ("vllm:", 'engine="{0}",model_name="m"', "engine {}"),
        (
            "ray_vllm_",
            'ReplicaId="r{0}",WorkerId="w{0}",engine="0",model_name="m"',
            "ReplicaId r{}",
        ),
        ("llamacpp:", 'instance="h:{0}",job="j",namespace="n{0}"', "instance h:{}"),
        ("trtllm", 'model_name="m{0}"', "model_name m{}"),
        ("sglang", 'dp_rank="{0}",tp_rank="{0}"', "dp_rank {}"),
        # A rank that publishes other figures than its sibling serves requests of its own.
        ("sglang", 'pp_rank="0",tp_rank="{0}"', "tp_rank {}"),
        ("sglang", 'cluster="c",hostname="h{0}"', "hostname h{}"),
    ],
)
def test_every_label_that_tells_replicas_apart_is_kept(
    template: str, labels: str, label: str
) -> None:
    """And the counters of the whole server belong to none of them."""
    own, lengths = [labels.format(n) for n in range(2)], [3.0, 1.0]
    if template == "sglang":
        text = "".join(map(_GAUGE.format, own, lengths))
        text += 'sglang:spec_verify_calls_total{cluster="c"} 7\n'
    elif template == "trtllm":
        text, lengths = "".join(TRTLLM.replace('model_name="m"', one) for one in own), [2.1, 2.1]
    else:
        text = "".join(map(_COUNTERS.format, [template] * 2, own, (200, 0)))
    page = _page(text)
    assert list(page.replicas) == [label.format(n) for n in range(2)]
    found = [one.length or view(one.points).length for one in page.replicas.values()]
    assert found == pytest.approx(lengths)
    assert view(page.points).rounds == {"sglang": 7, "trtllm": 60}.get(template, 200)


def test_ranks_that_repeat_each_other_are_one_replica() -> None:
    ranks = 'dp_rank="{}",tp_rank="{}"'
    text = "".join(_GAUGE.format(ranks.format(n // 2, n), 3.1 - n // 2) for n in range(4))
    assert list(_page(text).replicas) == ["dp_rank 0", "dp_rank 1"]
    one = "".join(_GAUGE.format(f'tp_rank="{n}"', 3.1) for n in range(4))
    assert _page(one).replicas == {} and _page(one).length == pytest.approx(3.1)


def test_a_page_of_many_labels_is_refused_at_once() -> None:
    """The replicas of 2,000 lines by 100 labels of each took hours to tell apart."""
    lines = (",".join(f'l{n}_{at}="1"' for at in range(100)) for n in range(2000))
    text = "".join(f"vllm:spec_decode_num_drafts_total{{{labels}}} 1\n" for labels in lines)
    begun = time.process_time()
    with pytest.raises(BadPageError, match="more than 64 labels"):
        _page(text)
    assert time.process_time() - begun < 10


def test_a_page_without_speculation_is_none_of_them() -> None:
    assert samples_of_engine('vllm:request_success_total{engine="0"} 7.0\n') is None
    assert samples_of_engine(LLAMACPP, [ENGINES[EngineName.VLLM]]) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="x"} 1', "position is"),
        (
            'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="9999"} 1',
            "position is",
        ),
        ("llamacpp:spec_decode_num_accepted_tokens_per_pos_total 1", "position is ''"),
        ("llamacpp:spec_decode_num_drafts_total -1", "less than 0"),
        ("llamacpp:spec_decode_num_drafts_total NaN", "not a finite number"),
        ("llamacpp:spec_decode_num_drafts_total{", "not a sample"),
    ],
)
def test_a_sample_that_cannot_be_right_makes_the_page_unusable(line: str, words: str) -> None:
    with pytest.raises(BadPageError, match=words):
        _page(LLAMACPP + line + "\n")


@given(
    st.sampled_from([VLLM, SGLANG, TRTLLM, LLAMACPP]),
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.text(max_size=8),
)
def test_a_mutated_page_is_read_or_refused(text: str, start: int, more: int, put: str) -> None:
    with suppress(BadPageError):
        if found := samples_of_engine(text[:start] + put + text[start + more :]):
            view(page_of_samples(*found).points)


K = "driftscope_draft_tokens_configured"


def _page_of_tally(tally: Tally) -> str:
    """Return the page as the engine's own endpoint writes it."""

    class Collector:
        def collect(self):  # type: ignore[no-untyped-def]
            constants = {i.MODEL: 'a "model"\\', i.DRAFTER: "d", i.PROVIDER: "vllm"}
            yield from families(tally.snapshot(), constants)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry).decode()


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=200),
    st.integers(0, MAX_K),
    st.lists(st.floats(0, 1e6), max_size=20),
)
def test_what_our_own_endpoint_writes(reason: str, k: int, lengths: list[float]) -> None:
    tally = Tally()
    tally.add(i.ROUNDS, 12)
    tally.add(i.UNDRAFTED_STEPS, 3, reason=reason)
    tally.add(i.REACHED, 5, depth=2)
    tally.set(i.CONFIGURED_K, k)
    tally.observe(i.LENGTH, lengths)
    found = points_on(_page_of_tally(tally))
    expected = tally.snapshot()
    assert found.keys() == expected.keys()
    for key, point in found.items():
        wanted = expected[key]
        assert (point.value, point.count) == pytest.approx((wanted.value, wanted.count))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{K} NaN", f"{K}: NaN, not a finite number"),
        (f"{K} {MAX_K + 1}", f"not a number of tokens from 0 to {MAX_K}"),
        (f"{K} 2.5", "not a number of tokens"),
        (f"{K} many", "many, not a number"),
        (f"{K} 1e300", "not a finite number up to"),
        (f"{K}", "a line that is not a sample"),
        (f"driftscope_rounds_completed_total {2 * MAX_COUNT}", "not a finite number up to"),
        ("driftscope_rounds_completed_total -1", "a count is 0 or more"),
        ('driftscope_rounds_reached_total{driftscope_depth="1} 2', "a line that is not a sample"),
        ("driftscope_acceptance_length_sum 3", "a histogram without a bucket"),
    ],
)
def test_a_sample_that_cannot_be_right(line: str, words: str) -> None:
    with pytest.raises(BadPageError, match=words):
        points_on(f"driftscope_rounds_completed_total 10\n{line}\n")


def test_what_others_say_is_passed_over() -> None:
    page = "vllm:num_requests NaN\ndriftscope_of_next_year{a=1} x\n# TYPE a b\n\n\x00\n"
    assert points_on(page) == {}


def test_a_page_of_the_greatest_depth_is_seen_at_once() -> None:
    tally, k = Tally(), MAX_K
    tally.set(i.CONFIGURED_K, k)
    tally.add(i.ROUNDS, 10)
    masses = np.full((3, k), 0.25)
    for name in ("sink", "prompt", "generated", "self"):
        tally.observe_depths(i.MASS, masses, **{"class": name})
    for place in ("in", "prenorm", "postnorm", "fed"):
        tally.observe_depths(i.RMS, masses, place=place)
    for depth in range(1, k + 1):
        tally.add(i.REACHED, 1, depth=depth)
        tally.add(i.AT_RISK, 2, depth=depth)
    page = _page_of_tally(tally)
    with no_hang():
        seen = view(points_on(page))
    assert len(seen.depths) == k and seen.depths[-1].masses["self"] == pytest.approx(0.25)

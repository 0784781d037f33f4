"""Rounds by circumstance, and intervals by depth, against the rows that they are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.simulate.truth import Prompts, Truth
from support.simulate.write import simulate

from driftscope.analysis.circumstances import TRAFFIC, origin_of, origins
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import Inputs, analyze, summarise
from driftscope.trace.reader import Trace, read_trace

TRUTH = Truth(
    requests=60,
    rounds=12,
    batches=(1, 4, 12),
    rates=(1.0,),
    k_zero_above=8,
    prompts=(
        Prompts(label="cold"),
        Prompts(label="hot", temperature=0.8, shift=-0.8),
        Prompts(label="unsaid", temperature=None),
    ),
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(simulate(tmp_path_factory.mktemp("groups") / "run", TRUTH))


@pytest.fixture(scope="module")
def run(trace: Trace) -> RunSummary:
    return summarise(trace, "run")


def test_batch_sizes_are_those_of_the_steps(trace: Trace, run: RunSummary) -> None:
    """Decode steps without a draft count for a step's size, and are no rounds."""
    verify = trace.verify.to_pylist()
    size = Counter((row["replica"], row["step"]) for row in verify)
    rounds, tokens = Counter[int](), Counter[int]()
    for row in verify:
        if row["verified"]:
            power = size[row["replica"], row["step"]].bit_length() - 1
            rounds[power] += 1
            tokens[power] += row["accepted"] + 1
    assert len(rounds) > 2
    names = ["1" if not p else f"{2**p} to {2 ** (p + 1) - 1}" for p in sorted(rounds)]
    assert [group.name for group in run.groups.batch] == names
    for power, group in zip(sorted(rounds), run.groups.batch, strict=True):
        assert group.rounds == rounds[power]
        assert group.mean_length == pytest.approx(tokens[power] / rounds[power])


def test_temperatures_leave_out_what_is_not_known(run: RunSummary) -> None:
    by_label = {segment.label: segment for segment in run.segments}
    cold, hot = run.groups.temperature
    assert (cold.name, hot.name) == ("0", "0.8")
    assert (cold.rounds, hot.rounds) == (by_label["cold"].rounds, by_label["hot"].rounds)
    assert hot.mean_length == pytest.approx(by_label["hot"].mean_length)
    assert hot.mean_length < cold.mean_length


def test_finish_reasons(trace: Trace, run: RunSummary) -> None:
    known = Counter(trace.request.column("finish_reason").to_pylist())
    assert {group.name for group in run.groups.finish} <= set(known)
    for group in run.groups.finish:
        assert group.requests <= known[group.name]


def test_intervals_by_depth_hold_their_means_and_shrink_with_requests(run: RunSummary) -> None:
    means = {
        "self_mass": run.attention.self_mass,
        "sink_mass": run.attention.sink_mass,
        "fed_rms": run.hidden.fed_rms,
        "postnorm_rms": run.hidden.postnorm_rms,
        "top1": run.confidence.top1,
        "entropy": run.confidence.entropy,
    }
    for name, mean in means.items():
        assert mean is not None
        for value, spread in zip(mean, run.spread[name], strict=True):
            if spread is None:  # no slot of the chain lies before depth 1
                assert (name, value) == ("self_mass", 0)
                continue
            assert spread.low <= value <= spread.high, name
    first, *later = run.spread["growth"]
    assert first is not None and (first.low, first.high) == (1.0, 1.0)
    true = TRUTH.states() / TRUTH.fed
    inside = [s is not None and s.low <= t <= s.high for s, t in zip(later, true[1:], strict=True)]
    assert np.mean(inside) > 0.5


def test_one_request_has_no_interval(tmp_path: Path) -> None:
    alone = summarise(read_trace(simulate(tmp_path / "run", Truth(requests=1, rounds=5))), "run")
    assert alone.spread == {}


@pytest.mark.parametrize(
    ("label", "origin"),
    [
        ("chat", TRAFFIC),
        ("replay", TRAFFIC),
        ("replay/alone", TRAFFIC),
        ("my/replay/x", TRAFFIC),
        ("replay/template/no BOS", "replay/template/"),
        ("replay/template/a/b", "replay/template/"),
    ],
)
def test_the_origin_of_a_label(label: str, origin: str) -> None:
    assert origin_of(label) == origin


def test_a_request_of_a_suite_names_the_suite() -> None:
    label_of = pytest.importorskip("driftscope.workloads.client.replay").label_of
    assert label_of("template", "no BOS") == "replay/template/no BOS"
    assert origin_of(label_of("my/own", "as asked")) == "replay/my-own/"
    assert len(label_of("s" * 300, "c")) == 256
    assert origins(["b", "replay/a/x", "c", "replay/a/y"]) == (TRAFFIC, "replay/a/")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "compared"),
    [
        (("code", "prose"), True),
        (("replay/template/regular", "replay/template/no BOS"), True),
        (("code", "replay/template/no BOS"), False),
        (("replay/template/regular", "replay/agent/tools"), False),
    ],
)
def test_only_labels_of_one_origin_are_compared(
    tmp_path: Path, labels: tuple[str, str], compared: bool
) -> None:
    """Half of the requests accept far less, under another label: known truth."""
    best, worst = labels
    truth = Truth(
        requests=80,
        rounds=20,
        prompts=(Prompts(label=best, share=0.5), Prompts(label=worst, share=0.5, shift=-1.5)),
    )
    run = simulate(tmp_path / "run", truth)
    found = {each.id for each in analyze(Inputs(sources=[run], labels=["run"])).findings}
    assert ("template_sensitivity" in found) is compared


GOOD = Truth(k=1, conditional=(0.92,), requests=80, rounds=60, between=0.8)
LOOP_ROUNDS = 25


def _loops(trace: Trace) -> bool:
    found = analyze(Inputs(sources=[trace], labels=["run"])).findings
    return "looks_like_a_loop" in {each.id for each in found}


def _looping(trace: Trace, share: float) -> Trace:
    """Return the trace with the last rounds of some requests accepted whole."""
    rows = trace.verify.sort_by([("request", "ascending"), ("time_s", "ascending")])
    names = rows["request"].to_numpy(zero_copy_only=False)
    accepted = rows["accepted"].to_numpy().copy()
    drafted = rows["verified"].to_numpy()
    requests = np.unique(names)
    for name in requests[: int(share * len(requests))]:
        last = np.flatnonzero(names == name)[-LOOP_ROUNDS:]
        accepted[last] = drafted[last]
    at = rows.schema.get_field_index("accepted")
    column = pa.array(accepted, rows.schema.field(at).type)
    return replace(trace, verify=rows.set_column(at, rows.schema.field(at), column))


@pytest.mark.parametrize("seed", range(6))
def test_a_good_drafter_of_one_token_does_not_loop(seed: int, tmp_path: Path) -> None:
    trace = read_trace(simulate(tmp_path / "run", replace(GOOD, seed=seed)))
    assert not _loops(trace)


@pytest.mark.parametrize("conditional", [(0.6,), (0.6, 0.6, 0.6)])
def test_a_loop_is_found_at_every_k(conditional: tuple[float, ...], tmp_path: Path) -> None:
    truth = replace(GOOD, k=len(conditional), conditional=conditional)
    trace = read_trace(simulate(tmp_path / "run", truth))
    assert not _loops(trace)
    assert _loops(_looping(trace, 0.2))

"""Sums of a file pass through a manifest unchanged; what no driftscope writes is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.analyses import BASELINE, analyzed, client_row, finding_ids, write_replay
from support.command import run_command
from support.runs import Spec, write_run

from driftscope.analysis.replays import external_id, summarise_replay, totals_of
from driftscope.analysis.statistics.ratio import paired_ratio
from driftscope.findings.catalogue import REPLAYS
from driftscope.metrics.latency import mcnemar
from driftscope.pipeline import Analysis
from driftscope.trace.manifest import MANIFEST, SIMULATED, WAS_SIMULATED, read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.records import ClientRow
from driftscope.vocabulary import Ended


@pytest.mark.parametrize(
    "wrong",
    [
        {"condition": "a"},
        {"condition": "a", "period": "b", "rounds": -1},
        {"condition": "a", "period": "b", "rounds": 1.5},
        {"condition": "a", "period": "b", "marginal": [0.5, 1.5]},
        {"condition": "a", "period": "b", "mean_length": 1e9},
    ],
    ids=str,
)
def test_what_no_driftscope_writes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"totals\.0"):
        totals_of({"ingested": {"totals": [wrong]}})


def _conditions(count: int = 40, cost: float = 0.5, **values: Any) -> list[ClientRow]:
    """Prompts of very different difficulty, each in two conditions; `cost` tokens of 5 apart."""
    source, rows = random.Random(1), []
    for pair in range(count):
        easy = source.randrange(1, 4)
        for condition, less in ((BASELINE, 0.0), ("harder", cost)):
            accepted = [easy - (source.random() < less) for _ in range(20)]
            own = {"pair": f"p{pair}", "condition": condition, "verified": [4] * 20, **values}
            rows.append(client_row(len(rows), accepted=accepted, **own))
    return rows


def _summary(run: Path, rows: list[ClientRow]) -> Any:
    return summarise_replay(read_trace(write_replay(run, rows)), "a replay")


def _analysis(folder: Path, *replays: list[ClientRow]) -> Analysis:
    runs = [write_replay(folder / str(n), rows) for n, rows in enumerate(replays)]
    return analyzed(*runs)


def test_figures_of_a_condition(tmp_path: Path) -> None:
    rows = [client_row(n, tpot_s=0.01 * (n + 1), output_tokens=10 * (n + 1)) for n in range(3)]
    rows.append(client_row(3, warmup=True, tpot_s=9.0, accepted=[0]))
    rows.append(client_row(4, ended=Ended.REFUSED, tpot_s=None, accepted=None, verified=None))
    summary = _summary(tmp_path / "run", rows)
    (cell,) = summary.cells
    assert summary.planned == 5 and summary.ended == {"answered": 4, "refused": 1}
    assert (cell.requests, cell.answered, cell.rounds) == (4, 3, 6)
    assert cell.tpot_s == pytest.approx(0.02) and cell.per_user == pytest.approx(50)
    assert cell.mean_length == pytest.approx(3.0), "1 + (1 + 3) / 2"
    assert cell.throughput == pytest.approx(60 / 3.0), "from the first sent to the last over"
    assert cell.outcomes == {"garbled": (0, 3), "looping": (0, 3)}


def test_a_pair_takes_out_what_makes_a_prompt_easy(tmp_path: Path) -> None:
    """The intervals of the two conditions overlap widely; that of the paired ratio does not."""
    baseline, harder = _summary(tmp_path / "run", _conditions()).cells
    assert (baseline.condition, harder.condition) == (BASELINE, "harder")
    assert baseline.mean_length_interval.low < harder.mean_length_interval.high
    ratio = harder.length_ratio
    assert baseline.length_ratio is None and ratio.pairs == 40
    assert ratio.differs and ratio.interval.high < 0.9 < 1
    assert ratio.value == pytest.approx(harder.mean_length / baseline.mean_length)


def test_the_interval_of_a_paired_ratio_covers_the_truth() -> None:
    """Nominally 95 %; 60 prompts, of which each draws its own difficulty."""
    covered = 0
    for seed in range(200):
        source = np.random.RandomState(seed)
        easy = source.uniform(1, 6, 60)
        a = {str(n): (source.poisson(30 * e * 0.8), 30.0) for n, e in enumerate(easy)}
        b = {str(n): (source.poisson(30 * e), 30.0) for n, e in enumerate(easy)}
        found = paired_ratio(a, b)
        covered += found.interval.low <= 0.8 <= found.interval.high
    assert 180 <= covered <= 199


def test_few_pairs_give_no_interval() -> None:
    sums = {str(n): (2.0, 1.0) for n in range(4)}
    found = paired_ratio(sums, sums)
    assert found is not None and found.interval is None and not found.differs
    assert paired_ratio(sums, {"x": (1.0, 1.0)}) is None


def test_an_interval_leaves_out_what_cannot_be(tmp_path: Path) -> None:
    rows = [client_row(n, accepted=[n % 2 * 3] * 4, verified=[4] * 4) for n in range(6)]
    (cell,) = _summary(tmp_path / "run", rows).cells
    assert cell.mean_length == 2.5 and cell.mean_length_interval.low == 1.0


def _rounds(speculates: bool) -> dict[str, list[int] | None]:
    return {name: [at] if speculates else None for name, at in (("accepted", 1), ("verified", 4))}


def _outcomes(bad: int, speculates: bool) -> list[ClientRow]:
    rounds = _rounds(speculates)
    return [client_row(n, json_ok=n >= bad, digest=f"{n}", **rounds) for n in range(30)]


def _lengths(accepted: int, **values: Any) -> list[ClientRow]:
    rounds = [{"accepted": [accepted, n % 3], "verified": [4, 4]} for n in range(30)]
    return [client_row(n, **one, **values) for n, one in enumerate(rounds)]


def _timed(tpot_s: float, speculates: bool) -> list[ClientRow]:
    rounds = _rounds(speculates)
    return [client_row(n, tpot_s=tpot_s + 1e-4 * n, **rounds) for n in range(30)]


def test_outcomes_are_counted_over_pairs(tmp_path: Path) -> None:
    (pair,) = _analysis(tmp_path, _outcomes(0, False), _outcomes(12, True)).versus
    assert pair.outcomes["json_ok"] == (0, 12, 30) and pair.same_text == (30, 30)


def _failed(how: str) -> list[ClientRow]:
    lost = {"ended": how, "tpot_s": None, "accepted": None, "verified": None}
    return [*_conditions(cost=0.0), client_row(99, **(lost if how != Ended.ANSWERED else {}))]


PAIRS: dict[str, tuple[tuple[list[ClientRow], ...], tuple[list[ClientRow], ...]]] = {
    "conditions_cost": ((_conditions(),), (_conditions(cost=0.0),)),
    "replay_accepts_nothing": (
        ([client_row(n, accepted=[0] * 40, verified=[4] * 40) for n in range(30)],),
        ([client_row(n, accepted=[n % 2] * 40, verified=[4] * 40) for n in range(30)],),
    ),
    "not_content_valid": (
        ([client_row(n, looping=True) for n in range(30)],),
        ([client_row(n, looping=n < 2) for n in range(30)],),
    ),
    "not_answered": ((_failed(Ended.TIMEOUT),), (_failed(Ended.ANSWERED),)),
    "replays_differ": (
        (_lengths(2), _lengths(1)),
        (_lengths(2), _lengths(2)),
    ),
    "outcomes_change": (
        (_outcomes(0, False), _outcomes(12, True)),
        (_outcomes(0, False), _outcomes(1, True)),
    ),
    "outcomes_hold": (
        (_outcomes(0, False), _outcomes(1, True)),
        (_outcomes(0, True), _outcomes(1, True)),
    ),
    "slower_for_clients": (
        (_timed(0.02, False), _timed(0.06, True)),
        (_timed(0.02, False), _timed(0.02, True)),
    ),
}
"""Id -> replays of which the last is spoken about, and those of which it is not."""


OF_LOGS_AND_FLEETS = {"falls_in_log", "fleet_replica_differs"}
"""Findings about a server's log and about a fleet, which have tests of their own:
tests/unit/ingest/test_logs.py and tests/unit/analysis/test_rollups.py."""


def test_every_entry_has_its_pair() -> None:
    assert {*PAIRS, *OF_LOGS_AND_FLEETS} == set(REPLAYS)


@pytest.mark.parametrize("name", PAIRS)
def test_it_speaks_on_one_replay_and_not_on_the_other(tmp_path: Path, name: str) -> None:
    speaks, silent = PAIRS[name]
    loud = _analysis(tmp_path / "loud", *speaks)
    (finding,) = (f for f in loud.findings if f.id == name)
    assert finding.runs[-1] == loud.senders[-1].label
    assert finding.title == REPLAYS[name].title
    assert all((finding.statement, finding.advice, finding.because, finding.evidence))
    assert REPLAYS[name].need.met(loud.replay_cases[-1])
    assert name not in finding_ids(_analysis(tmp_path / "quiet", *silent))


def test_prompts_of_one_name_and_other_lengths_are_not_the_same(tmp_path: Path) -> None:
    """A file of prompts, named by their rows, was edited between two replays."""
    other = _analysis(tmp_path, _lengths(2), _lengths(1, prompt_tokens=31))
    assert "replays_differ" not in finding_ids(other)
    assert other.versus[0].length_ratio is None


@pytest.mark.slow
def test_twelve_conditions_without_a_difference_rarely_show_one(tmp_path: Path) -> None:
    def rows(seed: int) -> list[ClientRow]:
        drawn = np.random.default_rng(seed).integers(0, 5, (12, 30)).tolist()
        return [
            client_row(n, condition=f"c{at}", accepted=[2, accepted], verified=[4, 4])
            for at, of_condition in enumerate(drawn)
            for n, accepted in enumerate(of_condition)
        ]

    pairs = [(rows(2 * seed), rows(2 * seed + 1)) for seed in range(20)]
    made = [_analysis(tmp_path / str(seed), *pair) for seed, pair in enumerate(pairs)]
    assert sum("replays_differ" in finding_ids(found) for found in made) <= 3


def test_mcnemar() -> None:
    """Against the binomial distribution, by hand: 2 * (1 + 10) / 2**10."""
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(22 / 1024)
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1.0
    assert 0 <= mcnemar(0, 3000) < 1e-300


@pytest.mark.parametrize(
    ("internal", "told"),
    [
        ("chatcmpl-abc-12-1a2b3c4d", "chatcmpl-abc-12"),
        ("cmpl-abc-12-0-1a2b3c4d", "cmpl-abc-12"),
        ("cmpl-abc-12.2-0-00000000", "cmpl-abc-12.2"),
        ("chatcmpl-x", "chatcmpl-x"),
    ],
)
def test_ids_of_the_engine(internal: str, told: str) -> None:
    assert external_id(internal) == told


def test_a_replay_is_joined_with_the_probes_run(tmp_path: Path) -> None:
    """Acceptance is then known although the server did not tell the sender."""
    server = read_trace(write_run(tmp_path / "server", Spec(requests=4, rounds=6)))
    names = server.request.column("request").to_pylist()
    silent = {"accepted": None, "verified": None, "ttft_s": 5.0}
    rows = [client_row(n, response=external_id(name), **silent) for n, name in enumerate(names)]
    rows.append(client_row(4, **silent))
    client = read_trace(write_replay(tmp_path / "client", rows))
    summary = summarise_replay(client, "c", [server])
    (cell,) = summary.cells
    assert summary.joined == 4 and cell.rounds == 24
    assert cell.mean_length == pytest.approx(
        1 + sum(server.verify.column("accepted").to_pylist()) / 24
    )
    ttft = np.mean(server.request.column("ttft_s").to_pylist())
    assert summary.outside_s == pytest.approx(5.0 - ttft)
    assert summarise_replay(client, "c").joined == 0


def _of_server(folder: Path, rule: str, served: int) -> Path:
    """Return a replay of a server that recorded its rule of verification, beside the replay, which
    sent the last 20 of the requests that it served."""
    server = write_run(folder / "server", Spec(requests=served, rounds=6))
    manifest = replace(read_manifest(server), run_id=folder.name, verification=rule)
    (server / MANIFEST).write_text(manifest.to_json())
    rows = [client_row(n, response=f"req-{served - 20 + n}") for n in range(20)]
    return write_replay(folder / "client", rows, server_run="server")


@pytest.mark.parametrize(
    ("rules", "code", "said"),
    [
        (("exact", "exact"), 0, ""),
        (("exact", "block"), 0, "they differ in rule of verification (exact against block)"),
        (("exact", SIMULATED), 4, f"{WAS_SIMULATED}; it is compared with nothing"),
    ],
)
def test_replays_under_different_rules_of_verification_are_not_compared(
    tmp_path: Path, rules: tuple[str, str], code: int, said: str
) -> None:
    runs = [
        _of_server(tmp_path / name, rule, served)
        for name, rule, served in zip("ab", rules, (40, 20), strict=True)
    ]
    done = run_command("compare", *runs)
    assert done.returncode == code and said in done.stderr
    assert bool(said) == ("cannot be told" in done.stderr or code == 4)
    notes = [note.statement for note in analyzed(*runs, labels=["a", "b"]).notes]
    words = WAS_SIMULATED if SIMULATED in rules else "rule of verification"
    assert any(words in note for note in notes) == bool(said)

"""From a run directory to its figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.analyses import analyzed, finding_ids, summary_of
from support.runs import Spec, rows, verify, write_rows, write_run
from support.simulate import Truth, simulate
from support.simulate.sums import side

from driftscope.analysis.figures.requests import own_units
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.figures.run_sums import collect
from driftscope.analysis.figures.verified_chains import joined, look_at
from driftscope.analysis.query.record_views import open_run, tables_of
from driftscope.analysis.summary.computation import lengths_by_k, recut
from driftscope.analysis.summary.run_summary import Independence, independence_of
from driftscope.errors import DamagedTraceError, MixedTraceError, NoDataError
from driftscope.findings.rules_attention import has_sink
from driftscope.pipeline import summarise
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import DraftRow, VerifyRow
from driftscope.trace.segments import RELATIVE_ERROR
from driftscope.vocabulary import MASSES

CHAIN = next(row for row in rows(Spec()) if isinstance(row, DraftRow))


def test_acceptance_is_counted_over_all_rounds(tmp_path: Path) -> None:
    spec = Spec(every=4)
    run = summary_of(tmp_path / "run", spec)
    accepted = [row.accepted for row in rows(spec) if isinstance(row, VerifyRow)]
    assert run.rounds == len(accepted) == 400
    assert run.acceptance.mean_length == pytest.approx(1 + sum(accepted) / 400)
    expected = [sum(a >= d for a in accepted) / 400 for d in range(1, 5)]
    assert run.acceptance.marginal == pytest.approx(expected)
    assert sum(run.acceptance.histogram) == 400


def test_masses_and_rms_are_means_over_recorded_chains(tmp_path: Path) -> None:
    spec = Spec(every=4, layers=2)
    run = summary_of(tmp_path / "run", spec)
    drafts = [row for row in rows(spec) if isinstance(row, DraftRow)]
    assert run.recording.chains == len(drafts)
    fed = np.mean([row.fed_rms for row in drafts], axis=0)
    assert run.hidden.fed_rms == pytest.approx(fed, rel=RELATIVE_ERROR)
    assert run.hidden.growth == pytest.approx(spec.growth, rel=2 * RELATIVE_ERROR)
    assert run.attention.self_mass == pytest.approx([0, 1 / 6, 1 / 3, 1 / 2], rel=RELATIVE_ERROR)
    assert run.attention.by_layer["self_mass"][3] == pytest.approx((0.5, 0.5))
    assert run.hidden.aux_rms == (1.0, 2.0, 4.0)
    assert run.hidden.aux_norm_rms is None


@pytest.mark.parametrize("norm_output", [True, False])
def test_a_run_that_does_not_name_its_captured_layers_is_read(
    tmp_path: Path, norm_output: bool
) -> None:
    """Not every engine tells which layers it captures."""
    run = summary_of(tmp_path / "run", Spec(aux_layers=(), norm_output=norm_output))
    assert run.hidden.aux_rms == (1.0, 2.0, 4.0)
    assert run.hidden.aux_norm_rms == ((1.0, 1.0, 1.0) if norm_output else None)


def test_a_manifest_that_names_other_captured_layers_than_the_chains_have_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(DamagedTraceError, match="aux_rms is not 2 long"):
        summary_of(tmp_path / "run", Spec(aux_layers=(1, 2)))


def test_a_short_round_counts_at_the_depths_that_it_drafted(tmp_path: Path) -> None:
    """vLLM counts accepted per position over all drafts: that is `counted`."""
    trace = read_trace(write_run(tmp_path / "run", Spec(requests=1, rounds=1)))
    full, short = verify(0, 1, 1.0, 5, 4, 4), verify(0, 2, 2.0, 9, 2, 2)
    run = summarise(_with_rounds(trace, [full, short]), "run")
    assert run.acceptance.marginal == run.acceptance.conditional == (1.0, 1.0, 1.0, 1.0)
    assert run.acceptance.counted == (1.0, 1.0, 0.5, 0.5)
    assert run.acceptance.mean_length == 4.0
    assert run.ks == (4,)
    assert run.recording.short_rounds == 1


def test_a_round_belongs_to_the_latest_chain_of_its_position(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", Spec(requests=2, rounds=3))
    before = summarise(read_trace(path), "run").recording
    first = next(r for r in rows(Spec(requests=2, rounds=3)) if isinstance(r, DraftRow))
    early = replace(first, time_s=1.0, execution="compiled")
    late = replace(first, time_s=first.time_s + 1e6, execution="compiled")
    write_rows(path, "worker0-9", iter([early, late]))
    twice = read_trace(path)
    sums = collect(tables_of(twice))
    look_at(sums)
    found = sums.tables.engine.rows(joined(repeated=True)).to_pylist()
    assert len({(row["cluster"], row["position"]) for row in found}) == len(found)
    assert {row["execution"] for row in found} == {"eager"}
    after = summarise(twice, "run").recording
    assert after.verified_chains == before.verified_chains
    assert after.chains == before.chains + 2


def test_fallback_latency_and_overhead(tmp_path: Path) -> None:
    run = summary_of(tmp_path / "run", Spec(undrafted=("k_zero", "no_draft")))
    assert run.fallback.undrafted == 2
    assert run.fallback.steps == run.rounds + 2
    assert run.fallback.rejected_rounds == run.acceptance.histogram[0]
    assert run.latency.ttft_s == pytest.approx(0.05)
    assert run.latency.tpot_s == pytest.approx(0.0085)
    steps = 40 * 11
    expected = (steps * 0.0001 + 0.002) / (steps * 0.010)
    assert run.recording.overhead_fraction == pytest.approx(expected)


def test_a_run_without_chains_has_acceptance_only(tmp_path: Path) -> None:
    trace = read_trace(write_run(tmp_path / "run"))
    run = summarise(replace(trace, draft=trace.draft.slice(0, 0)), "run")
    assert run.acceptance.marginal[0] > 0
    assert run.attention.self_mass is None
    assert run.hidden.growth is None
    assert run.confidence.top1 is None


@pytest.mark.parametrize(
    ("spec", "other", "words"),
    [
        (
            Spec(k=2, conditional=(0.5, 0.5)),
            Spec(requests=1),
            r"K = 4 in a run .* K = 2.*worker0-9.*move the file",
        ),
        (Spec(), Spec(layers=2, requests=1), r"1 and 2 layers.*\(draft-worker0-9-0000.*move"),
    ],
)
def test_chains_of_another_run_are_refused(
    tmp_path: Path, spec: Spec, other: Spec, words: str
) -> None:
    path = write_run(tmp_path / "run", spec)
    write_rows(path, "worker0-9", rows(other))
    with pytest.raises(MixedTraceError, match=words):
        summarise(read_trace(path), "run")


@pytest.mark.parametrize(
    ("verified", "accepted", "reason", "error", "words"),
    [
        (6, 0, None, MixedTraceError, "K = 6 in a run whose manifest says K = 4"),
        (2, 3, None, DamagedTraceError, "accepted than verified"),
        (0, 0, "no_draft", NoDataError, "no round"),
    ],
)
def test_rounds_that_no_run_has_are_refused(
    tmp_path: Path,
    verified: int,
    accepted: int,
    reason: str | None,
    error: type[Exception],
    words: str,
) -> None:
    trace = read_trace(write_run(tmp_path / "run", Spec(requests=1)))
    with pytest.raises(error, match=words):
        summarise(_with_rounds(trace, [verify(0, 1, 1.0, 5, verified, accepted, reason)]), "run")


def test_a_rate_that_changes_leaves_the_means_unbiased(tmp_path: Path) -> None:
    """Every other request is recorded at a fifth of the rate and has twice the RMS."""
    spec = Spec(rounds=9, slower=5, odd=2.0)
    run = summary_of(tmp_path / "run", spec)
    every = summary_of(tmp_path / "every", replace(spec, slower=1))
    assert run.recording.chains < 0.7 * every.recording.chains
    assert run.hidden.fed_rms == pytest.approx(every.hidden.fed_rms, rel=0.01)
    assert run.hidden.growth_interval is not None
    flat = read_trace(tmp_path / "run")
    at = flat.draft.schema.get_field_index("rate")
    ones = pa.array(np.ones(flat.draft.num_rows))
    biased = summarise(replace(flat, draft=flat.draft.set_column(at, "rate", ones)), "run")
    assert biased.hidden.fed_rms[0] < 0.9 * every.hidden.fed_rms[0]


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, float("nan")])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, rate: float) -> None:
    path = write_run(tmp_path / "run")
    row = CHAIN
    write_rows(path, "worker0-9", [replace(row, rate=rate)])
    with pytest.raises(DamagedTraceError, match="sampling rate"):
        summarise(read_trace(path), "run")


def test_a_sink_outside_the_window_of_one_layer_does_not_apply_there(tmp_path: Path) -> None:
    run = summary_of(tmp_path / "run", Spec(layers=2, windowed=(1,), sink=(0.4, 0.3)))
    assert run.recording.broken_chains == 0
    assert run.attention.sink_mass[0] == pytest.approx(0.4, abs=1e-5)
    by_layer = run.attention.by_layer["sink_mass"][0]
    assert by_layer[0] == pytest.approx(0.4, abs=1e-5)
    assert np.isnan(by_layer[1])
    assert has_sink(run) is True


def test_a_sink_outside_every_window_is_neither_there_nor_missing(tmp_path: Path) -> None:
    run = summary_of(tmp_path / "run", Spec(windowed=(0,)))
    assert run.recording.broken_chains == 0
    assert run.attention.sink_mass is not None
    assert np.isnan(run.attention.sink_mass).all()
    assert run.attention.self_mass == pytest.approx([0, 1 / 6, 1 / 3, 1 / 2], abs=1e-5)
    assert has_sink(run) is None
    assert not {"no_sink", "sink_lost"}.intersection(finding_ids(analyzed(tmp_path / "run")))


def test_a_run_in_which_no_sink_was_found(tmp_path: Path) -> None:
    told = "no sink found, searched in 64 chains"
    spec = Spec(sink_slots=(), sink_source="found", notes=(told,), sink=(0.0, 0.0))
    run = summary_of(tmp_path / "run", spec)
    assert run.recording.broken_chains == 0
    assert run.attention.sink_mass is None
    assert has_sink(run) is False
    (finding,) = (f for f in analyzed(tmp_path / "run").findings if f.id == "no_sink")
    assert finding.statement == told


def test_chains_from_before_the_sink_was_found_weigh_nothing_in_what_they_lack(
    tmp_path: Path,
) -> None:
    path = write_run(tmp_path / "run", Spec(sink=(0.4, 0.3)))
    alone = summarise(read_trace(path), "run").attention
    row = CHAIN
    none = dict.fromkeys(("sink_mass", "prompt_mass", "generated_mass", "self_mass"))
    early = replace(row, position=3, strategy="none", **none)  # type: ignore[arg-type]
    write_rows(path, "worker0-9", [early] * 50)
    run = summarise(read_trace(path), "run")
    assert run.attention == alone
    assert run.recording.broken_chains == 0


NAN = float("nan")
WHOLE = ({}, {"sink_mass": [NAN] * 4}, dict.fromkeys(MASSES), {"top1": None})
BROKEN = (
    {"top1": [0.5, 0.5, NAN, 0.5]},
    {"self_mass": [0.0, float("inf"), 0.0, 0.0]},
    {key: [0.25, 0.25, 0.25, NAN] for key in MASSES[:4]},
)


@pytest.mark.parametrize(("changes", "broken"), [(WHOLE, 0), (BROKEN, len(BROKEN))])
def test_what_breaks_a_chain(tmp_path: Path, changes: tuple[Any, ...], broken: int) -> None:
    path = write_run(tmp_path / "run")
    row = CHAIN
    write_rows(path, "worker0-9", [replace(row, **change) for change in changes])
    assert summarise(read_trace(path), "run").recording.broken_chains == broken


def _with_rounds(trace: Trace, content: list[VerifyRow]) -> Trace:
    """`trace` with these verify rows instead of its own."""
    columns = {
        f.name: pa.array([getattr(row, f.name) for row in content], f.type)
        for f in trace.verify.schema
    }
    return replace(trace, verify=pa.table(columns, schema=trace.verify.schema))


def _served(sequence: list[bool], k: int) -> Iterator[tuple[int, int]]:
    """Yield the tokens drafted and accepted in each round of K = `k` over a sequence of matches."""
    at = 0
    while at < len(sequence):
        accepted = 0
        while accepted < k and at + accepted < len(sequence) and sequence[at + accepted]:
            accepted += 1
        yield k, accepted
        at += accepted + 1  # the token that the target adds: the correction, or one more


def _runs(rounds: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    matches, missed = [0], [0]
    for drafted, accepted in rounds:
        matches[-1] += accepted + (accepted == drafted)
        if accepted < drafted:
            missed[-1] = 1
            matches.append(0)
            missed.append(0)
    return matches, missed


@given(st.lists(st.booleans(), min_size=1, max_size=200), st.integers(1, 8), st.integers(1, 8))
def test_rounds_of_a_shorter_chain_are_counted_exactly(
    sequence: list[bool], k: int, shorter: int
) -> None:
    """A sequence in which the target's own token is a match wherever a chain was accepted whole."""
    k = max(k, shorter)
    wide = list(_served(sequence, k))
    known = [match for _, accepted in wide for match in [True] * accepted + [accepted == k]]
    matches, missed = _runs(wide)
    columns = [np.array(c) for c in (np.zeros(len(matches), int), matches, missed)]
    found = recut(*columns, np.ones(len(matches), int), k=k)[shorter - 1]
    rounds = list(_served(known, shorter))
    assert found.mean_length == pytest.approx(len(known) / len(rounds))


def test_with_the_k_that_ran_it_is_the_length_that_was_served(tmp_path: Path) -> None:
    run = collect(open_run(simulate(tmp_path / "run", Truth(k=5, requests=40, rounds=25))))
    last = lengths_by_k(run)[-1]
    served = summarise(run, "run").acceptance
    assert last.k == 5
    assert last.mean_length == pytest.approx(served.mean_length)
    assert last.mean_length_interval == served.mean_length_interval


def test_a_run_of_several_k_has_none(tmp_path: Path) -> None:
    truth = Truth(k=5, requests=40, rounds=25, k_by_batch=((2, 5), (8, 2)))
    assert lengths_by_k(collect(open_run(simulate(tmp_path / "run", truth)))) == ()


def _rounds(requests: int, seed: int = 3) -> Rounds:
    return side(Truth(requests=requests, rounds=20, k=4, seed=seed, prompts_seed=seed)).rounds


def _long_if_easy(rounds: Rounds) -> Rounds:
    """Return the rounds with three times as many of each request that accepts more than most."""
    length = rounds.accepted / rounds.rounds
    times = np.where(length > np.median(length), 3, 1)
    names = ("rounds", "verified", "histogram", "lengths", "exhausted")
    return replace(rounds, **{name: (getattr(rounds, name).T * times).T for name in names})


def _known(rounds: Rounds) -> Independence:
    return independence_of(rounds, own_units(len(rounds.request)))


def test_length_that_goes_with_ease_is_seen() -> None:
    known = _known(_long_if_easy(_rounds(60)))
    assert known.length_correlation is not None and known.length_correlation > 0.4
    assert known.length_goes_with_ease
    assert not _known(_long_if_easy(_rounds(200))).length_goes_with_ease


def test_length_by_chance_is_not() -> None:
    seen = [_known(_rounds(60, seed)).length_goes_with_ease for seed in range(40)]
    assert sum(seen) <= 4

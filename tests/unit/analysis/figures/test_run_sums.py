"""Figures of a run: requests, rounds, chains and changes over time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.runs import Spec, write_run
from support.simulate import Prompts, Truth, simulate
from support.simulate.sums import series, side

from driftscope.analysis.figures import verified_chains as module
from driftscope.analysis.figures.chains import Shape, finite_sums
from driftscope.analysis.figures.change_points import Changes, Series, changes
from driftscope.analysis.figures.requests import UNFINISHED, Units, units_of
from driftscope.analysis.figures.rounds import grouped
from driftscope.analysis.figures.verified_chains import BANDS, answers, chain_sample, relations
from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.statistics.changes import LEAST
from driftscope.analysis.statistics.strata import AssociationAnswer
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import UsageError
from driftscope.findings.finding import Trust
from driftscope.json_report import figures_of
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH
from driftscope.pipeline import conclude, summarise
from driftscope.trace.reader import Trace, read_trace
from driftscope.vocabulary import AUX, BY_DEPTH, MASSES
from driftscope_reports.tables import LEFT_OUT, figure_rows

KINDS = (Prompts(label="chat"), Prompts(label="code", shift=-0.5))
TRUTH = Truth(requests=200, rounds=20, batches=(5,), prompts=KINDS, replicas=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(simulate(tmp_path_factory.mktemp("cohort") / "run", TRUTH))


def _read_at(trace: Trace, share: float) -> Trace:
    """Return the trace as it is when this share of its time has passed."""
    times = trace.verify["time_s"].to_numpy()
    end_s = times.min() + share * np.ptp(times)
    tables = {name: getattr(trace, name) for name in ("draft", "verify", "step", "request")}
    return replace(
        trace, **{name: rows.filter(pc.field("time_s") <= end_s) for name, rows in tables.items()}
    )


def _message(run: RunSummary) -> str:
    (found,) = (note for note in conclude([run]).notes if note.id == "unfinished")
    return found.statement


def test_a_recording_of_whole_requests_leaves_out_nothing(whole: Trace) -> None:
    run = summarise(whole, "run")
    assert run.cohort is None
    assert all(note.id != "unfinished" for note in conclude([run]).notes)
    assert all(row[0] != LEFT_OUT for row in figure_rows([run]))
    assert figures_of(run)["cohort"] is None


def test_figures_use_the_requests_that_began_in_time(whole: Trace) -> None:
    """Requests chosen here by hand give the same figures."""
    trace = _read_at(whole, 0.7)
    run = summarise(trace, "run")
    cohort = run.cohort
    assert cohort.enough
    rows = trace.verify.to_pandas()
    rows["key"] = rows.replica.astype(str) + "/" + rows.request
    ended = set(trace.request.to_pandas().pipe(lambda t: t.replica.astype(str) + "/" + t.request))
    lives = rows.groupby("key").agg(
        first=("time_s", "min"), last=("time_s", "max"), replica=("replica", "first")
    )
    end_s = lives.replica.map(lives.groupby("replica")["last"].max())
    assert cohort.running == sum(key not in ended for key in lives.index)
    used = lives.index[lives["first"] < end_s - cohort.duration_s]
    kept = rows[rows.key.isin(used) & (rows.verified > 0)]
    assert run.rounds == len(kept) < cohort.served.rounds
    assert run.rounds + cohort.left_out == cohort.served.rounds == (rows.verified > 0).sum()
    assert run.acceptance.mean_length == pytest.approx(1 + kept.accepted.mean())
    served = rows[rows.verified > 0].accepted
    assert cohort.served.mean_length == pytest.approx(1 + served.mean())
    assert cohort.served.counted[0] == pytest.approx((served >= 1).mean())
    assert run.recording.chains < trace.draft.num_rows


def test_what_is_left_out_is_told_everywhere(whole: Trace) -> None:
    run = summarise(_read_at(whole, 0.7), "run")
    cohort = run.cohort
    assert f"{cohort.left_out} rounds of {cohort.served.rounds:,} are left out" in _message(run)
    assert f"{cohort.running} had not finished" in _message(run)
    (row,) = (row for row in figure_rows([run]) if row[0] == LEFT_OUT)
    assert row[1] == f"{cohort.left_out:,}"
    content = json.loads(json.dumps(figures_of(run)))["cohort"]
    assert content["left_out"] == cohort.left_out
    assert content["served"]["rounds"] == cohort.served.rounds
    timeline = run.closeup.timeline if run.closeup else None
    steps = sum(sum(step) for step in timeline.steps.values())
    assert steps > run.fallback.steps, "the picture of what happened has every step"


def test_requests_that_have_not_finished_are_no_label(whole: Trace) -> None:
    run = summarise(_read_at(whole, 0.7), "run")
    assert {segment.label for segment in run.segments} == {"chat", "code"}
    assert {group.name for group in run.groups.label} == {"chat", "code"}
    assert UNFINISHED not in run.groups.shares


def test_too_short_a_recording_cannot_tell(whole: Trace) -> None:
    run = summarise(_read_at(whole, 0.03), "run")
    assert not run.cohort.enough
    assert run.rounds == run.cohort.served.rounds, "all of it is shown"
    spread = (run.acceptance.mean_length_interval, run.acceptance.marginal_interval, run.changes)
    assert spread == (None, None, None)
    assert "cannot tell means and trends" in _message(run)
    assert "stop recording after the requests, or record longer" in _message(run)
    assert all(finding.confidence is Trust.LOW for finding in conclude([run]).findings)
    (row,) = (row for row in figure_rows([run]) if row[0] == LEFT_OUT)
    assert row[1] == "cannot tell"


def test_a_cut_leaves_out_requests_that_had_begun(whole: Trace) -> None:
    times = whole.verify.column("time_s")
    lasted = pc.max(times).as_py() - pc.min(times).as_py()
    run = summarise(whole, "run", only=Filter(since=f"{lasted / 2:.6f}s"))
    assert run.cohort.early_requests > 0 == run.cohort.late_requests
    rows = whole.verify.to_pandas()
    first = rows.groupby(["replica", "request"]).time_s.transform("min")
    begin_s = times.to_numpy().max() - lasted / 2
    kept = rows[(first >= begin_s - 1e-6) & (rows.verified > 0)]
    assert run.rounds == len(kept)
    assert "had begun before the cut" in _message(run)


def test_aborted_requests_stay(whole: Trace) -> None:
    reasons = pa.array(["abort"] * whole.request.num_rows)
    at = whole.request.schema.get_field_index("finish_reason")
    aborted = whole.request.set_column(at, "finish_reason", reasons)
    assert summarise(replace(whole, request=aborted), "run").cohort is None


ROWS = 12
PROMPTS = [f"p{n % 4}" for n in range(ROWS)]
SESSIONS = [f"s{n // 4}" for n in range(ROWS)]


def _units(column: str | None = None, **columns: Sequence[str | None]) -> Units:
    names = ("prompt_digest", "conversation", "session", "pair", "label")
    table = pa.table(
        {
            "request": [f"r{n}" for n in range(ROWS)],
            **{name: pa.array(columns.get(name, [None] * ROWS), pa.string()) for name in names},
        }
    )
    return units_of(table, np.arange(ROWS), ROWS, column)


def _same(units: Units, names: Sequence[str | None]) -> bool:
    """Whether requests share a unit exactly if they share a name."""
    pairs = set(zip(units.unit.tolist(), names, strict=True))
    return len(pairs) == len(set(units.unit.tolist())) == len(set(names))


OWN = [f"p{n}" for n in range(ROWS)]
ROOT = ["p0", "p0", "p0", "p3", "p3", *OWN[5:]]
ASKED = [f"q{n % 2}" for n in range(ROWS)]
LABELS = [f"l{n % 3}" for n in range(ROWS)]


@pytest.mark.parametrize(
    ("columns", "asked", "names", "noun"),
    [
        ({"prompt_digest": PROMPTS, "conversation": PROMPTS}, None, PROMPTS, "prompt"),
        ({"prompt_digest": PROMPTS, "pair": ASKED}, None, ASKED, "question"),
        ({"prompt_digest": OWN, "conversation": ROOT}, None, ROOT, "independent group"),
        ({"session": SESSIONS, "prompt_digest": OWN}, None, SESSIONS, "session"),
        ({"session": OWN, "prompt_digest": PROMPTS}, None, PROMPTS, "prompt"),
        ({"label": LABELS, "prompt_digest": PROMPTS}, None, PROMPTS, "prompt"),
        ({"label": LABELS, "prompt_digest": PROMPTS}, "label", LABELS, "label"),
    ],
    ids=[
        "equal prompts are one unit",
        "a replay's question goes before the prompt: in several templates it has several",
        "turns of a conversation are one unit, and a first prompt alone is none",
        "a session contains its prompts",
        "sessions of one prompt each lie within prompts",
        "a label is a unit",
        "only if it is asked for",
    ],
)
def test_units(
    columns: dict[str, list[str]], asked: str | None, names: list[str], noun: str
) -> None:
    units = _units(asked, **columns)
    assert _same(units, names)
    assert (units.noun, units.seen, units.crossed) == (noun, True, None)
    assert noun != "independent group" or units.in_time is not None
    assert noun != "prompt" or units.prompt is not None


def test_prompts_that_sessions_share_cross_them() -> None:
    units = _units(session=SESSIONS, prompt_digest=PROMPTS)
    assert _same(units, SESSIONS)
    assert len(set(units.crossed.tolist())) == 4


def test_an_unknown_column_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"--cluster 'user': give one of session, [^\n]+"):
        _units("user")


def test_groups_keep_every_round_and_stay_pairs() -> None:
    truth = Truth(requests=300, rounds=5, k=3)
    sides = side(truth), side(replace(truth, seed=9))
    small = grouped(sides, 40, paired=True)
    assert len(small[0].labels) <= 40
    for whole, group in zip(sides, small, strict=True):
        assert (group.rounds.histogram.sum(axis=0) == whole.rounds.histogram.sum(axis=0)).all()
    rounds = [group.rounds.rounds for group in small]
    assert (rounds[0] == rounds[1]).all(), "the same prompts have as many rounds"


def test_chains_without_any_list_have_sums() -> None:
    shape = Shape(
        k=4,
        ks=(4,),
        depths=4,
        layers=1,
        aux=0,
        sink_slots=(0,),
        sinkless=False,
        absent=(*MASSES, *BY_DEPTH, *AUX),
    )
    found = finite_sums(pa.table({"chains": [3], "weight": [3.0], "misfits": [0]}), shape)
    assert found.to_pylist() == [{"chains": 3, "weight": 3.0}]


REQUESTS = 5_000
PER_REQUEST = 100


def _run(requests: int = REQUESTS, length: int = 200, every: int = 10) -> Any:
    """Requests in random order of their numbers, which begin `every` steps apart."""
    begin = np.random.default_rng(1).permutation(requests) * every
    spans = np.stack([begin, begin + length], axis=1)
    return SimpleNamespace(recorded=np.full(requests, PER_REQUEST), drafted_in=spans)


def test_a_large_run_is_sampled_in_bands_over_all_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COMPARED", 50_000)
    run = _run()
    requests, steps = chain_sample(run)
    assert run.recorded[requests].sum() == pytest.approx(50_000, rel=0.05)
    begin = np.sort(run.drafted_in[requests, 0])
    bands = np.split(begin, np.flatnonzero(np.diff(begin) > 10) + 1)
    assert len(bands) == BANDS
    starts = np.array([band[0] for band in bands])
    assert np.diff(starts) == pytest.approx(REQUESTS * 10 / BANDS)
    spans = run.drafted_in[requests].tolist()
    wanted = {step for first, last in spans for step in range(first, last + 1)}
    assert steps.tolist() == sorted(wanted)
    assert len(wanted) < REQUESTS * 10 / 2


def test_steps_that_would_fill_the_memory_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPARED", 50_000)
    run = _run()
    run.drafted_in[:, 1] = 2**62
    assert chain_sample(run)[1] is None
    monkeypatch.setattr(module, "MOST_STEPS", 10)
    assert chain_sample(_run())[1] is None


def test_reading_only_its_steps_changes_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", Spec(requests=300))
    monkeypatch.setattr(module, "COMPARED", 500)
    in_steps = summarise(run, "run")
    monkeypatch.setattr(module, "MOST_STEPS", 0)
    in_all = summarise(run, "run")
    assert 0 < in_steps.recording.looked_at < 1_000
    assert in_steps == in_all


DEPTHS = 4


def _chains(effect: float, requests: int = 40, rounds: int = 40) -> pa.Table:
    """Chains in which the mass on the chain itself lowers the logit of acceptance by `effect`."""
    random = np.random.RandomState(1)
    rows: list[dict[str, Any]] = []
    for request in range(requests):
        for position in range(rounds):
            own = random.normal(0.3, 0.05, DEPTHS)
            logit = 1.0 + effect * (own - 0.3) / 0.05
            hit = random.random_sample(DEPTHS) < 1 / (1 + np.exp(-logit))
            accepted = int(np.minimum.accumulate(hit).sum())
            row = {"cluster": request, "position": position, "accepted": accepted, "drawn": DEPTHS}
            for depth in range(DEPTHS):
                row |= {f"self_mass_{depth}": own[depth], f"fed_rms_{depth}": 1.0 + depth}
                row |= {f"top1_{depth}": 0.5, f"entropy_{depth}": 1.0}
            rows.append(row)
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(
    ("effect", "answer"), [(-0.5, AssociationAnswer.LESS), (0.5, AssociationAnswer.MORE)]
)
def test_the_mass_of_the_query_that_proposed_a_token_counts(
    effect: float, answer: AssociationAnswer
) -> None:
    own, growth = relations(_chains(effect), DEPTHS)
    assert (own.measure, growth.measure) == (SELF.name, GROWTH.name)
    assert answers([own, growth]) == (answer, AssociationAnswer.CANNOT_TELL)
    assert own.alone.sd == pytest.approx(0.05, rel=0.05)
    assert own.beyond_confidence.per_sd == pytest.approx(own.alone.per_sd)
    assert growth.alone is None, "the state grows alike in all chains"


def test_only_tokens_that_verification_reached_count() -> None:
    chains = _chains(-0.5)
    own, _ = relations(chains, DEPTHS)
    accepted = np.asarray(chains.column("accepted"))
    assert own.alone.rows <= np.minimum(accepted + 1, DEPTHS).sum()


STEP = Truth(requests=120, rounds=20, change=(0.5, -1.5))


def found_in(truth: Truth) -> Changes:
    found = changes(series(truth))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_where_it_is(seed: int) -> None:
    (point,) = found_in(replace(STEP, seed=seed, prompts_seed=seed)).points
    assert abs(point.time_s - 60) <= 5
    assert point.interval.high < 0
    assert point.after - point.before == pytest.approx(point.difference)


def test_a_flat_run_is_seldom_cut() -> None:
    """5 of 100 runs of one kind are to be expected; 12 or more have a chance of 0.4 %."""
    flat = Truth(requests=60, rounds=12)
    cut = [bool(found_in(replace(flat, seed=n, prompts_seed=n)).points) for n in range(100)]
    assert sum(cut) < 12


def test_a_step_back_gives_two_points() -> None:
    data = series(replace(STEP, requests=180, change=None))
    low = slice(60, 120)
    data.tokens[low] = data.rounds[low] + 0.4 * (data.tokens[low] - data.rounds[low])
    found = changes(data)
    assert [point.difference > 0 for point in found.points] == [False, True]
    assert found.gradual is False


def test_a_slope_is_told_from_a_step() -> None:
    assert found_in(replace(STEP, change=None, decay=-2.0)).gradual is True
    assert found_in(STEP).gradual is False


def test_a_changed_mix_is_not_held_against_the_drafter() -> None:
    """Easy requests give way to hard ones half-way, and each kind accepts as it always did."""
    data = series(Truth(requests=200, rounds=20, between=0.1))
    easy = np.random.RandomState(1).random_sample(200) < np.repeat([0.9, 0.1], 100)
    accepted = (data.tokens - data.rounds) * np.where(easy, 1.0, 0.3)
    mixed = Series(
        start_s=data.start_s,
        end_s=data.end_s,
        tokens=data.rounds + accepted,
        rounds=data.rounds,
        labels=np.where(easy, "easy", "hard"),
    )
    found = changes(mixed)
    assert not found.points
    assert found.raw is not None, "the requests as they came did change"
    assert found.raw.same_mix is not None
    assert found.raw.adjusted is not None
    for left in (found.raw.same_mix, found.raw.adjusted):
        assert abs(left) < 0.2 * abs(found.raw.difference)


def test_too_few_requests_say_nothing() -> None:
    assert changes(series(Truth(requests=2 * LEAST - 1))) is None

"""The unit of inference of a run, from its files to intervals, findings and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from support.simulate import Truth, simulate

from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.catalogue import REPEATS_UNSEEN
from driftscope.findings.finding import Severity, Trust
from driftscope.json_report import to_dict
from driftscope.pipeline import Inputs, analyze, compare, summarise
from driftscope.trace.reader import Trace, read_trace

REPEATED = Truth(requests=80, repeats=5, rounds=20)
CROSSED = Truth(requests=200, repeats=10, sessions=20, alike=0.5, rounds=10)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Truth], Path]:
    folder = tmp_path_factory.mktemp("runs")

    def made(name: str, truth: Truth) -> Path:
        return folder / name if (folder / name).exists() else simulate(folder / name, truth)

    return made


def _width(run: RunSummary) -> float:
    interval = run.acceptance.mean_length_interval
    assert interval is not None
    return interval.high - interval.low


def test_repeated_prompts_widen_every_interval(run: Callable[[str, Truth], Path]) -> None:
    path = run("repeated", REPEATED)
    by_prompt = summarise(path, "a")
    by_request = summarise(replace(open_run(path), cluster="request"), "a")
    known = by_prompt.independence
    assert known is not None
    assert (known.noun, known.clusters, known.requests) == ("prompt", 16, 80)
    assert known.design_effect is not None and known.design_effect > 2
    assert known.worth == pytest.approx(80 / known.design_effect)
    assert known.icc is not None and known.icc > 0.3
    assert _width(by_prompt) > 1.4 * _width(by_request)
    for name in ("conditional", "died", "self_mass", "growth"):
        pairs = zip(by_prompt.spread[name], by_request.spread[name], strict=True)
        clusters = [(a.clusters, b.clusters) for a, b in pairs if a and b]
        assert clusters
        assert all(a and b and a < 17 < b for a, b in clusters), name
    share = by_prompt.fallback_spread.rejected
    assert share is not None and share.clusters is not None and share.clusters < 17


def test_the_first_screen_and_the_json_say_what_requests_are_of(
    run: Callable[[str, Truth], Path],
) -> None:
    analysis = analyze(Inputs(sources=[run("repeated", REPEATED)], labels=["a"]))
    assert analysis.answers[0].statement.startswith("80 requests of 16 prompts, 1,630 rounds")
    clusters = to_dict(analysis)["runs"][0]["independence"]
    assert (clusters["noun"], clusters["clusters"], clusters["requests"]) == ("prompt", 16, 80)
    assert clusters["worth"] < 80


def test_two_runs_of_repeated_prompts_are_compared_by_prompt(
    run: Callable[[str, Truth], Path],
) -> None:
    paths = [run(f"repeated {n}", replace(REPEATED, seed=n, prompts_seed=11 + n)) for n in (0, 1)]
    compared = compare(*paths, ("a", "b"))
    assert compared.clusters == (16, 16)
    assert compared.requests == (80, 80)
    by_request = compare(*paths, ("a", "b"), cluster="request")
    wide, narrow = (
        each.at("acceptance.mean_length")[0].interval for each in (compared, by_request)
    )
    assert wide and narrow
    assert wide.high - wide.low > 1.4 * (narrow.high - narrow.low)


def test_changes_over_time_are_over_sessions(run: Callable[[str, Truth], Path]) -> None:
    truth = Truth(requests=240, sessions=24, alike=1.2, rounds=10)
    changes = summarise(run("sessions", truth), "a").changes
    assert changes is not None
    assert (changes.clusters, changes.keyed) == (24, True)
    by_request = summarise(
        replace(open_run(run("sessions", truth)), cluster="request"), "a"
    ).changes
    assert by_request is not None
    assert (by_request.clusters, by_request.keyed) == (240, False)


OLD = replace(REPEATED, requests=400, repeats=1, digests=False, conditional=(0.05,) * 7)


def test_an_old_trace_cannot_show_repeats_and_is_never_certain(
    run: Callable[[str, Truth], Path],
) -> None:
    new = analyze(Inputs(sources=[run("weak", replace(OLD, digests=True))], labels=["a"]))
    old = analyze(Inputs(sources=[run("weak, old", OLD)], labels=["a"]))
    rest = [f.id for f in new.findings if f.severity is Severity.HIGH]
    assert rest, "without this the test says nothing"
    judged = {finding.id: finding for finding in old.findings}
    for name in rest:
        low = [value for key, value in judged[name].evidence.items() if key.endswith("_low")]
        if any(value is not None for value in low):
            assert judged[name].severity is Severity.MEDIUM
            assert judged[name].confidence is not Trust.HIGH
            assert REPEATS_UNSEEN in judged[name].because
    assert any(warning.id == "repeats_unseen" for warning in old.notes)
    assert not any(warning.id == "repeats_unseen" for warning in new.notes)


def test_an_old_trace_of_greedy_repeated_prompts_is_suspected(
    run: Callable[[str, Truth], Path],
) -> None:
    trace = _greedy(read_trace(run("old", replace(REPEATED, digests=False))))
    analysis = analyze(Inputs(sources=[trace], labels=["a"]))
    known = analysis.runs[0].independence
    assert known is not None
    assert known.suspected
    assert known.clusters == 16
    assert any("16 likely prompts" in warning.statement for warning in analysis.notes)


def _greedy(trace: Trace) -> Trace:
    """Return the trace with the first request's rounds for every request of a prompt, as a server
    at temperature 0 answers."""
    prompts = REPEATED.requests // REPEATED.repeats
    verify = trace.verify.to_pandas().sort_values(["request", "position", "time_s"])
    number = verify["request"].str.removeprefix("req-").astype(int)
    place = verify.groupby("request").cumcount()
    first = {
        (n % prompts, at): accepted
        for n, at, accepted in zip(number, place, verify["accepted"], strict=True)
        if n < prompts
    }
    keys = zip(number % prompts, place, strict=True)
    verify["accepted"] = [first[key] for key in keys]
    table = pa.Table.from_pandas(verify, schema=trace.verify.schema, preserve_index=False)
    return replace(trace, verify=table)


def test_every_figure_has_the_variance_over_prompts_and_sessions_that_cross(
    run: Callable[[str, Truth], Path],
) -> None:
    path = run("crossed", replace(CROSSED, undrafted={"structured_output": 0.1}))
    both = summarise(path, "a")
    known = both.independence
    assert known is not None
    assert (known.noun, known.clusters, known.crossed) == ("session", 20, 20)
    by_prompt = summarise(replace(open_run(path), cluster="prompt_digest"), "a")
    by_session = summarise(replace(open_run(path), cluster="session"), "a")

    def widths(one: RunSummary) -> list[float]:
        found = [
            one.hidden.growth_interval,
            one.spread["top1"][0],
            one.latency.tpot_s_interval,
            one.fallback_spread.undrafted,
        ]
        return [each.high - each.low for each in found if each]

    assert _width(both) >= max(_width(by_prompt), _width(by_session)) - 1e-9
    pairs = zip(widths(both), widths(by_prompt), widths(by_session), strict=True)
    for either, prompt, session in pairs:
        assert either >= max(prompt, session) * 0.999

"""Speed of one server over another's, and what other policies would have served."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import RandomState
from support.analyses import analyzed, client_row, summary_of, trimmed_trace, write_replay
from support.command import run_command
from support.runs import Spec, write_run
from support.simulate import Cost, Truth, simulate

from benchmarks.calibration.advice import (
    AS_SERVED,
    ASKED,
    TRUTHS,
    AdviceWorld,
    K,
    recorded,
    recorded_on,
    served,
    simulated_text,
    true_gain,
)
from benchmarks.calibration.inside import CONFIDENCES, scored_rounds
from driftscope.analysis.advice import advise, served_option
from driftscope.analysis.cost import fit
from driftscope.analysis.figures.calibration import calibrations
from driftscope.analysis.replays import CONTENDER, SPECULATION
from driftscope.analysis.speed import TPOT, is_faster, measured_effect, speeds_of, with_run_effect
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.time_per_token import ORACLE, policies, threshold_words
from driftscope.findings.case import replay_cases_of
from driftscope.findings.catalogue import Analysis, conclude
from driftscope.findings.finding import Answer, Finding, Topic
from driftscope.findings.first_screen import State
from driftscope.findings.rules_pays import slower_for_clients
from driftscope.metrics.confidence import placements
from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace
from driftscope.trace.records import ClientRow
from driftscope.vocabulary import Ended
from driftscope_reports.html import to_html


def _rounds(drafts: bool) -> dict[str, Any]:
    return (
        {"accepted": [1, 3], "verified": [4, 4]} if drafts else {"accepted": None, "verified": None}
    )


def _sent(run: Path, rows: list[ClientRow], *, drafts: bool) -> Path:
    return write_replay(run, rows, **{SPECULATION: drafts, CONTENDER: run.name.split(" ")[0]})


def _replay(run: Path, tpot_s: float, *, drafts: bool, answered: int = 32, **values: Any) -> Path:
    """A replay of one server at two loads, whose prompts differ by a few percent."""
    rows = [
        client_row(
            32 * load + at,
            pair=f"p{at}",
            tpot_s=tpot_s * (1 + 0.02 * (at % 3)) * (1.5 if load and drafts else 1.0),
            ended=Ended.ANSWERED if at < answered else Ended.TIMEOUT,
            **{"concurrency": 4 if load else 1, **_rounds(drafts), **values},
        )
        for load in (0, 1)
        for at in range(32)
    ]
    return _sent(run, rows, drafts=drafts)


def _two(folder: Path, plain_s: float, spec_s: float, **own: Any) -> tuple[Path, Path]:
    """Replays of a server without speculation, and of one with it that differs in `own`."""
    plain = _replay(folder / "plain", plain_s, drafts=False)
    return plain, _replay(folder / "spec", spec_s, drafts=True, **own)


def _pays(analysis: Analysis) -> Finding:
    (found,) = [
        one
        for one in (*analysis.answers, *analysis.findings)
        if one.topic is Topic.PAYS and not one.reference and one.answer is not None
    ]
    return found


def _against(plain: Path, spec: Path) -> Finding:
    return _pays(analyzed(spec, baseline=plain))


@pytest.mark.parametrize("busy", [False, True])
def test_a_neighbour_for_a_while_makes_no_answer(tmp_path: Path, busy: bool) -> None:
    """Each request of the first load, and of both servers, takes 20 ms a token."""
    paths = []
    for drafts in (False, True):
        rows = [
            client_row(
                at,
                pair=f"p{at}",
                tpot_s=0.02 * (1 + 0.03 * (at % 3)) * (1.8 if busy and 8 <= at < 20 else 1.0)
                if not drafts
                else 0.02 * (1 + 0.03 * (at % 2)),
                **_rounds(drafts),
            )
            for at in range(32)
        ]
        paths.append(_sent(tmp_path / ("spec" if drafts else "plain"), rows, drafts=drafts))
    found = _against(*paths)
    assert found.answer is Answer.CANNOT_TELL
    assert ("12 answers in a row took another time" in found.statement) == busy
    assert (found.estimate or 0.0) == pytest.approx(1.3 if busy else 1.01, abs=0.03)


def test_answers_in_one_piece_are_compared_with_the_wait_for_their_first_token(
    tmp_path: Path,
) -> None:
    """A front end that falls behind passes half of the answers on in one piece, and the others'
    tokens in bunches: the time after the first one is too short by half."""
    paths = []
    for drafts, whole_s in ((False, 0.4), (True, 0.28)):
        rows = [
            client_row(
                at,
                pair=f"p{at}",
                concurrency=1,
                tpot_s=whole_s / 10 if drafts else None if at % 2 else whole_s / 20,
                ttft_s=0.02 if drafts else 0.2 + 0.2 * (at % 2),
                e2e_s=whole_s * (1 + 0.02 * (at % 3)),
                **_rounds(drafts),
            )
            for at in range(32)
        ]
        paths.append(_sent(tmp_path / ("spec" if drafts else "plain"), rows, drafts=drafts))
    found = _against(*paths)
    assert found.estimate == pytest.approx(0.4 / 0.28, abs=0.01)
    assert "28.5 ms per token, 40.8 ms without)" in found.statement
    assert "at 1 at once times include the wait for the first token" in found.statement
    # No server's clock says that the first token itself was not faster.
    assert found.answer is Answer.CANNOT_TELL
    assert "first token at 1 at once, which speculation does not shorten" in found.statement


def test_the_answer_names_each_load(tmp_path: Path) -> None:
    """Also for a replay that is given as the baseline of another one, which was ignored once."""
    plain, spec = _two(tmp_path, 0.02, 0.01)
    found = _against(plain, spec)
    assert found.answer is Answer.YES
    assert found.statement.startswith("speculation pays at 1 and 4 at once: 2.00× as fast as")
    assert "1.33× as fast as without (1.16× to 1.53×; 15.3 ms per token, 20.4" in found.statement
    together = analyzed(spec, plain)
    assert _pays(together).statement == found.statement
    assert together.screen.lead == _pays(together), "a report that holds such a pair says so first"


@pytest.mark.parametrize(
    ("own", "loads", "words"),
    [
        ({}, " at 1 and 4 at once", ""),
        ({"answered": 30}, " at 1 and 4 at once", ""),
        (
            {"answered": 24},
            "",
            "but the replays also differ in requests answered (32 of 32 against 24 of 32)",
        ),
        ({"ttft_s": 0.4}, "", "the wait for the first token, which takes back most of the"),
        ({"ttft_s": 0.05}, "", "first token at 1 at once, which speculation does not shorten"),
        ({"output_tokens": 5}, "", "also differ in answer length (10 against 5 tokens)"),
        ({"prompt_tokens": 30}, "", "also differ in the lengths of their prompts"),
        (
            {"ttft_s": 0.05, "cached_tokens": 18},
            " at 1 at once",
            "but the replays also differ in what of the prompts was in the cache (0% against 90%)",
        ),
    ],
)
def test_what_else_explains_a_speedup_is_no_yes(
    tmp_path: Path, own: dict[str, Any], loads: str, words: str
) -> None:
    """A token takes half the time, and something else differs; or little does, which is a yes."""
    known = {"cached_tokens": 0} if "cached_tokens" in own else {}
    plain = _replay(tmp_path / "plain", 0.02, drafts=False, **known)
    found = _against(plain, _replay(tmp_path / "spec", 0.01, drafts=True, **own))
    assert found.answer is (Answer.YES if loads else Answer.CANNOT_TELL)
    assert found.statement.startswith(f"speculation pays{loads}" if loads else "whether")
    assert words in found.statement and (not words) == ("but the" not in found.statement)
    assert loads or "--rounds" not in found.advice, "more of the same does not settle it"


def test_a_cache_that_one_server_does_not_report_explains_nothing(tmp_path: Path) -> None:
    found = _against(*_two(tmp_path, 0.02, 0.01, cached_tokens=18))
    assert found.statement.startswith("speculation pays at 1 and 4 at once: 2.00×")


def test_servers_on_two_machines_are_compared_if_those_are_alike(tmp_path: Path) -> None:
    """Speculation that costs time is told from a slower machine by the time to the first token."""
    plain = _replay(tmp_path / "plain", 0.01, drafts=False)
    for tpot_s, ttft_s, url, answer in (
        (0.02, 0.1, "http://y/v1", Answer.NO),
        (0.02, 0.2, "http://x/v1", Answer.NO),
        (0.02, 0.2, "http://y/v1", Answer.CANNOT_TELL),
        (0.005, 0.112, "http://y/v1", Answer.YES),
        (0.005, 0.088, "http://y/v1", Answer.YES),
        (0.005, 0.05, "http://y/v1", Answer.CANNOT_TELL),
    ):
        run = _replay(tmp_path / f"{tpot_s} {ttft_s} {url[7]}", tpot_s, drafts=True, ttft_s=ttft_s)
        text = (run / "manifest.json").read_text()
        (run / "manifest.json").write_text(text.replace("http://x/v1", url))
        found = _against(plain, run)
        assert found.answer is answer, found.statement


@pytest.mark.parametrize(("runs", "answer"), [(2, Answer.YES), (5, Answer.CANNOT_TELL)])
def test_the_fastest_of_several_runs_is_not_faster_by_chance(
    tmp_path: Path, runs: int, answer: Answer
) -> None:
    """All but the last are alike, which is a sixth faster: two starts of one server differ so in
    one of fifty pairs."""
    truth = Truth(requests=60, rounds=20, k=4, batches=(1,))
    fast = replace(truth.cost, base_s=0.0078)
    costs = [*[truth.cost] * (runs - 1), fast]
    sources = [simulate(tmp_path / f"r{n}", replace(truth, cost=c)) for n, c in enumerate(costs)]
    analysis = analyzed(*sources)
    last = [one for one in analysis.answers if one.reference and one.runs == (f"r{runs - 1}",)]
    (found,) = [one for one in last if one.topic is Topic.PAYS]
    assert found.answer is answer, found.statement


def test_replays_at_other_loads_are_said_to_be_so(tmp_path: Path) -> None:
    plain = _replay(tmp_path / "plain", 0.02, drafts=False, concurrency=16)
    found = _against(plain, _replay(tmp_path / "spec", 0.01, drafts=True))
    assert found.answer is Answer.CANNOT_TELL
    assert found.statement.endswith("told: with it at loads of 1 and 4, without it at 16")


def test_one_of_several_loads_and_servers_is_no_yes_by_chance() -> None:
    sure = Interval(low=1.15, high=1.25)
    widths = [with_run_effect(1.2, sure, **many).low for many in ({}, {"loads": 3}, {"servers": 4})]
    assert widths == sorted(widths, reverse=True) and widths[0] > 1.03 > 1.0 > widths[2]


def test_a_load_that_loses_is_a_no_with_the_schedule_as_advice(tmp_path: Path) -> None:
    plain, spec = _two(tmp_path, 0.013, 0.01)
    analysis = analyzed(spec, plain)
    found = _pays(analysis)
    assert found.answer is Answer.NO and found.option is None
    assert "speculation pays at 1 at once: 1.30×" in found.statement
    assert "speculation costs time at 4 at once: 0.87×" in found.statement
    assert "num_speculative_tokens_per_batch_size" in analysis.screen.actions[0].advice
    found = _pays(analyzed(_replay(tmp_path / "slow", 0.02, drafts=True), plain))
    assert found.answer is Answer.NO
    assert found.statement.startswith("speculation costs time at 1 and 4 at once: 0.65×")


def test_rounds_of_one_server_are_one_replay(tmp_path: Path) -> None:
    runs = [
        _replay(tmp_path / f"{name} ({number})", tpot_s, drafts=name == "spec")
        for number in (1, 2)
        for name, tpot_s in (("spec", 0.01), ("plain", 0.02))
    ]
    analysis = analyzed(*runs, labels=["a", "b", "c", "d"])
    assert [(replay.label, replay.planned) for replay in analysis.senders] == [
        ("a", 128),
        ("b", 128),
    ]
    alone = speeds_of(*(analyzed(run).senders[0] for run in runs[1::-1]))
    both = analysis.replay_cases[0].speeds
    widths = [one[0].by_client[TPOT].interval for one in (alone, both)]
    assert widths[1].high < widths[0].high, "two starts know more than one"


def test_a_speedup_that_clients_do_not_get_is_no_yes(tmp_path: Path) -> None:
    """The server's clock shows twice the speed, the clients' clock none at 1 at once."""
    analysis = analyzed(*_two(tmp_path, 0.02, 0.0199))
    other, own = (
        replace(
            replay,
            rows=tuple({**row, "server_tpot_s": row["tpot_s"] / factor} for row in replay.rows),
        )
        for replay, factor in zip(analysis.senders, (1.0, 2.0), strict=True)
    )
    (case,) = replay_cases_of([own], other)
    found = slower_for_clients(case)
    assert "pays cannot be told at 1 at once: 1.01×" in found.statement
    assert "at 1 at once the server alone is 2.01× as fast, but its clients get 1.01×" in (
        found.statement
    )


def test_a_run_answers_by_the_replay_that_it_served(tmp_path: Path) -> None:
    dead = write_run(tmp_path / "dead", Spec(conditional=(0.0,) * 4, rounds=30))
    analysis = analyzed(dead, *_two(tmp_path, 0.02, 0.05)[::-1])
    (run,), (mine, other) = analysis.runs, analysis.senders
    rows = tuple({**row, "server_run_id": run.manifest.run_id} for row in mine.rows)
    found = conclude([run], [replace(mine, rows=rows), other])
    assert [one.id for one in found.findings][:2] == ["nothing_accepted", "slower_than_none"]
    slower = found.findings[1]
    assert slower.statement.startswith("speculation costs time at 1 and 4 at once: 0.40×")
    assert "slower_for_clients" not in {one.id for one in found.findings}, "one answer"


@pytest.mark.parametrize(("second_s", "doubt"), [(0.0104, True), (0.018, False)])
def test_of_several_drafters_the_first_screen_is_about_the_fastest(
    tmp_path: Path, second_s: float, doubt: bool
) -> None:
    """The findings still tell what is wrong with the slower one."""
    times = {"plain": 0.02, "drifts": second_s, "best": 0.01}
    sent = [
        _replay(tmp_path / name, tpot_s, drafts=name != "plain") for name, tpot_s in times.items()
    ]
    served = [
        write_run(tmp_path / "server drifts", Spec(growth=2.5)),
        write_run(tmp_path / "server best", Spec(conditional=(0.9,) * 4, growth=1.0)),
    ]
    made = analyzed(*served, *sent, labels=["drifts", "best", "plain", "d", "b"])
    runs = [replace(run, manifest=replace(run.manifest, run_id=run.label)) for run in made.runs]
    senders = [
        replace(replay, rows=tuple({**row, "server_run_id": run.label} for row in replay.rows))
        for run, name in zip(runs, "db", strict=True)
        for replay in made.senders
        if replay.label == name
    ]
    (plain,) = (replay for replay in made.senders if replay.label == "plain")
    screen = conclude(runs, [plain, *senders]).screen
    assert screen.headline.startswith("best: speculation pays at 1 and 4 at once: 2.00×")
    assert screen.subject is None and screen.state is State.NOTHING_SEEN
    action = screen.actions[0]
    assert action.advice.startswith("Serve with the drafter and K of best.")
    assert ("drifts is" in action.advice) == doubt
    assert action.option == served_option(made.runs[1])
    assert dict(screen.marks)[Topic.PAYS] is Answer.YES
    assert all(finding.runs == ("best",) for finding in screen.actions)


@pytest.mark.parametrize(
    ("value", "low", "high", "faster"),
    [
        (1.3, 1.1, 1.5, True),
        (1.3, 0.9, 1.8, None),
        (1.01, 1.005, 1.015, None),
        (0.7, 0.6, 0.9, False),
    ],
)
def test_faster(value: float, low: float, high: float, faster: bool | None) -> None:
    assert is_faster(value, Interval(low=low, high=high)) is faster


def test_runs_of_one_server_differ_by_the_run_effect() -> None:
    sure = Interval(low=1.1, high=1.1)
    single, often = (with_run_effect(1.1, sure, starts=starts) for starts in (1, 8))
    assert single.low == pytest.approx(1.1 / 1.149, abs=1e-3) and often.low > 1.0
    assert measured_effect([0.1]) == pytest.approx(0.05), "one round shows nothing"
    assert measured_effect([0.0, 0.4]) > 0.09 > 0.05 > measured_effect([0.1, 0.1]) > 0.04


@pytest.mark.parametrize("seed", range(4))
def test_auroc_is_the_share_of_pairs_in_the_right_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    score = np.round(random.random(80), seed % 2 + 1)  # many ties
    hit = random.random(80) < 0.3 + 0.4 * score
    pairs = list(product(score[hit], score[~hit]))
    by_definition = np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])
    assert placements(score, hit)[hit].mean() == pytest.approx(by_definition, rel=1e-12)
    assert placements(score, hit)[~hit].mean() == pytest.approx(by_definition, rel=1e-12)


def test_planted_temperatures_come_back_and_the_parts_sum_up() -> None:
    world = CONFIDENCES["too sure with depth"]
    made = calibrations(scored_rounds(world, 3)[0])
    for at, planted in zip(made.by_depth, world.temperatures, strict=True):
        assert at.temperature_interval.low <= planted <= at.temperature_interval.high
        parts = at.brier_reliability - at.brier_resolution + at.brier_uncertainty + at.brier_rest
        assert at.brier == pytest.approx(parts, rel=1e-12)
    sums = [
        sum(one.tokens for one in made.reliability if one.depth == at.depth) for at in made.by_depth
    ]
    assert sums == [at.tokens for at in made.by_depth]


WORLD = AdviceWorld(
    verify=TRUTHS["linear"], rates=np.full(12, 0.7), depth_ms=0.5, weights=AS_SERVED
)


def test_thresholds_stand_in_the_order_in_which_they_serve() -> None:
    text = simulated_text(RandomState(3))
    whole = served(text, 0.0)
    model = fit([recorded(WORLD, k, RandomState(3)).cells for k in (K, 1)])
    assert model is not None
    made = policies(model, recorded_on(whole))
    found = {one.threshold: one.gain for one in made}
    true = {at: true_gain(WORLD, whole, served(text, at)) for at in ASKED}
    assert sorted(ASKED, key=lambda at: found[at].value) == sorted(ASKED, key=true.__getitem__)
    for at in ASKED:
        assert found[at].value == pytest.approx(true[at], abs=0.02)
        assert found[at].interval.low <= true[at] <= found[at].interval.high
    (most,) = [one.gain.value for one in made if one.name == ORACLE]
    exact = true_gain(WORLD, whole, replace(whole, verified=whole.accepted))
    assert most == pytest.approx(exact, abs=0.01) and most > max(true.values())


TRUTH = Truth(
    k=4,
    requests=40,
    rounds=40,
    conditional=(0.8, 0.7, 0.6, 0.5),
    batches=(2, 8),
    cost=Cost(base_s=0.004, token_s=0.0006),
)


def test_advise_and_the_page_say_what_a_threshold_would_give(tmp_path: Path) -> None:
    """A token costs much here, so that fewer of them are faster."""
    runs = [simulate(tmp_path / name, replace(TRUTH, k=k)) for name, k in (("four", 4), ("one", 1))]
    told = run_command("advise", *runs)
    assert told.returncode == 0, told.stderr
    assert "threshold 0.9" in told.stdout and "only what is accepted" in told.stdout
    advice = json.loads(run_command("advise", *runs, "--json").stdout)
    assert [one["threshold"] for one in advice["policies"] if one["threshold"]][:2] == [0.3, 0.4]
    assert 0 <= advice["held_out"] < 0.05
    analysis = analyzed(*runs)
    made = analysis.cases[0].advice
    words = threshold_words(made.policies, made.held_out)
    assert "confidence threshold" in words and words[1:] in to_html(analysis)
    shaken = threshold_words(made.policies, 0.2)
    assert shaken.startswith("whether") and "20%" in shaken


def test_a_run_that_was_trimmed_is_refused(tmp_path: Path) -> None:
    """Nothing is known about tokens beyond the cut."""
    other = summary_of(tmp_path / "1", replace(TRUTH, k=1))
    trace = read_trace(simulate(tmp_path / "4", TRUTH))
    whole, trimmed = (
        summarise(run, "run") for run in (trace, trimmed_trace(trace, 3, "token_budget"))
    )
    asked = [advise(run, [other]) for run in (whole, trimmed)]
    assert [bool(made and made.policies) for made in asked] == [True, False]
    assert conclude([trimmed]).runs[0].fallback.cut_share > 0.01

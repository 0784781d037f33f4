"""Each entry of the catalogue has a simulated run on which it speaks and one on which it does not.

A case is one or more runs, the last of which is the one that is judged; a `Baseline` before them is
what it is held against.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.analyses import summary_of, written
from support.runs import Spec
from support.simulate import Cost, Prompts, Truth

from driftscope.analysis.figures.change_points import CONTEXT, Newcomers
from driftscope.findings.catalogue import CATALOGUE, ranked
from driftscope.findings.finding import Answer, Finding, Severity, Trust
from driftscope.findings.first_screen import State
from driftscope.pipeline import Analysis, Inputs, conclude, measure
from driftscope.trace.manifest import FED_AFTER, FED_BEFORE

pytestmark = pytest.mark.slow

Run = Spec | Truth


@dataclass(frozen=True)
class Baseline:
    run: Run


HEALTHY = Truth(
    k=4,
    requests=60,
    rounds=24,
    conditional=(0.9, 0.88, 0.86, 0.85),
    growth=1.0,
    norm_output=True,
    sink=(0.30, 0.29),
    self_last=0.03,
    aux=(1.0, 1.2, 1.1),
    batches=(1, 4),
    rates=(0.3,),
    cost=Cost(depth_s=0.0015, token_s=0.0002),
)
"""K = 4 is the best K here, and nothing is wrong."""
NONE = replace(HEALTHY, k_zero_above=0)
"""The server of HEALTHY without speculation."""
SLOW = replace(
    HEALTHY,
    conditional=(0.3, 0.2, 0.2, 0.2),
    cost=Cost(base_s=0.004, depth_s=0.003, token_s=0.0005),
)
TWO = (Prompts(label="own", share=0.5), Prompts(label="foreign", share=0.5, shift=-1.5))
MIXED = replace(
    HEALTHY,
    k=8,
    rounds=60,
    batches=(*(1,) * 48, 16),
    requests=128,
    conditional=(0.8,) * 8,
    cost=Cost(base_s=0.05, token_s=0.004),
)
"""Three requests alone to one in company, where a token costs much."""
FALLING = replace(
    HEALTHY, conditional=(0.8, 0.3, 0.2, 0.2), cost=Cost(depth_s=0.003, token_s=0.0002)
)
"""K = 1 is the best K here."""
ONE = (Prompts(label="own", share=0.5), Prompts(label="foreign", share=0.5))
APART = (
    Prompts(label="own", tokens=(60, 200)),
    Prompts(label="foreign", tokens=(4000, 8000), shift=-1.5),
)
LONG = (Prompts(tokens=(200, 400)), Prompts(tokens=(4000, 8000)))


def _case(**changes: Any) -> tuple[Truth]:
    """Return the case of one run, which differs from HEALTHY in this."""
    return (replace(HEALTHY, **changes),)


PAIRS: dict[str, tuple[tuple[Run | Baseline, ...], tuple[Run | Baseline, ...]]] = {
    "hidden_state_grows": (_case(growth=1.6, norm_output=False), _case()),
    "hidden_state_stable": (_case(), _case(growth=1.4, norm_output=False)),
    "fed_unlike_input": (
        (replace(FALLING, norm_output=False, fed_state=FED_BEFORE, fed=14.0, growth=1.02),),
        (replace(FALLING, norm_output=True, fed_state=FED_AFTER, fed=14.0, growth=1.02),),
    ),
    "attention_moves_to_chain": (
        _case(self_last=0.25, near=0.03),
        _case(self_last=0.25, near=0.25),
    ),
    "sink_lost": (_case(sink=(0.46, 0.08)), _case(sink=(0.46, 0.40))),
    "no_sink": (_case(sink=(0.02, 0.01)), _case()),
    "captured_layers_unbalanced": (
        _case(aux=(1.0, 4.0, 15.0)),
        _case(aux=(1.0, 4.0, 15.0), aux_norm=(1.0, 1.1, 1.2)),
    ),
    "wrong_tokens": (
        _case(
            conditional=(0.01, 0.01, 0.01, 0.01),
            prompts=(Prompts(temperature=0.7),),
            samples_wrongly=True,
        ),
        _case(prompts=(Prompts(temperature=0.0),), samples_wrongly=True),
    ),
    "acceptance_simulated": (_case(verification="simulated"), _case(verification="exact")),
    "nothing_accepted": (
        _case(conditional=(0.01, 0.01, 0.01, 0.01), between=0.0, within=0.0),
        _case(conditional=(0.2, 0.01, 0.01, 0.01)),
    ),
    "acceptance_low": (
        _case(conditional=(0.15, 0.5, 0.5, 0.5)),
        _case(conditional=(0.5, 0.5, 0.5, 0.5)),
    ),
    "acceptance_falls": (
        _case(conditional=(0.8, 0.1, 0.5, 0.5), between=0.0, within=0.0),
        _case(conditional=(0.85, 0.82, 0.8, 0.8)),
    ),
    "acceptance_dies": (
        _case(conditional=(0.7, 0.3, 0.02, 0.02), between=0.0, within=0.0),
        _case(),
    ),
    "looks_like_a_loop": (
        _case(conditional=(0.9999,) * 4, between=0.0, within=0.0, rounds_spread=0.0),
        _case(),
    ),
    "long_context_collapse": (_case(prompts=LONG, context=-0.9), _case(prompts=LONG)),
    "template_sensitivity": (_case(prompts=TWO), _case(prompts=ONE)),
    "context_or_label": (_case(prompts=APART), _case(prompts=TWO)),
    "region_costs": (
        _case(regions={"prose": (0.7, 0.0), "json": (0.3, -2.0)}),
        _case(regions={"prose": (0.7, 0.0), "json": (0.3, 0.0)}),
    ),
    "boundary_dip": (
        _case(regions={"prose": (1.0, 0.0), "code": (1.0, 0.0)}, boundary=-2.0),
        _case(regions={"prose": (1.0, 0.0), "code": (1.0, 0.0)}),
    ),
    "rank_differs": (_case(rank_state=1.3), _case(rank_state=1.0)),
    "replica_differs": (
        _case(requests=160, replicas=2, replica_shift=-1.5),
        _case(requests=160, replicas=2),
    ),
    "acceptance_decays": (_case(requests=120, decay=-2.0), _case()),
    "acceptance_drops": (_case(requests=120, change=(0.6, -1.5)), _case(requests=120, decay=-2.0)),
    "acceptance_moves": (_case(requests=128, batches=(*(1,) * 64, *(8,) * 8), batch=-0.8), _case()),
    "slower_than_none": (
        (Baseline(replace(SLOW, k_zero_above=0)), SLOW),
        (Baseline(NONE), HEALTHY),
    ),
    "smaller_k": (
        (replace(FALLING, k=1), FALLING),
        (replace(HEALTHY, k=1), HEALTHY),
    ),
    "larger_k": (
        (HEALTHY, replace(HEALTHY, k=1)),
        (FALLING, replace(FALLING, k=1)),
    ),
    "k_by_batch_size": ((replace(MIXED, k=1), MIXED), (replace(HEALTHY, k=2), HEALTHY)),
    "modes_disagree": (
        (HEALTHY, replace(HEALTHY, mode="full graphs", conditional=(0.3,) * 4, seed=3)),
        (HEALTHY, replace(HEALTHY, mode="full graphs", seed=3)),
    ),
    "drafts_missing": (
        _case(undrafted={"no_draft": 0.1}),
        _case(k_zero_above=2, undrafted={"structured_output": 0.3}),
    ),
    "drafts_left_out": (_case(k_zero_above=2), _case(undrafted={"no_draft": 0.1})),
    "structured_output_loses_drafts": (
        _case(undrafted={"structured_output": 0.1}),
        _case(undrafted={"preempted": 0.1}),
    ),
    "steps_slow_down": (
        _case(slowdown=(0.6, 1.0, 1.8)),
        _case(requests=120, batches=(4, 12), prompts=LONG),
    ),
    "runs_part": (
        (HEALTHY, replace(HEALTHY, conditional=(0.9, 0.88, 0.3, 0.3), seed=3)),
        (HEALTHY, replace(HEALTHY, seed=3)),
    ),
    "runs_alike": (
        (HEALTHY, replace(HEALTHY, seed=3)),
        (HEALTHY, replace(HEALTHY, conditional=(0.9, 0.88, 0.3, 0.3), seed=3)),
    ),
    "confidence_off": (
        _case(conditional=(0.7, 0.6, 0.6, 0.6), miscalibration=0.5),
        _case(conditional=(0.7, 0.6, 0.6, 0.6)),
    ),
    "confidence_moves": (
        (replace(FALLING, requests=120, miscalibration=0.5, miscalibrated_from=0.5),),
        _case(requests=120, change=(0.6, -1.5)),
    ),
    "near_misses": (
        _case(conditional=(0.6,) * 4, among_best=0.8),
        _case(conditional=(0.6,) * 4, among_best=0.5, seed=1),
    ),
    "healthy": (_case(k=1), _case(conditional=(0.45, 0.8, 0.8, 0.8))),
}
"""Id -> the case on which it must speak, the one on which it must be silent."""

Analyse = Callable[..., Analysis]


@pytest.fixture
def analyse(tmp_path: Path) -> Analyse:
    """Return the analysis of a case."""
    folders = (tmp_path / str(n) for n in itertools.count())

    def analysis(*case: Run | Baseline) -> Analysis:
        baseline, folder = None, next(folders)
        if isinstance(case[0], Baseline):
            plain = written(folder / "baseline", case[0].run)
            baseline = measure(Inputs(sources=(), labels=(), baseline=plain)).baseline
            case = case[1:]
        runs = [summary_of(folder / f"run{n}", run) for n, run in enumerate(case)]
        return conclude(runs, baseline=baseline)

    return analysis


def _about_last(found: Analysis, name: str) -> list[Finding]:
    label = found.runs[-1].label
    return [f for f in found.findings if f.id == name and f.runs[-1] == label]


def test_every_entry_has_its_pair() -> None:
    assert set(PAIRS) == set(CATALOGUE)


@pytest.mark.parametrize("name", PAIRS)
def test_it_speaks_on_one_run_and_not_on_the_other(analyse: Analyse, name: str) -> None:
    speaks, silent = PAIRS[name]
    loud = analyse(*speaks)
    (finding,) = _about_last(loud, name)
    assert all((finding.statement, finding.advice, finding.because, finding.evidence))
    assert CATALOGUE[name].need.met(loud.cases[-1])
    assert not _about_last(analyse(*silent), name)


def test_a_healthy_run_has_good_news_only(analyse: Analyse) -> None:
    found = analyse(HEALTHY)
    assert {f.id: f.confidence for f in found.findings} == {
        "hidden_state_stable": Trust.HIGH,
        "healthy": Trust.MEDIUM,
    }
    beside = analyse(HEALTHY, replace(HEALTHY, seed=3)).findings
    assert [f.confidence for f in beside if f.id == "healthy"][-1] is Trust.HIGH


def test_what_costs_most_comes_first(analyse: Analyse) -> None:
    worst = replace(
        HEALTHY,
        prompts=LONG,
        context=-0.6,
        undrafted={"no_draft": 0.07},
        growth=2.0,
        norm_output=False,
        conditional=(0.8, 0.3, 0.2, 0.2),
    )
    found = analyse(worst).findings
    asking = [f for f in found if f.severity in (Severity.HIGH, Severity.MEDIUM)]
    costs = [f.cost_tps for f in asking if f.cost_tps is not None]
    assert len(costs) > 1
    assert costs == sorted(costs, reverse=True)
    assert [f.cost_tps is None for f in asking] == sorted(f.cost_tps is None for f in asking)
    assert list(found[: len(asking)]) == asking


def test_the_first_screen_asks_to_serve_with_the_k_that_was_measured_faster(
    analyse: Analyse,
) -> None:
    screen = analyse(*PAIRS["smaller_k"][0]).screen
    assert screen.headline.startswith("run1: serves ")
    assert screen.actions[0].advice == ("Serve with K = 1, as run0 does, instead of K = 4.")


def test_the_k_to_measure_stands_beside_a_finding_and_tells_whether_it_pays(
    analyse: Analyse,
) -> None:
    screen = analyse(PAIRS["acceptance_dies"][0][0]).screen
    *_, measure = screen.actions
    assert "measure K = 1 and whether speculation pays: `driftscope pays " in measure.advice
    texts = [text for _, rows in screen.lines for text in rows]
    assert not any("driftscope pays" in text for text in texts), "one command is enough"


def test_a_loss_along_the_chain_is_told_before_what_explains_it(analyse: Analyse) -> None:
    drifts = replace(HEALTHY, conditional=(0.86, 0.7, 0.55, 0.42), growth=3.5, norm_output=False)
    screen = analyse(drifts).screen
    assert screen.state is State.ACT
    assert screen.cause.startswith("Acceptance falls along the chain: ")
    assert screen.actions[0].title == "The hidden state grows with depth"


@pytest.mark.parametrize(("share", "severity"), [(0.08, Severity.MEDIUM), (1.0, Severity.HIGH)])
def test_long_contexts_are_urgent_if_the_run_loses_by_them(
    analyse: Analyse, share: float, severity: Severity
) -> None:
    long = Prompts(tokens=(4000, 8000), share=share, shift=-2.2)
    run = replace(HEALTHY, requests=300, prompts=(Prompts(tokens=(200, 400)), long))
    (collapse,) = _about_last(analyse(run), "long_context_collapse")
    assert collapse.severity is severity


def test_structured_output_without_a_label_is_a_label_of_its_own(analyse: Analyse) -> None:
    kinds = (
        Prompts(),
        Prompts(structured="json", shift=-1.5),
        Prompts(label="own", structured="json"),
    )
    found = analyse(replace(HEALTHY, requests=120, prompts=kinds))
    (contrast,) = _about_last(found, "template_sensitivity")
    assert '"(json)"' in contrast.statement
    labels = {segment.label for segment in found.runs[0].segments}
    assert labels == {"(json)", "(unlabelled)", "own"}


SLOWED = replace(HEALTHY, requests=120, slowdown=(0.5, 1.0, 2.0))


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({}, Severity.HIGH, "on, steps take 2.0"),
        ({"slowdown": (0.3, 0.6, 2.0)}, Severity.MEDIUM, " to "),
        ({"slowdown": (0.0, 0.4, 2.0)}, Severity.MEDIUM, "until "),
        ({"longer": (0.5, 20.0)}, Severity.INFO, "contexts are "),
    ],
)
def test_slower_steps_are_dated_and_longer_contexts_may_be_why(
    analyse: Analyse, changes: dict[str, Any], severity: Severity, words: str
) -> None:
    (slow,) = _about_last(analyse(replace(SLOWED, **changes)), "steps_slow_down")
    assert slow.severity is severity
    assert words in slow.statement
    assert 1.9 < (slow.evidence["slower"] or 0.0) < 2.1


def test_a_run_whose_steps_slow_down_does_not_tell_whether_speculation_pays(
    analyse: Analyse,
) -> None:
    drafts = replace(SLOWED, slowdown=HEALTHY.slowdown)
    plain = replace(drafts, k_zero_above=0)
    assert analyse(Baseline(plain), drafts).screen.headline.startswith("Speculation pays: ")
    for case in ((plain, SLOWED), (replace(plain, slowdown=SLOWED.slowdown), drafts)):
        assert "a stretch of slower steps" in analyse(Baseline(case[0]), case[1]).screen.headline


def test_long_contexts_that_came_when_acceptance_fell_are_not_known_to_be_why(
    analyse: Analyse,
) -> None:
    long = Prompts(tokens=(4000, 8000), shift=-2.2)
    (case,) = analyse(replace(HEALTHY, requests=300, prompts=(Prompts(), long))).cases
    fell = analyse(replace(HEALTHY, requests=120, change=(0.6, -1.5))).runs[0].changes
    assert fell is not None and fell.raw is not None
    for share_before, severity in ((0.4, Severity.HIGH), (0.0, Severity.MEDIUM)):
        came = Newcomers(
            kind=CONTEXT, value="12", share_before=share_before, share_after=0.8, mean_length=2.0
        )
        changes = replace(fell, raw=replace(fell.raw, newcomers=(came,)))
        found = CATALOGUE["long_context_collapse"](
            replace(case, run=replace(case.run, changes=changes))
        )
        assert found is not None and found.severity is severity
        assert (found.answer is Answer.CANNOT_TELL) is (severity is Severity.MEDIUM)


def test_order_does_not_depend_on_the_order_of_rules(analyse: Analyse) -> None:
    found = analyse(replace(HEALTHY, prompts=TWO, growth=2.0, norm_output=False)).findings
    assert ranked(found[::-1]) == found


@pytest.mark.parametrize(
    ("requests", "trust"), [(40, Trust.HIGH), (12, Trust.MEDIUM), (8, Trust.LOW)]
)
def test_few_requests_make_a_finding_less_sure(
    analyse: Analyse, requests: int, trust: Trust
) -> None:
    spec = replace(HEALTHY, growth=2.5, norm_output=False, requests=requests)
    (finding,) = _about_last(analyse(spec), "hidden_state_grows")
    assert finding.confidence is trust
    assert trust is Trust.HIGH or f"{requests} " in finding.because


def test_slower_than_none_says_by_which_means(analyse: Analyse) -> None:
    (measured,) = _about_last(
        analyse(Baseline(replace(SLOW, k_zero_above=0)), SLOW), "slower_than_none"
    )
    (modelled,) = _about_last(analyse(replace(SLOW, k=2), SLOW), "slower_than_none")
    assert "by a baseline run" in measured.because
    assert "by step times" in modelled.because


def test_a_change_of_mix_is_no_sure_decay(analyse: Analyse) -> None:
    """The second half of the run has other requests, which alone makes it accept less."""
    labels = ("easy",) * 40 + ("hard",) * 40
    found = analyse(Spec(requests=80, conditional=(0.9,) * 4, labels=labels, growth=1.0))
    assert not _about_last(found, "acceptance_decays")


def test_every_entry_explains_itself() -> None:
    for entry in CATALOGUE.values():
        assert entry.meaning.endswith(".") and entry.need.words, entry.id
        assert all(threshold.source and threshold.means for threshold in entry.thresholds)


def test_no_drafter_is_called_healthy_by_a_length_without_interval(analyse: Analyse) -> None:
    """One request has most of the rounds."""
    (run,) = analyse(HEALTHY).runs
    heavy = replace(run, acceptance=replace(run.acceptance, mean_length_interval=None))
    assert _about_last(conclude([run]), "healthy")
    assert not _about_last(conclude([heavy]), "healthy")

"""Rules about acceptance: depths not worth drafting, a dead drafter, and repetition loops."""

from __future__ import annotations

from driftscope.analysis.circumstances import LOOP_ROUNDS
from driftscope.analysis.cost.vllm_options import NO_SPECULATION
from driftscope.analysis.findings.acceptance_losses import Loss, loss_of
from driftscope.analysis.findings.catalogue_entry import ALWAYS, Deciding, Entry, Need, Threshold
from driftscope.analysis.findings.dead_drafter import (
    NOTHING_BELOW,
    SURE_REQUESTS,
    SURE_ROUNDS,
    judge,
    none_accepted,
    rate_interval,
)
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.suspects import in_order, suspects_of
from driftscope.analysis.number_words import between, count, percent
from driftscope.analysis.statistics.chance import as_many
from driftscope.analysis.statistics.intervals.independent_cases import share_interval
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.statistics.multiple_comparisons import ALPHA
from driftscope.analysis.summary.run_summary import RunSummary

DEAD_BELOW = 0.02
"""Marginal rate below which a depth is dead: fewer than 1 round in 50 gets that far. Among the
published vectors that driftscope reproduces, the live ones end at 0.042 or above and the dead tail
is at 0."""
LOOPS_ABOVE = 0.05
"""Share of the requests with LOOP_ROUNDS rounds or more that end in as many wholly accepted
rounds."""


def first_dead_depth(run: RunSummary) -> int | None:
    """Return the first depth whose marginal rate is below DEAD_BELOW; None if there is none."""
    rates = enumerate(run.acceptance.marginal, start=1)
    return next((depth for depth, rate in rates if rate < DEAD_BELOW), None)


def acceptance_dies(case: Case) -> Finding | None:
    """Find a depth after the first from which on practically nothing is accepted."""
    run, dead = case.run, first_dead_depth(case.run)
    if dead is None or dead == 1:
        return None
    rates, spread = run.acceptance.marginal, _at(run, dead)
    trust, because = judged(run.requests, spread, below=DEAD_BELOW)
    suspects = suspects_of(case, loss_of(run))
    return Finding(
        id="acceptance_dies",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="Acceptance is dead beyond a depth",
        statement=f"only {percent(rates[dead - 1])} of the rounds are accepted to depth {dead}"
        f" (depth 1: {percent(rates[0])})",
        evidence={
            "dead_depth": dead,
            "marginal": rates[dead - 1],
            **ends("marginal", spread),
            "marginal_first": rates[0],
            "threshold": DEAD_BELOW,
        },
        confidence=trust,
        because=because,
        advice=f"Tokens drafted from depth {dead} on are thrown away: set num_speculative_tokens "
        f"to {dead - 1} or less.{in_order(suspects)}",
        causes=suspects.causes,
        ruled_out=suspects.ruled_out,
        option=f'"num_speculative_tokens": {dead - 1}',
        cost_tps=case.cost_at_k(dead - 1),
    )


def nothing_accepted(case: Case) -> Finding | None:
    """Find that next to nothing is accepted already at depth 1."""
    run, rate = case.run, case.run.acceptance.marginal[0]
    if not rate < NOTHING_BELOW:
        return None
    trust, because = judge(run)
    suspects = suspects_of(case, Loss.NOTHING)
    return Finding(
        id="nothing_accepted",
        severity=Severity.HIGH,
        runs=(run.label,),
        title="Next to nothing is accepted, from the first depth on",
        statement=none_accepted(run),
        evidence={
            "marginal_first": rate,
            **ends("marginal_first", rate_interval(run)),
            "rounds": run.rounds,
            "threshold": NOTHING_BELOW,
        },
        confidence=trust,
        because=because,
        advice="Turn speculation off now: it costs time and gives nothing. A drafter that fails at "
        f"depth 1 is misconfigured more often than bad.{in_order(suspects)}",
        causes=suspects.causes,
        ruled_out=suspects.ruled_out,
        option=NO_SPECULATION,
        cost_tps=case.cost_at_k(0),
    )


def looks_like_a_loop(case: Case) -> Finding | None:
    """Find requests that end in a long series of wholly accepted rounds, and so may repeat
    themselves."""
    groups = case.run.groups
    if not groups.long_enough:
        return None
    share = groups.looping / groups.long_enough
    chance = as_many(max(groups.looping, 1), groups.loops_by_chance)
    if not share > LOOPS_ABOVE or groups.looping < 2 or not chance < ALPHA:
        return None
    interval = share_interval(groups.looping, groups.long_enough)
    trust, because = judged(groups.long_enough, interval, above=LOOPS_ABOVE)
    ids = "the token ids would show it" if trust is not Trust.LOW else because
    return Finding(
        id="looks_like_a_loop",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="Acceptance so high that it looks like a repetition loop",
        statement=f"{count(groups.looping, 'request')} of {groups.long_enough:,} end in "
        f"{LOOP_ROUNDS} or more fully accepted rounds{between(interval)}; at their own rates of "
        f"acceptance at most {groups.loops_by_chance:.1f} would do so by chance",
        evidence={
            "share": float(share),
            **ends("share", interval),
            "looping": groups.looping,
            "requests_long_enough": groups.long_enough,
            "by_chance": groups.loops_by_chance,
            "p": chance,
            "rounds": LOOP_ROUNDS,
            "threshold": LOOPS_ABOVE,
        },
        confidence=min(trust, Trust.MEDIUM, key=list(Trust)[::-1].index),
        because=f"text that is easy to predict is accepted as often; {ids}",
        advice="Read some of these outputs: text that repeats itself is predicted perfectly, and "
        "raises every average here. If they repeat, look for garbled output, a missing "
        "end-of-sequence token or a temperature of 0, try repetition_penalty, and compare with "
        "speculation off. Then judge the drafter without these requests.",
    )


def _at(run: RunSummary, depth: int) -> Interval | None:
    spread = run.acceptance.marginal_interval
    return None if spread is None else spread[depth - 1]


def _first_rate(case: Case) -> Deciding:
    run = case.run
    return Deciding(
        value=run.acceptance.marginal[0], interval=rate_interval(run), bound=NOTHING_BELOW
    )


def _last_rate(case: Case) -> Deciding | None:
    """Return the rate at the last depth, the lowest."""
    run = case.run
    if run.k == 1:
        return None
    return Deciding(value=run.acceptance.marginal[-1], interval=_at(run, run.k), bound=DEAD_BELOW)


ENTRIES = (
    Entry(
        id="nothing_accepted",
        title="Next to nothing is accepted, from the first depth on",
        meaning="Even the drafter's first draft token is almost always rejected: speculation costs "
        "time and gives nothing. The finding lists the possible causes, with the evidence in the "
        "run for and against each.",
        thresholds=(
            Threshold(
                name="NOTHING_BELOW",
                value=NOTHING_BELOW,
                means="marginal acceptance at depth 1",
                source="published drafters: 0.585 or more; a broken one: 0 (vllm#54997)",
            ),
            Threshold(
                name="SURE_ROUNDS",
                value=SURE_ROUNDS,
                means="rounds from which the confidence is high, if the exact 95% interval of the "
                "rate is below NOTHING_BELOW",
                source="59 independent rounds suffice; rounds of one request may be so similar "
                "that five count as one",
            ),
            Threshold(
                name="SURE_REQUESTS",
                value=SURE_REQUESTS,
                means="requests from which the confidence is high",
                source="driftscope: fewer prompts may all be unusual",
            ),
        ),
        need=ALWAYS,
        rule=nothing_accepted,
        deciding=_first_rate,
    ),
    Entry(
        id="acceptance_dies",
        title="Acceptance is dead beyond a depth",
        meaning="Practically no round is accepted to this depth or beyond: what is drafted there "
        "is thrown away.",
        thresholds=(
            Threshold(
                name="DEAD_BELOW",
                value=DEAD_BELOW,
                means="marginal acceptance at a depth",
                source="published vectors: live drafters end at 0.042 or above, dead tails at 0",
            ),
        ),
        need=ALWAYS,
        rule=acceptance_dies,
        deciding=_last_rate,
    ),
    Entry(
        id="looks_like_a_loop",
        title="Acceptance so high that it looks like a repetition loop",
        meaning="Requests end in a long series of fully accepted rounds, as happens when text "
        "repeats itself.",
        thresholds=(
            Threshold(
                name="LOOP_ROUNDS",
                value=LOOP_ROUNDS,
                means="consecutive fully accepted rounds at the end of a request",
                source="driftscope; how many requests end so by chance is computed from each "
                "request's own share of rounds accepted whole",
            ),
            Threshold(
                name="ALPHA",
                value=ALPHA,
                means="p-value of so many requests by chance (Poisson)",
                source="convention",
            ),
            Threshold(
                name="LOOPS_ABOVE",
                value=LOOPS_ABOVE,
                means="share of the requests that have so many rounds",
                source="driftscope; the effect is described in vllm#44487",
            ),
        ),
        need=Need[Case](
            words=f"finished requests of {LOOP_ROUNDS} rounds or more",
            met=lambda case: case.run.groups.long_enough > 0,
        ),
        rule=looks_like_a_loop,
    ),
)

"""Rules about how much is accepted, and the answer to whether acceptance is what it was."""

from __future__ import annotations

from driftscope.analysis.advice import NO_SPECULATION
from driftscope.analysis.circumstances import LOOP_ROUNDS
from driftscope.analysis.number_words import (
    between,
    between_percent,
    count,
    listed,
    number,
    percent,
)
from driftscope.analysis.statistics.intervals import poisson_upper_tail, share_interval
from driftscope.analysis.statistics.permutation import ALPHA
from driftscope.analysis.statistics.ratio import FEW_REQUESTS, LOW_CLUSTERS
from driftscope.analysis.summary.run_summary import (
    first_token_differs,
    tokens_are_wrong,
    warmest,
)
from driftscope.findings.case import ALWAYS, Case, Deciding, Need, Threshold, entry
from driftscope.findings.causes import (
    EVEN_WITHIN,
    FALLS_ABOVE,
    LOW_BELOW,
    NOTHING_BELOW,
    STOPS_BELOW,
    SURE_REQUESTS,
    SURE_ROUNDS,
    Loss,
    ablate_command,
    accepted_once,
    conditional_interval,
    dead_depth,
    fall_words,
    is_even,
    judge,
    loss_of,
    none_accepted,
    rate_interval,
    suspects_of,
)
from driftscope.findings.finding import (
    URGENT,
    Answer,
    Finding,
    Headline,
    Severity,
    Topic,
    Trust,
    figure,
    judged,
)
from driftscope.findings.rules_attention import hidden_state_stable
from driftscope.findings.rules_changes import fall_of
from driftscope.trace.manifest import WAS_SIMULATED

LOOPS_ABOVE = Threshold(
    name="LOOPS_ABOVE",
    value=0.05,
    means="share of the requests that have so many rounds",
    source="driftscope; the effect is described in vllm#44487",
)


def _first_rate(case: Case) -> Deciding:
    run = case.run
    return Deciding(
        value=run.acceptance.marginal[0], interval=rate_interval(run), bound=NOTHING_BELOW.value
    )


def _lowest_rate(case: Case) -> Deciding | None:
    """Return the conditional rate whose interval ends lowest, of the depths after the first."""
    run = case.run
    known = [
        (spread.high, spread, run.acceptance.conditional[depth - 1])
        for depth in range(2, run.k + 1)
        if (spread := conditional_interval(run, depth)) is not None
    ]
    if not known:
        return None
    _, spread, rate = min(known, key=lambda place: place[0])
    return Deciding(value=rate or 0.0, interval=spread, bound=STOPS_BELOW.value)


def _fall(case: Case) -> Deciding | None:
    fall = case.run.fall
    if fall is None:
        return None
    return Deciding(value=fall.lost, interval=fall.interval, bound=FALLS_ABOVE.value)


def _first_rate_weak(case: Case) -> Deciding:
    acceptance = case.run.acceptance
    spread = acceptance.marginal_interval
    return Deciding(
        value=acceptance.marginal[0], interval=spread[0] if spread else None, bound=LOW_BELOW.value
    )


@entry(
    title="The engine returns wrong tokens at temperature > 0",
    topic=Topic.ACCEPTANCE,
    need=Need[Case](
        words="requests whose temperature was recorded",
        met=lambda case: warmest(case.run) is not None,
    ),
    blocks=True,
)
def wrong_tokens(case: Case) -> Finding | None:
    """vLLM's CPU build, without Triton for the CPU, verifies drafts at wrong temperatures
    (vllm.utils.cpu_triton_utils, 0.32.0). Answers to sampled requests are then noise, and hardly a
    draft is accepted. No other finding is made about such a run."""
    if not tokens_are_wrong(case.run):
        return None
    return Finding(
        severity=Severity.HIGH,
        answer=Answer.NO,
        headline=Headline.NOTHING_ACCEPTED,
        statement="the engine returns wrong tokens at temperature > 0: this run says nothing about "
        "the drafter",
        evidence={"temperature_highest": warmest(case.run)},
        confidence=Trust.HIGH,
        because="the probe ran the engine's own function at start-up: it does not divide by the "
        "temperature of a request when it verifies drafts, but by numbers that happen to be in "
        "memory",
        advice="Send requests at temperature 0, or serve with Triton for the CPU or on a GPU, and "
        "record again. Do not judge the drafter by this run.",
    )


@entry(
    title="Acceptance was simulated",
    topic=Topic.ACCEPTANCE,
    need=ALWAYS,
    blocks=True,
)
def acceptance_simulated(case: Case) -> Finding | None:
    """The engine drew the number of accepted tokens at a given rate, for a load test, and did not
    ask the target (vLLM's rejection_sample_method: synthetic, SGLang's SGLANG_SIMULATE_ACC_LEN). No
    other finding is made about such a run, and no rule of a gate is decided."""
    if not case.run.manifest.is_simulated:
        return None
    return Finding(
        severity=Severity.MEDIUM,
        answer=Answer.CANNOT_TELL,
        headline=Headline.NOTHING_ACCEPTED,
        statement=WAS_SIMULATED,
        evidence={"mean_length": case.run.acceptance.mean_length},
        confidence=Trust.HIGH,
        because="the server's options say so, and are in the run's manifest",
        advice="To judge the drafter, serve with the standard rule of verification and record "
        "again.",
    )


@entry(
    title="Acceptance is dead beyond a depth",
    topic=Topic.WHERE,
    thresholds=(STOPS_BELOW,),
    need=ALWAYS,
    deciding=_lowest_rate,
)
def acceptance_dies(case: Case) -> Finding | None:
    """Practically none of the rounds that get to this depth is accepted there: what is drafted
    from there on is thrown away."""
    run, dead = case.run, dead_depth(case.run)
    if dead is None or loss_of(run) is not Loss.STOPS:
        return None
    rate, spread = run.acceptance.conditional[dead - 1], conditional_interval(run, dead)
    trust, because = judged(run.requests, spread, below=STOPS_BELOW.value)
    return Finding(
        severity=Severity.MEDIUM,
        statement=f"of the rounds that get to depth {dead}, {percent(rate)} are accepted there"
        f"{between_percent(spread)}",
        evidence={
            "dead_depth": dead,
            **figure("conditional", rate, spread),
            "marginal_first": run.acceptance.marginal[0],
            "threshold": STOPS_BELOW.value,
        },
        confidence=trust,
        because=because,
        advice=f"Tokens drafted from depth {dead} on are thrown away: set num_speculative_tokens "
        f"to {dead - 1} or less.",
        **suspects_of(case, Loss.STOPS),
        option=f'"num_speculative_tokens": {dead - 1}',
        cost_tps=case.cost_at_k(dead - 1),
    )


@entry(
    title="Next to nothing is accepted, from the first depth on",
    topic=Topic.ACCEPTANCE,
    thresholds=(NOTHING_BELOW, SURE_ROUNDS, SURE_REQUESTS),
    need=ALWAYS,
    deciding=_first_rate,
    leads=True,
)
def nothing_accepted(case: Case) -> Finding | None:
    """Even the drafter's first draft token is almost always rejected: speculation costs time and
    gives nothing. The finding lists the possible causes, with the evidence in the run for and
    against each."""
    run, rate = case.run, case.run.acceptance.marginal[0]
    if not rate < NOTHING_BELOW.value:
        return None
    trust, because = judge(run)
    sure = trust is not Trust.LOW
    little = "next to nothing" if accepted_once(run) else "nothing"
    cost = "speculation costs time and gives nothing" if sure else "too few rounds to be sure"
    return Finding(
        severity=Severity.HIGH,
        answer=Answer.NO if sure else Answer.CANNOT_TELL,
        headline=Headline.NOTHING_ACCEPTED if sure else Headline.LENGTH,
        statement=f"{little} is accepted: {cost} ({none_accepted(run)})",
        estimate=rate,
        evidence={
            **figure("marginal_first", rate, rate_interval(run)),
            "rounds": run.rounds,
            "threshold": NOTHING_BELOW.value,
        },
        confidence=trust,
        because=because,
        advice="Turn speculation off now: it costs time and gives nothing. A drafter that fails at "
        "depth 1 is misconfigured more often than bad.",
        **suspects_of(case, Loss.NOTHING),
        option=NO_SPECULATION,
        cost_tps=case.cost_at_k(0),
    )


@entry(
    title="Acceptance so high that it looks like a repetition loop",
    topic=Topic.ACCEPTANCE,
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
        LOOPS_ABOVE,
    ),
    need=Need[Case](
        words=f"finished requests of {LOOP_ROUNDS} rounds or more",
        met=lambda case: case.run.groups.long_enough > 0,
    ),
)
def looks_like_a_loop(case: Case) -> Finding | None:
    """Requests end in a long series of fully accepted rounds, as happens when text repeats
    itself."""
    groups = case.run.groups
    if not groups.long_enough:
        return None
    share = groups.looping / groups.long_enough
    chance = poisson_upper_tail(max(groups.looping, 1), groups.loops_by_chance)
    if not share > LOOPS_ABOVE.value or groups.looping < 2 or not chance < ALPHA:
        return None
    interval = share_interval(groups.looping, groups.long_enough)
    trust, because = judged(groups.long_enough, interval, above=LOOPS_ABOVE.value)
    ids = "the token ids would show it" if trust is not Trust.LOW else because
    return Finding(
        severity=Severity.MEDIUM,
        statement=f"{count(groups.looping, 'request')} of {groups.long_enough:,} end in "
        f"{LOOP_ROUNDS} or more fully accepted rounds{between(interval)}; at their own rates of "
        f"acceptance at most {groups.loops_by_chance:.1f} would do so by chance",
        evidence={
            **figure("share", float(share), interval),
            "looping": groups.looping,
            "requests_long_enough": groups.long_enough,
            "by_chance": groups.loops_by_chance,
            "p": chance,
            "rounds": LOOP_ROUNDS,
            "threshold": LOOPS_ABOVE.value,
        },
        confidence=trust.at_most(Trust.MEDIUM),
        because=f"text that is easy to predict is accepted as often; {ids}",
        advice="Read some of these outputs: text that repeats itself is predicted perfectly, and "
        "raises every average here. If they repeat, look for garbled output, a missing "
        "end-of-sequence token or a temperature of 0, try repetition_penalty, and compare with "
        "speculation off. Then judge the drafter without these requests.",
    )


@entry(
    title="Acceptance is low from the first depth on",
    topic=Topic.ACCEPTANCE,
    thresholds=(LOW_BELOW,),
    need=ALWAYS,
    deciding=_first_rate_weak,
)
def acceptance_low(case: Case) -> Finding | None:
    """The drafter works, but is rejected more often at depth 1 than any published one: something in
    its input differs from its training."""
    run, spread = case.run, case.run.acceptance.marginal_interval
    if loss_of(run) is not Loss.LOW or spread is None or spread[0] is None:
        return None
    trust, because = judged(run.requests, spread[0], below=LOW_BELOW.value)
    return Finding(
        severity=Severity.MEDIUM,
        statement=f"{percent(run.acceptance.marginal[0])} of the rounds are accepted to depth 1"
        f"{between_percent(spread[0])}",
        evidence={
            **figure("marginal_first", run.acceptance.marginal[0], spread[0]),
            "threshold": LOW_BELOW.value,
        },
        confidence=trust,
        because=because,
        advice="Compare this run with one of the drafter as it was trained, on the same prompts.",
        **suspects_of(case, Loss.LOW),
    )


@entry(
    title="Acceptance falls along the chain",
    topic=Topic.WHERE,
    thresholds=(FALLS_ABOVE,),
    need=Need[Case](
        words="two depths that enough requests reach, in a run of one K",
        met=lambda case: case.run.fall is not None,
    ),
    deciding=_fall,
)
def acceptance_falls(case: Case) -> Finding | None:
    """Fewer of the tokens that get to a depth are accepted there than at a depth before. Rounds
    that get deep are the easy ones, so the drafter loses more than this shows."""
    run, fall = case.run, case.run.fall
    if fall is None or loss_of(run) is not Loss.FALLS:
        return None
    trust, because = judged(run.requests, fall.interval, above=FALLS_ABOVE.value)
    if trust is Trust.LOW and run.clusters >= LOW_CLUSTERS:
        trust, because = (
            Trust.MEDIUM,
            "the 95% interval excludes that nothing is lost, but contains the threshold",
        )
    command = ablate_command(run)
    return Finding(
        severity=Severity.MEDIUM,
        answer=Answer.NO,
        statement=fall_words(fall),
        evidence={
            "depth_first": fall.first,
            "depth": fall.depth,
            **figure("lost", fall.lost, fall.interval),
            "threshold": FALLS_ABOVE.value,
        },
        confidence=trust,
        because=because,
        advice=f"Find out whether its own states or its wrong tokens cost this: {command}."
        if command
        else "Compare it with another drafter of the same target, on the same prompts.",
        **suspects_of(case, Loss.FALLS),
    )


HEALTHY_FROM = Threshold(
    name="HEALTHY_FROM",
    value=0.5,
    means="marginal acceptance at depth 1 of a drafter that may be called healthy",
    source="below 0.585, the weakest published rate, by what prompts differ",
)


@entry(
    title="The drafter is healthy",
    topic=Topic.ACCEPTANCE,
    thresholds=(
        HEALTHY_FROM,
        Threshold(
            name="EVEN_WITHIN",
            value=EVEN_WITHIN,
            means="loss at a depth that the intervals of a run that is compared with none leave "
            "room for",
            source="below the fall of the published drafter without a norm, 12 points",
        ),
        Threshold(
            name="FEW_REQUESTS",
            value=FEW_REQUESTS,
            means="fewest requests for which a drafter is called healthy",
            source="the usual rule of thumb for a variance over clusters",
        ),
    ),
    need=Need[Case](
        words="recorded hidden states, a run to compare it with, K = 1, or a drafter that accepts "
        "nearly everything",
        met=lambda case: (
            case.run.hidden.growth is not None
            or _is_compared(case)
            or is_even(case.run)
            or case.run.k == 1
        ),
    ),
    vouches=True,
)
def healthy(case: Case) -> Finding | None:
    """No finding asks for action, and something shows that the drafter is in order: hidden states
    that keep their size over depth, acceptance no lower than that of the run it is compared with,
    acceptance so high at every depth that none can have lost much, or a chain of one token. A
    drafter that accepts less at depth 1 than any published one is healthy only if it surely
    pays."""
    run = case.run
    if any(finding.severity in URGENT and not finding.reference for finding in case.found):
        return None
    compared = _is_compared(case)
    stable = any(finding.id == hidden_state_stable.id for finding in case.found)
    moved = fall_of(run.changes) is not None or first_token_differs(run) is not None
    spread = run.acceptance.mean_length_interval
    if run.clusters < FEW_REQUESTS or spread is None or case.accepts_less or moved:
        return None
    pays = case.speedup is not None and case.speedup[1].low > 1
    if run.acceptance.marginal[0] < HEALTHY_FROM.value and not pays:
        return None
    # Nothing can change along a chain of one token.
    plain = is_even(run) or run.k == 1
    if not (stable or compared or plain):
        return None
    unseen = [
        name
        for name, is_recorded in (
            ("hidden state", run.hidden.growth is not None),
            ("attention", run.attention.self_mass is not None),
        )
        if not is_recorded
    ]
    not_compared = (
        ""
        if compared
        else "; without another run it is unknown what it should accept"
        if plain
        else "; acceptance alone cannot tell how much is lost along the chain"
    )
    return Finding(
        severity=Severity.GOOD,
        statement=f"rounds yield {number(run.acceptance.mean_length)} tokens{between(spread)}, "
        f"{percent(run.acceptance.marginal[-1])} of the rounds are accepted to depth {run.k}, and "
        "nothing that was measured drifts or fails",
        evidence={
            **figure("mean_length", run.acceptance.mean_length, spread),
            "marginal_last": run.acceptance.marginal[-1],
        },
        confidence=Trust.MEDIUM if unseen or not_compared else Trust.HIGH,
        because=f"no {listed(unseen)} was recorded"
        if unseen
        else f"{count(run.requests, 'request')}, with the drafter's internals "
        f"recorded{not_compared}",
        advice="Nothing to do.",
    )


def _is_compared(case: Case) -> bool:
    """Whether acceptance was compared with that of another run, in either direction."""
    return case.comparison is not None or (case.reference is None and bool(case.others))

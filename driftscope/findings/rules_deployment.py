"""Rules about engines of several processes: a rank or a replica that differs from the others."""

from __future__ import annotations

from collections import Counter

from driftscope.analysis.circumstances import Group, kept_of, usable
from driftscope.analysis.comparability import Claim, comparability_of_parts
from driftscope.analysis.number_words import between, count, listed, number, percent
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.strata import ENOUGH_REQUESTS
from driftscope.findings.case import Case, Need, ReplayCase, Threshold, entry
from driftscope.findings.finding import Answer, Finding, Severity, Topic, Trust, figure, judged

RANKS_APART = Threshold(
    name="RANKS_APART",
    value=0.01,
    means="RMS of the state fed forward on another rank, as a share of the difference from rank 0",
    source="driftscope: sums over ranks are equal on all of them to the last bits",
)
REPLICA_BELOW = Threshold(
    name="REPLICA_BELOW",
    value=0.9,
    means="accepted tokens per round, the worst replica over the best",
    source="driftscope: at this loss the best K begins to change",
)
OTHER_MIX = Threshold(
    name="OTHER_MIX",
    value=0.1,
    means="difference of a label's share of the requests that may explain one of replicas",
    source="driftscope, as MIX_SHIFT",
)


@entry(
    title="A tensor-parallel rank holds another state",
    topic=Topic.INSIDE,
    thresholds=(RANKS_APART,),
    need=Need[Case](
        words="states of two tensor-parallel ranks",
        met=lambda case: case.run.rank_states is not None,
    ),
)
def rank_differs(case: Case) -> Finding | None:
    """The drafter feeds another hidden state to its next depth on one tensor-parallel rank than on
    the first. After each layer the ranks add up their parts, so that all hold the same state: where
    they do not, a sum over ranks is missing in the engine's drafter."""
    states = case.run.rank_states
    if states is None or states.difference < RANKS_APART.value:
        return None
    return Finding(
        severity=Severity.HIGH,
        answer=Answer.NO,
        statement=f"the state fed forward on rank {states.rank} differs from that on rank 0 by "
        f"{percent(states.difference)} (RMS, mean over {count(states.chains, 'chain')})",
        evidence={
            "rank": states.rank,
            "difference": states.difference,
            "chains": states.chains,
            "threshold": RANKS_APART.value,
        },
        confidence=Trust.HIGH,
        because="both ranks recorded the same chains",
        advice="Report it to the engine: its drafter lacks a sum over ranks (all-reduce) after "
        "some layer. Until it is fixed, serve with tensor_parallel_size 1 for the drafter "
        "(`draft_tensor_parallel_size`) or without it.",
    )


@entry(
    title="One replica accepts less than another",
    topic=Topic.WHERE,
    thresholds=(REPLICA_BELOW, OTHER_MIX),
    need=Need[Case](
        words=f"two replicas with {ENOUGH_REQUESTS} requests each",
        met=lambda case: len(usable(case.run.groups.replica)) > 1,
    ),
)
def replica_differs(case: Case) -> Finding | None:
    """Requests that one data-parallel replica served accept clearly fewer tokens than those of
    another. Replicas run the same models, so that a replica differs for a reason of its own, unless
    the router sends it other requests."""
    groups = usable(case.run.groups.replica)
    if len(groups) < 2:
        return None
    best, worst = (choose(groups, key=lambda group: group.mean_length) for choose in (max, min))
    kept = kept_of(best, worst, tests=len(groups) * (len(groups) - 1) // 2)
    if kept is None or not kept[0] < REPLICA_BELOW.value:
        return None
    doubt = _else_between(case, best, worst)
    trust, because = judged(min(best.requests, worst.requests), kept[1], below=REPLICA_BELOW.value)
    return Finding(
        severity=Severity.INFO if doubt else Severity.MEDIUM,
        answer=Answer.CANNOT_TELL if doubt else Answer.NO if trust is not Trust.LOW else None,
        statement=f"rounds yield {number(worst.mean_length)} tokens on replica {worst.name} and "
        f"{number(best.mean_length)} on replica {best.name}: {percent(kept[0])} of the accepted "
        f"tokens remain{doubt}",
        evidence={
            "mean_length_best": best.mean_length,
            "mean_length_worst": worst.mean_length,
            **figure("kept", *kept),
            "replicas": len(groups),
            "threshold": REPLICA_BELOW.value,
        },
        confidence=trust,
        because=because,
        advice=f"Restart replica {worst.name}, and compare its versions, weights and flags with "
        f"those of replica {best.name}: `--where 'replica = {worst.name}'` analyses it alone.",
        cost_tps=case.cost_of_losing([worst], best.mean_length),
    )


def _beside_others(case: ReplayCase) -> list[tuple[str, float, Interval]]:
    """Return the fleet's replicas with the share of the tokens that they keep of those that the
    others accept on the same kinds of rounds, the worst first."""
    found = []
    for cell in case.run.cells if case.run.rollups is not None else ():
        ratio, length = cell.length_ratio, cell.mean_length
        if ratio is None or ratio.interval is None or length is None:
            continue
        others = length / ratio.value
        if others > 1.0:  # a ratio of lengths has the target's own token on both sides
            kept, low, high = (
                max(0.0, (others * part - 1.0) / (others - 1.0))
                for part in (ratio.value, ratio.interval.low, ratio.interval.high)
            )
            if (spread := Interval.of(low, high)) is not None:
                found.append((cell.condition, kept, spread))
    return sorted(found, key=lambda replica: replica[1])


@entry(
    about=ReplayCase,
    title="A replica of a fleet accepts less than the others",
    topic=Topic.WHERE,
    thresholds=(REPLICA_BELOW,),
    need=Need[ReplayCase](
        words="rollups of two replicas that served the same kinds of requests, over 5 or more "
        "spans of minutes",
        met=lambda case: bool(_beside_others(case)),
    ),
)
def fleet_replica_differs(case: ReplayCase) -> Finding | None:
    """In the rollups of a fleet, a replica accepts clearly fewer tokens than the others do at the
    same depths of the same labels, adapters and contexts. The interval is over spans of time,
    includes how much healthy replicas differ, and holds for all replicas together."""
    ranked = _beside_others(case)
    below = [one for one in ranked if one[1] < REPLICA_BELOW.value and one[2].high < 1.0]
    if not below:
        return None
    name, kept, spread = below[0]
    more = f"; so do {listed([other for other, *_ in below[1:]])}" if len(below) > 1 else ""
    others = len(ranked) - 1
    return Finding(
        severity=Severity.MEDIUM,
        answer=Answer.NO,
        statement=f"{name} accepts {percent(kept)}{between(spread)} of the tokens "
        f"that {count(others, 'other replica')} accept on the same labels, adapters and contexts"
        f"{more}",
        evidence={
            **figure("kept", kept, spread),
            "below": len(below),
            "replicas": len(ranked),
            "threshold": REPLICA_BELOW.value,
        },
        confidence=Trust.HIGH if spread.high < REPLICA_BELOW.value else Trust.MEDIUM,
        because=f"the interval holds for all {count(len(ranked), 'replica')} together, and "
        "includes how minutes and healthy replicas differ",
        advice=f"Compare version, weights, flags and hardware of {name} with another replica's, "
        "and restart it. `driftscope analyze RUN` of its own run says why it accepts less.",
    )


def _else_between(case: Case, best: Group, worst: Group) -> str:
    """Return a clause on what else differs between the requests of two replicas."""
    side = case.run.side
    if side is None or side.requests is None:
        return ""
    replica = side.requests.replica[side.rounds.request].astype(str)
    first, second = (side.of(replica == group.name) for group in (best, worst))
    a, b = Counter(first.labels), Counter(second.labels)
    if labels := sorted(
        label
        for label in {*a, *b}
        if abs(a[label] / max(a.total(), 1) - b[label] / max(b.total(), 1)) > OTHER_MIX.value
    ):
        return f"; the router sends them other labels ({listed(labels)}), which may explain it"
    return comparability_of_parts(first, second, "the two replicas").doubt(Claim.ACCEPTANCE)

"""How much data the conclusions rest on."""

from __future__ import annotations

from driftscope.analysis.figures.run_sums import longer
from driftscope.analysis.first_screen.claim import Answer, Claim, Topic
from driftscope.analysis.number_words import count, ks_of, number, percent
from driftscope.analysis.statistics.intervals.cluster_ratio import FEW_REQUESTS
from driftscope.analysis.summary.run_summary import RunSummary

FEWEST_REQUESTS = 10
"""Number of independent requests (of prompts or sessions, if they repeat) below which nothing is
concluded: the interval of an acceptance length then rests on fewer than ten independent values."""
MOST_LOST = 0.05
"""Share of lost rows above which nothing is concluded: the lost ones may differ from the others."""


def data(run: RunSummary) -> Claim:
    """Return whether there is enough data to conclude anything."""
    few, lost = run.clusters < FEWEST_REQUESTS, lost_share(run)
    cut = run.cohort is not None and not run.cohort.enough
    record = ""
    if few:
        record = _more(run.noun)
    elif lost > MOST_LOST:
        record = "record again on a disk and machine that keep up"
    elif cut and run.cohort is not None:
        record = longer(run.cohort)
    return Claim(
        topic=Topic.DATA,
        run=run.label,
        question="Is there enough data to conclude anything?",
        answer=Answer.NO if record else Answer.YES,
        sentence=f"{requests_of(run)}, {count(run.rounds, 'round')}, "
        f"{ks_of(run.ks)}, {_loss(run, lost)}{_seen_in_part(run)}",
        estimate=float(run.requests),
        record=record,
    )


def _more(noun: str) -> str:
    if noun == "request":
        return f"record {FEW_REQUESTS} or more requests of different prompts"
    return f"record requests of {FEW_REQUESTS} or more {noun}s"


def requests_of(run: RunSummary) -> str:
    """Return the number of requests and, if some are not independent of each other, of what they
    are."""
    requests, known = count(run.requests, "request"), run.independence
    if known is None or not known.repeated:
        return requests
    effect = "" if known.design_effect is None else f", design effect {number(known.design_effect)}"
    prompts = f" and {count(known.crossed, 'prompt')}" if known.crossed else ""
    return f"{requests} of {count(known.clusters, known.noun)}{prompts}{effect}"


def _seen_in_part(run: RunSummary) -> str:
    """Return how many rounds of requests that the recording shows in part are left out."""
    if run.cohort is None:
        return ""
    if not run.cohort.enough:
        return "; most requests are seen only in part"
    share = run.cohort.left_out / max(run.cohort.served.rounds, 1)
    return f"; {percent(share)} of the rounds left out, of requests seen only in part"


def lost_share(run: RunSummary) -> float:
    """Return the share of rows that were lost while recording."""
    rows = run.rounds + run.recording.chains + run.requests
    return run.recording.dropped / max(rows + run.recording.dropped, 1)


def _loss(run: RunSummary, lost: float) -> str:
    if not run.recording.dropped:
        return "no rows lost"
    return f"{count(run.recording.dropped, 'row')} lost ({percent(lost)})"

"""Summary of one run: the figures that findings, reports and gates read.

Every per-depth tuple starts with depth 1. None means that the quantity does not exist in the run;
NaN means that it was measured but gave no finite number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftscope.analysis.circumstances import NO_GROUPS, Groups
from driftscope.analysis.closeup import TPOT, TTFT, CloseUp, Distribution, distribution
from driftscope.analysis.cost import Slowdown, StepCell, step_times
from driftscope.analysis.figures.attention_drift import AttentionDrift
from driftscope.analysis.figures.chains import lengths_of_rounds
from driftscope.analysis.figures.change_points import Changes
from driftscope.analysis.figures.requests import Units, requests_of, requests_that_finished
from driftscope.analysis.figures.results import (
    NO_SPREAD,
    Acceptance,
    Attention,
    ChainFall,
    Confidence,
    FallbackSpread,
    Hidden,
    Latency,
    LengthAtK,
    Recording,
    Segment,
    Spread,
)
from driftscope.analysis.figures.rounds import Rounds, Side, deliberate_steps, side_without_rounds
from driftscope.analysis.figures.run_sums import Cohort, Slice
from driftscope.analysis.figures.verified_chains import WithinRequest, answers
from driftscope.analysis.number_words import percent
from driftscope.analysis.query.query_engine import floats
from driftscope.analysis.query.record_views import Tables
from driftscope.analysis.query.row_filters import Update
from driftscope.analysis.statistics.ratio import design_effect, mean_time_interval, spans_of
from driftscope.analysis.statistics.strata import AssociationAnswer
from driftscope.boundary.json_document import written_property
from driftscope.errors import NoDataError
from driftscope.metrics.fallback import Fallback
from driftscope.metrics.latency import StepCost, life_s, mean_s
from driftscope.trace.manifest import Manifest
from driftscope.trace.ranks import place_of
from driftscope.trace.reader import read_record
from driftscope.trace.segments import segments, source_of
from driftscope.vocabulary import FED_RMS

ENOUGH_CLUSTERS = 100
"""Number of clusters from which an interval is wide enough although length goes with ease."""
FEWEST_CORRELATED = 3
"""Smallest number of clusters over which anything can be correlated."""
MOST_CORRELATION = 0.3
"""Correlation of a cluster's rounds and acceptance length that is still harmless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Independence:
    """Clusters of the requests that have a round, and their effect on the acceptance length."""

    noun: str
    """Word for one cluster, such as "prompt" or "session"."""
    clusters: int
    requests: int
    """Number of requests with a round."""
    effective: float | None
    """Number of clusters of equal weight that the clusters are worth; None without a round."""
    design_effect: float | None
    """Variance of the acceptance length over clusters, divided by that over requests; None if it is
    not known."""
    crossed: int
    """Number of prompts, if they cross the clusters, so that the variance is over both; else 0."""
    seen: bool
    """Whether the recording shows which prompts repeat, or the user chose the clusters."""
    length_correlation: float | None = None
    """Correlation over clusters of the number of rounds and the acceptance length; None with fewer
    than three clusters, or if either is equal in all."""

    @written_property
    def worth(self) -> float | None:
        """Number of independent requests with as much information: requests over the design
        effect."""
        return self.requests / self.design_effect if self.design_effect else None

    @property
    def length_goes_with_ease(self) -> bool:
        """Whether clusters with more rounds are the easier ones, and too few for the interval of
        the acceptance length to be wide enough, see docs/statistics.md. Rounds decide, because they
        are the weights of that length; the other direction narrows no interval, and is mere
        arithmetic where answers are of one length: rounds are tokens over acceptance length."""
        if self.length_correlation is None or self.clusters >= ENOUGH_CLUSTERS:
            return False
        chance = 2.0 / math.sqrt(self.clusters)
        return self.length_correlation > max(MOST_CORRELATION, chance)

    @property
    def even(self) -> bool:
        """Whether the rounds are spread over the clusters: these are worth more than half as many
        clusters of equal weight."""
        return self.effective is not None and 2 * self.effective > self.clusters

    @property
    def repeated(self) -> bool:
        """Whether some cluster has more than one request."""
        return self.clusters < self.requests


def independence_of(rounds: Rounds, units: Units) -> Independence:
    """Return how independent the requests with these rounds are."""
    usable_rounds = rounds.where(rounds.rounds > 0)
    over_clusters = usable_rounds.comparable_ratio()
    over_requests = usable_rounds.ungrouped().comparable_ratio()
    some = len(usable_rounds.request) > 0
    clusters, correlation = usable_rounds.by_cluster(), None
    n = clusters.rounds.astype(np.float64)
    if len(n) >= FEWEST_CORRELATED:
        length = clusters.comparable_tokens()[:, 0] / n
        if np.ptp(n) and np.ptp(length):
            correlation = float(np.corrcoef(n, length)[0, 1])
    return Independence(
        noun=units.noun,
        clusters=len(np.unique(usable_rounds.cluster)),
        requests=len(usable_rounds.request),
        effective=float(over_clusters.df[0]) + 1.0 if some else None,
        design_effect=design_effect(over_clusters, over_requests) if some else None,
        crossed=0 if usable_rounds.crossed is None else len(np.unique(usable_rounds.crossed)),
        seen=units.seen,
        length_correlation=correlation,
    )


_KEY = ("replica", "step", "request", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStates:
    """The rank whose state differs most from that of rank 0."""

    rank: int
    chains: int
    """Chains that both ranks recorded."""
    difference: float
    """Mean over chains of the difference of the RMS of the state fed forward, averaged over depth,
    as a share of that on rank 0."""


def rank_states(tables: Tables) -> RankStates | None:
    """Return the rank that differs most; None with fewer than two ranks that recorded states."""
    ranks = {place_of(source_of(path, "draft")).rank for path in segments(tables.path, "draft")}
    if len(ranks) < 2:
        return None
    by_rank = []
    for rank in sorted(ranks):
        # The mean over depth of the RMS fed forward, by chain.
        rows = read_record(tables.path, "draft", tables.manifest, [], rank=rank)
        rows = rows.filter(pc.is_valid(rows.column(FED_RMS)))
        means = [float(np.mean(values)) for values in rows.column(FED_RMS).to_pylist()]
        fed = rows.select(_KEY).append_column("fed", pa.array(means, pa.float64()))
        by_rank.append((rank, fed))
    (_, first), *others = by_rank
    found = []
    for rank, other in others:
        both = first.join(other, list(_KEY), join_type="inner", right_suffix="_other")
        ours, theirs = floats(both, "fed"), floats(both, "fed_other")
        known = np.isfinite(ours) & np.isfinite(theirs) & (ours > 0)
        if known.any():
            mean_difference = float((np.abs(theirs[known] - ours[known]) / ours[known]).mean())
            found.append(RankStates(rank=rank, chains=int(known.sum()), difference=mean_difference))
    return max(found, key=lambda states: states.difference, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFigures:
    """A run in which no step drafted: of a server without a drafter, or served with
    `num_speculative_tokens_per_batch_size` of K = 0."""

    label: str
    manifest: Manifest
    requests: int
    latency: Latency
    cells: tuple[StepCell, ...]
    slowdown: Slowdown | None = None
    """Stretch of the run whose steps take longer; None if there is none."""
    problems: tuple[str, ...] = ()
    """Problems that the reader found: missing or lost data."""
    durations: Mapping[str, Distribution] = field(default_factory=dict)
    """Distributions of TTFT and TPOT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRun(PlainFigures):
    """Summary of a run without speculation: its figures, and its requests."""

    side: Side | None = field(default=None, compare=False, repr=False)
    """Its requests, with which a run is compared; None in a summary that was not made from a
    trace."""


def speculates(tables: Tables) -> bool:
    """Whether any step of a run drafted."""
    return bool(tables.engine.rows(lengths_of_rounds()).num_rows)


def is_plain(tables: Tables) -> bool:
    """Whether a run serves without speculation on purpose: nothing drafted, and nothing was to."""
    if speculates(tables):
        return False
    return tables.manifest.drafter is None or bool(tables.engine.rows(deliberate_steps()).num_rows)


def baseline_of(tables: Tables, label: str) -> BaselineRun:
    """Return the figures of a run that does not speculate. Raises NoDataError for a run with
    neither rounds nor finished requests."""
    finished = tables.engine.rows(requests_that_finished())
    if not finished.num_rows:
        raise NoDataError(
            f"{tables.path}: neither a round nor a finished request in it; send requests to the "
            "server while the probe is on"
        )
    tpot_s, ttft_s = floats(finished, "tpot_s"), floats(finished, "ttft_s")
    lives = life_s(ttft_s, tpot_s, floats(finished, "output_tokens"))
    spans = spans_of(floats(finished, "arrival_s"), lives)
    spread = {TPOT: distribution(tpot_s), TTFT: distribution(ttft_s)}
    steps = step_times(tables)
    return BaselineRun(
        label=label,
        manifest=tables.manifest,
        requests=finished.num_rows,
        latency=Latency(
            ttft_s=mean_s(ttft_s),
            tpot_s=mean_s(tpot_s),
            tpot_s_interval=mean_time_interval(tpot_s, spans),
            ttft_s_interval=mean_time_interval(ttft_s, spans),
        ),
        cells=steps.cells,
        slowdown=steps.slowdown,
        problems=tables.problems,
        side=side_without_rounds(requests_of(tables)),
        durations={name: interval for name, interval in spread.items() if interval is not None},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of one run, all of which its JSON document has."""

    label: str
    manifest: Manifest
    rounds: int
    requests: int
    acceptance: Acceptance
    attention: Attention
    hidden: Hidden
    confidence: Confidence
    latency: Latency
    fallback: Fallback
    recording: Recording
    cost: StepCost | None
    segments: tuple[Segment, ...]
    problems: tuple[str, ...]
    """Problems that the reader found: missing or lost data."""
    k: int = 0
    """Number of tokens of the longest chain: draft tokens per round in a run of one K."""
    ks: tuple[int, ...] = ()
    """Chain lengths that were asked for, ascending; there are several if K follows the batch size
    or changed while the server ran."""
    depths: int = 0
    """Number of depths of the figures of recorded chains, see `Shape.depths`; `k` in a run of one
    K."""
    effective_k: float | None = None
    """Draft tokens verified per decode step, including steps without a draft."""
    cells: tuple[StepCell, ...] = ()
    """Step times by K and batch size."""
    slowdown: Slowdown | None = None
    """Stretch of the run whose steps take longer; None if there is none."""
    groups: Groups = NO_GROUPS
    """Acceptance by circumstance."""
    spread: Mapping[str, Spread] = field(default_factory=dict)
    """Intervals by the quantity measured in chains, see
    `driftscope.analysis.figures.results.spread`; also of the `conditional` rate and of the rounds
    that `died` at each depth."""
    fall: ChainFall | None = None
    """Fall of the conditional rate along the chain; None in a run of several K, whose depths are of
    different rounds, and where no two depths can be compared."""
    fallback_spread: FallbackSpread = NO_SPREAD
    changes: Changes | None = None
    """Change points of acceptance; None if there are too few requests to find one."""
    rank_states: RankStates | None = None
    """The tensor-parallel rank whose state differs most; None with one rank."""
    updates: tuple[Update, ...] = ()
    """Updates of the served weights between rounds, by time."""
    lengths_by_k: tuple[LengthAtK, ...] = ()
    """Acceptance length for K = 1 .. `k`, from rounds cut anew; () in a run of several K."""
    within_request: tuple[WithinRequest, ...] = ()
    """How acceptance goes with the drafter's internals within requests, by measure."""
    attention_drift: AttentionDrift | None = None
    """Movement of attention over depth, beyond the recency-matched null; None without attention
    masses at two depths."""
    cohort: Cohort | None = None
    """Rounds that the figures leave out; None if they leave out none."""
    slice: Slice | None = None
    """Cut by `--since` or `--where`; None for a whole run."""

    independence: Independence | None = None
    """Requests that count as independent; None in a summary that was not made from a trace."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", self.k or self.manifest.k)
        object.__setattr__(self, "ks", self.ks or (self.k,))
        object.__setattr__(self, "depths", self.depths or self.k)

    @written_property
    def within_request_answers(self) -> dict[str, AssociationAnswer]:
        """Whether acceptance goes with each measure within requests, by measure."""
        found = answers(self.within_request)
        names = (relation.measure for relation in self.within_request)
        return dict(zip(names, found, strict=True))

    @property
    def seen_whole(self) -> bool:
        """Whether enough requests were recorded whole for means and trends to be told."""
        return self.cohort is None or self.cohort.enough

    @property
    def clusters(self) -> int:
        """Number of independent units that the requests come from: requests, if no more is
        known."""
        return self.requests if self.independence is None else self.independence.clusters

    @property
    def noun(self) -> str:
        """Word for one of `clusters`."""
        known = self.independence
        return known.noun if known is not None and known.repeated else "request"

    @property
    def unseen(self) -> bool:
        """Whether the recording does not show which prompts repeat."""
        known = self.independence
        return known is not None and not known.seen

    @property
    def mixed(self) -> bool:
        """Whether the run has chains of several K."""
        return len(self.ks) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(RunFigures):
    """Summary of one run: its figures, and what the report and comparisons need in addition."""

    closeup: CloseUp | None = None
    """Single requests, moments and durations, for the report."""
    side: Side | None = None
    """Rounds by request, with which two runs are compared; None in a summary that was not made from
    a trace."""


def warmest(run: RunSummary) -> float | None:
    """Return the highest known sampling temperature of the run's requests; None if none is
    known."""
    if run.side is None or run.side.requests is None:
        return None
    known = run.side.requests.temperature[run.side.asked]
    return float(known[np.isfinite(known)].max()) if np.isfinite(known).any() else None


def tokens_are_wrong(run: RunSummary) -> bool:
    """Whether the engine returned wrong tokens for some requests, because it verifies those of
    sampled requests at temperatures that nobody asked for."""
    return run.manifest.samples_wrongly and (warmest(run) or 0.0) > 0


def shows_acceptance(run: RunSummary) -> bool:
    """Whether what was accepted says something about the drafter: its tokens are not wrong, and
    acceptance was not simulated."""
    return not (run.manifest.is_simulated or tokens_are_wrong(run))


def cuts_by_confidence(run: RunSummary) -> bool:
    """Whether the engine chose by the drafter's confidence how much of the drafts it verified: at
    another K it would choose otherwise, which no model of a run tells."""
    return run.side is not None and run.side.rounds.uncut is not None


def first_token_differs(run: RunSummary) -> str | None:
    """Return in words how rounds of different K accept the first token differently; None if they do
    not.

    The acceptance of the first token does not depend on K. If it differs, then what decides K, such
    as the batch size or the time at which K was changed, also decides acceptance.
    """
    firsts = [
        (part, part.marginal_interval[0])
        for part in run.acceptance.by_k
        if part.marginal_interval is not None and part.marginal_interval[0] is not None
    ]
    for n, (one, here) in enumerate(firsts):
        for other, other_first in firsts[n + 1 :]:
            if here.low > other_first.high or other_first.low > here.high:
                return (
                    f"the first token is accepted in {percent(one.marginal[0])} of the rounds of "
                    f"K = {one.k} and in {percent(other.marginal[0])} of those of K = {other.k}, "
                    "so acceptance goes with what decides K, such as the batch size"
                )
    return None

"""A run's rounds by circumstance: context length, batch, label, time, kind of text and others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.chains import Chains, Shape
from driftscope.analysis.figures.results import acceptance_of
from driftscope.analysis.figures.rounds import Rounds, rounds_in_buckets
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.query_engine import Codes, Matrix, in_order, whole
from driftscope.analysis.query.record_views import CHOSEN, REQUEST, cut, numbered, table
from driftscope.analysis.query.row_filters import NEAR_TOKENS, TEXT, TEXT_SEPARATOR
from driftscope.analysis.statistics.intervals import Interval, difference
from driftscope.analysis.statistics.ratio import intervals, rate_over_clusters
from driftscope.analysis.statistics.strata import (
    ENOUGH_REQUESTS,
    Cells,
    Contrast,
    Halves,
    context_within_label,
    labels_within_context,
    within_requests,
)
from driftscope.vocabulary import REPLAY_LABEL, Region

if TYPE_CHECKING:
    import ibis.expr.types as ir

QUARTERS = 4
"""Number of parts of a run in time. A request belongs to the part that it begins in, so that none
is in two."""
LOOP_ROUNDS = 20
"""Number of consecutive rounds, each accepted whole, at the end of a request that are called a
loop, if there are more such requests than chance gives: at K = 1 and an acceptance of 0.95 a
sequence of 20 has a probability of 36 %, at K = 4 of 1.7 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group of a run's rounds."""

    name: str
    requests: int
    rounds: int
    mean_length: float
    """Acceptance length to compare with that of other groups of the run: in a run of several K, the
    effect of the group's own mix of K is removed (indirect standardisation)."""
    mean_length_interval: Interval | None
    """95% interval; None with fewer than two requests."""
    marginal: tuple[float, ...]
    marginal_interval: tuple[Interval | None, ...] | None
    share_of_rounds: float | None = None
    """Share of the rounds whose kind of text is known; None for other groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of one run's rounds by circumstance; a group without a round is left out."""

    context: tuple[Group, ...] = ()
    """Groups by length of the context, each range twice as long as the one before, shortest
    first."""
    batch: tuple[Group, ...] = ()
    """Groups by requests in the step, in ranges of the same kind, smallest first."""
    temperature: tuple[Group, ...] = ()
    """Groups by the request's sampling temperature, lowest first; requests without a known one are
    left out."""
    finish: tuple[Group, ...] = ()
    """Groups by finish reason."""
    label: tuple[Group, ...] = ()
    replica: tuple[Group, ...] = ()
    """Groups by data-parallel replica; empty with one."""
    time: tuple[Group, ...] = ()
    """Groups by quarter of the run's duration, first to last."""
    region: tuple[Group, ...] = ()
    """Groups by kind of the text that a round drafts, in the order of `Region.ALL`; empty if
    regions were not recorded."""
    copied: tuple[Group, ...] = ()
    """Groups by whether that text repeats an earlier passage; empty as `region`."""
    regions_within_request: tuple[Contrast, ...] = ()
    """Each region compared with the other text of the same answers."""
    boundary_within_request: Contrast | None = None
    """The first tokens of blocks compared with the rest of the same region and request."""
    execution: tuple[Group, ...] = ()
    """Recorded rounds by execution of the drafter; empty if all ran in the same way."""
    structured: tuple[Group, ...] = ()
    """Requests that lost a draft to a grammar, then the other requests; empty if no request lost
    one."""
    duration_s: float = 0.0
    failed_share: float = 0.0
    """Decode steps that should have drafted and did not, as a share of all decode steps. Drafts
    that a grammar rejected are in `boundary_share` instead."""
    failed_share_interval: Interval | None = None
    boundary_share: float = 0.0
    """Steps that lost their draft to a grammar, as a share of the decode steps of requests with
    such a step."""
    boundary_share_interval: Interval | None = None
    looping: int = 0
    """Number of finished requests whose last LOOP_ROUNDS rounds were all accepted whole."""
    long_enough: int = 0
    """Number of finished requests with at least LOOP_ROUNDS rounds."""
    loops_by_chance: float = 0.0
    """Number of requests that would end so by chance, at each request's own share of rounds
    accepted whole, but no more than HEALTHIEST gives. It is too high rather than too low: a loop's
    own rounds raise the share."""
    aux_ratio: float | None = None
    """Largest over smallest RMS of the captured target layers as the fc reads them."""
    aux_ratio_interval: Interval | None = None
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Share of each quarter's rounds, by label."""
    context_within_label: Contrast | None = None
    """Long contexts compared with short ones under the same labels; None if no label has both."""
    labels_within_context: tuple[Contrast, ...] = ()
    """Pairs of labels compared in the same ranges of context lengths; pairs without a common range
    are left out."""
    contexts_of_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ranges of context lengths in which each label has enough requests, shortest first."""


NO_GROUPS = Groups()
"""Groups of a summary that was not made from a trace."""


TRAFFIC = ""
"""Origin of the labels that clients gave."""


def origin_of(label: str) -> str:
    """Return the suite that a label names, as the beginning of the label, or TRAFFIC."""
    if not label.startswith(REPLAY_LABEL):
        return TRAFFIC
    suite, _, condition = label.removeprefix(REPLAY_LABEL).partition("/")
    return f"{REPLAY_LABEL}{suite}/" if condition else TRAFFIC


def origins(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the different origins of `labels`, the traffic first."""
    return tuple(sorted({origin_of(label) for label in labels}))


def usable(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with enough requests to be compared."""
    return [group for group in groups if group.requests >= ENOUGH_REQUESTS]


def kept_of(reference: Group, other: Group, *, tests: int) -> tuple[float, Interval] | None:
    """Return the accepted tokens per round of `other` over those of `reference`, with its 95%
    interval; None if the difference is not certain. With several `tests`, each must be more certain
    (Bonferroni)."""
    a, b = reference.mean_length - 1.0, other.mean_length - 1.0
    spans = reference.mean_length_interval, other.mean_length_interval
    if spans[0] is None or spans[1] is None or a <= 0:
        return None
    widen = NormalDist().inv_cdf(1 - 0.025 / tests) / NormalDist().inv_cdf(0.975)
    x, y = _around(a, spans[0], widen), _around(b, spans[1], widen)
    fall = difference(a, x, b, y) if x and y else None
    if fall is None or not fall.low > 0:
        return None
    kept = Interval.between(1 - fall.high / a, 1 - fall.low / a)
    return None if kept is None else (b / a, kept)


def _around(value: float, of_length: Interval, widen: float) -> Interval | None:
    """Return the interval of accepted tokens per round, widened, from the interval of the
    acceptance length."""
    low, high = of_length.low - 1.0, of_length.high - 1.0
    return Interval.between(value - widen * (value - low), value + widen * (high - value))


def group_of(name: str, rounds: Rounds) -> Group:
    """Return the group of these rounds; there must be at least one."""
    acceptance = acceptance_of(rounds, spread=True)
    comparable = rounds.comparable_ratio()
    spread = intervals(comparable)
    return Group(
        name=name,
        requests=rounds.requests,
        rounds=len(rounds),
        mean_length=float(comparable.value[0]),
        mean_length_interval=spread[0] if spread else None,
        marginal=acceptance.marginal,
        marginal_interval=acceptance.marginal_interval,
    )


HEALTHIEST = 0.97
"""Largest acceptance of a draft token, given the one before, that ordinary text explains: above
every published rate (the highest is 0.9, of an MTP head)."""


def loops_of(run: Sums) -> dict[str, Any]:
    """Return the fields of `Groups` about loops; only requests that may end in one are queried."""
    rounds = run.rounds
    finished = run.requests.finished[rounds.request]
    enough = finished & (rounds.rounds >= LOOP_ROUNDS)
    accepted_whole = rounds.exhausted[:, list(run.shape.ks)].sum(axis=1)
    maybe = enough & (accepted_whole >= LOOP_ROUNDS)
    shares = np.minimum(accepted_whole[maybe] / rounds.rounds[maybe], HEALTHIEST**run.shape.k)
    looping = 0
    if maybe.any():
        requests = rounds.request[maybe]
        run.requests.show(run.tables.engine, CHOSEN, requests)
        last_rounds = run.tables.engine.rows(whole_at_the_end(run.shape, LOOP_ROUNDS))
        looping = int((whole(last_rounds, "whole") == LOOP_ROUNDS).sum())
    return {
        "looping": looping,
        "long_enough": int(enough.sum()),
        "loops_by_chance": float((shares**LOOP_ROUNDS).sum()),
    }


@cache
def whole_at_the_end(shape: Shape, last: int) -> ir.Table:
    """Count, for each request in CHOSEN, those of its `last` rounds that drafted a full K and
    were accepted whole."""
    import ibis

    rows = table("verify")
    rows = rows.filter(rows.verified > 0).join(numbered(CHOSEN), REQUEST)
    order = ibis.window(group_by="cluster", order_by=rows.time_s.desc())
    rows = rows.mutate(back=ibis.row_number().over(order))
    rows = rows.filter(rows.back < last)
    is_whole = rows.verified.isin(shape.ks) & (rows.accepted >= rows.verified)
    return rows.group_by("cluster").aggregate(whole=is_whole.sum())


def strata_of(cells: Cells, contexts: list[str], labels: list[str]) -> dict[str, Any]:
    """Compare the rounds in `cells` within strata; `contexts` and `labels` are names."""
    requests = np.zeros((len(labels), len(contexts)), dtype=np.int64)
    np.add.at(requests, (cells.label, cells.context), 1)
    return {
        "context_within_label": context_within_label(cells, contexts, labels),
        "labels_within_context": tuple(
            pair
            for pair in labels_within_context(cells, contexts, labels)
            if origin_of(pair.first) == origin_of(pair.second)
        ),
        "contexts_of_labels": {
            label: tuple(
                name for name, n in zip(contexts, row, strict=True) if n >= ENOUGH_REQUESTS
            )
            for label, row in zip(labels, requests.tolist(), strict=True)
        },
    }


def cells_of(run: Sums) -> tuple[Cells, list[str], list[str]]:
    """Return the rounds in cells, the names of the ranges of context lengths, and the names of
    labels.

    Requests that did not finish have no known label, and are left out if others did finish.
    """
    request = run.requests.codes(run.in_context)
    rounds = run.rounds_of(run.in_context, request)
    known = run.requests.finished
    wanted = known[request] if known.any() else np.ones(len(request), dtype=np.bool_)
    kept = wanted & (rounds.rounds > 0)
    powers, context = np.unique(whole(run.in_context, "bucket")[kept], return_inverse=True)
    names, label = np.unique(run.requests.labels[request[kept]].astype(str), return_inverse=True)
    prompt, output = run.requests.prompt_tokens, run.requests.output_tokens
    power = whole(run.in_context, "bucket")[kept]
    cells = Cells(
        place=place_in_answer(power, prompt[request[kept]], output[request[kept]]),
        request=run.requests.units.unit[request[kept]],
        label=label,
        context=context,
        tokens=rounds.comparable_tokens()[kept, 0],
        rounds=rounds.rounds[kept].astype(np.float64),
    )
    return cells, [f"{range_name(exponent)} tokens" for exponent in powers.tolist()], names.tolist()


def place_in_answer(power: Codes, prompt_tokens: Matrix, output_tokens: Matrix) -> Codes:
    """Return the range of places in its answer, as a power of four, that a request has about the
    middle of a range of context lengths, 2^power to below 2^(power + 1); [rows] each. It is 0 if
    the tokens are not known. Narrower ranges would leave too few requests in each."""
    first = np.maximum(2.0**power, prompt_tokens)
    last = np.minimum(2.0 ** (power + 1), prompt_tokens + output_tokens)
    middle = np.nan_to_num((first + last) / 2 - prompt_tokens)
    return np.asarray(np.floor(np.log2(np.maximum(middle, 1.0)) / 2), dtype=np.int64)


def range_name(power: int) -> str:
    """Return the name of the range from 2^power to below 2^(power + 1)."""
    first, last = 2**power, 2 ** (power + 1) - 1
    return f"{first:,} to {last:,}" if last > first else f"{first}"


OTHER_TEXT = "other text of the same answers"
NEAR = f"within {NEAR_TOKENS} tokens of its begin"
FAR = "the rest of the block"
COPIED, NEW = "copied", "new"
Names = NDArray[np.str_]


def text_groups(run: Sums) -> dict[str, Any]:
    """Return the fields of `Groups` about kinds of text, see `row_filters.TEXT`."""
    if not run.requests.has_regions:  # no finished request has any
        return {}
    cut(run.tables, "verify", "verify", TEXT)
    by_text = run.tables.engine.rows(rounds_in_buckets(run.shape))
    if not by_text.num_rows:
        return {}
    table = in_order(by_text, "bucket", *REQUEST)
    rounds = run.rounds_of(table, run.requests.codes(table))
    parts = [name.split(TEXT_SEPARATOR) for name in table.column("bucket").to_pylist()]
    region, nearness, copied, place = np.asarray(parts, dtype=np.str_).T
    copied = np.where(copied == "1", COPIED, NEW)
    return {
        "region": tuple(_groups(rounds, region, Region.ALL)),
        "copied": tuple(_groups(rounds, copied, (COPIED, NEW))),
        **within_requests_of(rounds, region, nearness == "near", place.astype(np.int64)),
    }


def within_requests_of(
    rounds: Rounds, region: Names, near: NDArray[np.bool_], place: Codes
) -> dict[str, Any]:
    """Return the fields of `Groups` that compare kinds of text inside each request, in the same
    ranges of places in its answer; `region`, `near` and `place`, a power of two, are those of the
    rows of `rounds`, [rows]."""
    # Compare the first tokens of blocks with the rest of the same region in the same request.
    stratum = np.unique(region, return_inverse=True)[1] * (int(place.max(initial=0)) + 1) + place
    return {
        "regions_within_request": tuple(_regions_within(rounds, region, place)),
        "boundary_within_request": within_requests(_halves(rounds, near, stratum), FAR, NEAR),
    }


def _groups(rounds: Rounds, names: Names, order: tuple[str, ...]) -> Iterator[Group]:
    for name in order:
        group_rounds = rounds.where(names == name)
        if len(group_rounds):
            share = len(group_rounds) / len(rounds)
            yield replace(group_of(name, group_rounds), share_of_rounds=share)


def _regions_within(rounds: Rounds, region: Names, place: Codes) -> Iterator[Contrast]:
    """Yield each region compared with all other text of the same answers."""
    for name in Region.ALL:
        second = region == name
        if second.any():
            halves = _halves(rounds, second, place)
            if contrast := within_requests(halves, OTHER_TEXT, name):
                yield contrast


def _halves(rounds: Rounds, second: NDArray[np.bool_], stratum: NDArray[np.int64]) -> Halves:
    """Return the sums of both kinds by request and stratum."""
    strata = int(stratum.max(initial=0)) + 1
    key, at = np.unique(rounds.request * strata + stratum, return_inverse=True)
    counts, accepted = np.zeros((len(key), 2)), np.zeros((len(key), 2))
    place = (at, second.astype(np.int64))
    np.add.at(counts, place, rounds.rounds)
    np.add.at(accepted, place, rounds.comparable_tokens()[:, 0] - rounds.rounds)
    first = np.unique(at, return_index=True)[1]
    return Halves(
        accepted=accepted,
        rounds=counts,
        request=rounds.request[first],
        cluster=rounds.cluster[first],
        crossed=None if rounds.crossed is None else rounds.crossed[first],
    )


MAX_GROUPS = 16
"""Largest number of temperatures that get a group, counted from the lowest."""


def groups_of(run: Sums, by_batch: pa.Table, by_execution: pa.Table | None) -> Groups:
    """Return the groups of a run; the tables come from the passes of the same names."""
    loops = loops_of(run)
    rounds = run.rounds
    # The quarter of the run of each row of rounds, [rows], named so that the names sort by
    # time.
    began, drafted = run.first_s, rounds.rounds > 0
    first, last = began[drafted].min(initial=np.inf), began[drafted].max(initial=-np.inf)
    lasted = max(float(last - first), np.finfo(np.float64).tiny)
    part = np.clip((began - first) / lasted * QUARTERS, 0, QUARTERS - 1).astype(int)
    names = np.array([f"quarter {n + 1}" for n in range(QUARTERS)])
    quarter = np.asarray(names[part])
    labels = np.array([str(label) for label in run.requests.labels])[rounds.request]
    known = run.requests.finished[rounds.request]
    labelled = rounds.where(known)
    reasons = np.array([str(reason) for reason in run.requests.finish_reason])[rounds.request]
    replica = run.requests.replica[rounds.request].astype(str)
    steps, touched = rounds.rounds + run.undrafted, run.structured > 0
    some = rounds.where(touched)
    failed = rate_over_clusters(
        run.undrafted - run.deliberate - run.structured, steps, rounds.cluster, rounds.crossed
    )
    boundary = rate_over_clusters(
        run.structured[touched], steps[touched], some.cluster, some.crossed
    )
    has_rounds = rounds.rounds > 0
    begin, end = run.first_s[has_rounds], run.last_s[has_rounds]
    degrees = run.requests.temperature[rounds.request]
    lowest = np.unique(degrees[np.isfinite(degrees) & has_rounds])[:MAX_GROUPS]
    structured: tuple[Group, ...] = ()
    if touched.any():
        lost_draft = np.isin(rounds.request, rounds.request[touched])
        both = (("that lost drafts to a grammar", lost_draft), ("the others", ~lost_draft))
        parts = [(name, rounds.where(some)) for name, some in both]
        structured = tuple(group_of(name, some) for name, some in parts if len(some))
    return Groups(
        context=tuple(_by_power(run, run.in_context, " tokens")),
        batch=tuple(_by_power(run, by_batch)),
        temperature=tuple(group_of(f"{t:g}", rounds.where(degrees == t)) for t in lowest),
        finish=tuple(group for group in _by_value(rounds, reasons) if group.name),
        label=tuple(_by_value(labelled, labels[known])),
        replica=tuple(_by_value(rounds, replica)) if len(np.unique(replica)) > 1 else (),
        time=tuple(_by_value(rounds, quarter)),
        execution=_by_execution(run, by_execution),
        structured=structured,
        duration_s=float(end.max() - begin.min()) if has_rounds.any() else 0.0,
        failed_share=failed[0],
        failed_share_interval=failed[1],
        boundary_share=boundary[0],
        boundary_share_interval=boundary[1],
        shares=_shares(labelled, labels[known], quarter[known]),
        **loops,
        **strata_of(*cells_of(run)),
        **text_groups(run),
        **_aux_ratio(run.chains),  # last, because the sums of chains may still be queried
    )


def _by_value(rounds: Rounds, value: NDArray[np.str_]) -> Iterator[Group]:
    for name in np.unique(value[rounds.rounds > 0]).tolist():
        yield group_of(name, rounds.where(value == name))


def _by_power(run: Sums, table: pa.Table, unit: str = "") -> Iterator[Group]:
    """Yield groups by ranges, each twice as wide as the one before."""
    buckets = in_order(table, "bucket", *REQUEST)
    rounds, power = run.rounds_of(buckets, run.requests.codes(buckets)), whole(buckets, "bucket")
    for exponent in np.unique(power[rounds.rounds > 0]).tolist():
        yield group_of(f"{range_name(exponent)}{unit}", rounds.where(power == exponent))


def _shares(
    rounds: Rounds, labels: NDArray[np.str_], quarter: NDArray[np.str_]
) -> dict[str, tuple[float, ...]]:
    has_rounds = rounds.rounds > 0
    parts, names = np.unique(quarter[has_rounds]), np.unique(labels[has_rounds]).tolist()
    whole_of = {part: rounds.rounds[quarter == part].sum() for part in parts}
    return {
        label: tuple(
            float(rounds.rounds[(quarter == part) & (labels == label)].sum() / whole_of[part])
            for part in parts
        )
        for label in names
    }


def _aux_ratio(chains: Chains) -> dict[str, Any]:
    """Return the fields of `Groups` about the captured layers: the largest over the smallest RMS,
    after the norm before the fc if there is one, otherwise as captured, with its interval."""
    mean = chains.means.get("aux_norm_rms", chains.means.get("aux_rms"))
    if mean is None or mean.top.shape[1] < 2:
        return {}
    rms = mean.all()
    if not np.isfinite(rms).all() or rms.min() <= 0:
        return {}
    most, least = int(rms.argmax()), int(rms.argmin())
    # Both are measured in the same chains, so their weights cancel.
    one = replace(mean, top=mean.top[:, [most]], bottom=mean.top[:, [least]])
    spread = intervals(one.ratio())
    return {
        "aux_ratio": float(rms[most] / rms[least]),
        "aux_ratio_interval": spread[0] if spread else None,
    }


def _by_execution(run: Sums, table: pa.Table | None) -> tuple[Group, ...]:
    if table is None:
        return ()
    clusters = in_order(table, "execution", "cluster")
    rounds = run.rounds_of(clusters, whole(clusters, "cluster"))
    ran = np.asarray(clusters.column("execution").to_pylist(), dtype=np.str_)
    executions = sorted(set(ran) & set(run.shape.executions))
    return tuple(group_of(execution, rounds.where(ran == execution)) for execution in executions)

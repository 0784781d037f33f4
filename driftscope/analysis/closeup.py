"""Details of a run that a report shows in addition to means; bounded, whatever the run's size."""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import Requests
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.query_engine import Codes, floats, in_order, whole
from driftscope.analysis.query.record_views import PART, REQUEST, SERVED, Tables, table
from driftscope.boundary.files import first_line
from driftscope.boundary.text import dumps
from driftscope.errors import DamagedTraceError
from driftscope.metrics.acceptance import mean_length
from driftscope.metrics.attention import finite_mean, ratio
from driftscope.metrics.fallback import UNKNOWN
from driftscope.regions import first_drafted, regions_at
from driftscope.trace.segments import DERIVED_KEY, restore
from driftscope.trace.texts import KeptText
from driftscope.vocabulary import AUX, DISTANCE_MASS, MASSES, Region

if TYPE_CHECKING:
    import ibis.expr.types as ir

AT = tuple(i / 40 for i in range(41))
"""Probabilities of the quantiles kept: enough to draw a smooth curve."""
TTFT, TPOT, BETWEEN, STEP, DRAFT = "ttft_s", "tpot_s", "between_outputs_s", "step_s", "draft_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Distribution of one duration."""

    count: int
    mean_s: float
    quantiles_s: tuple[float, ...]
    """Quantiles at the probabilities `AT`, in seconds."""
    p99_s: float


def durations_of(
    requests: Requests, steps: pa.Table, rounds: pa.Table
) -> Mapping[str, Distribution]:
    """Return the distributions of the durations that the run has, by name; `rounds` may cover only
    some of its requests."""
    steps = steps.filter(pa.array(whole(steps, "chains") > 0))
    probe_s = floats(steps, "probe_s")
    # The times from each output of a request to its next, in seconds; an output is one token
    # plus the accepted drafts.
    request, time_s = requests.codes(rounds), floats(rounds, "time_s")
    order = np.lexsort((time_s, request))
    same = np.diff(request[order]) == 0
    gaps: NDArray[np.float64] = np.diff(time_s[order])[same]
    samples = {
        TTFT: requests.ttft_s,
        TPOT: requests.tpot_s,
        BETWEEN: gaps,
        STEP: floats(steps, "step_s") - probe_s,
        DRAFT: floats(steps, "draft_s") - probe_s,
    }
    distributions = {name: distribution(values) for name, values in samples.items()}
    return {name: value for name, value in distributions.items() if value is not None}


def distribution(values: NDArray[np.float64]) -> Distribution | None:
    """Return the distribution of the `values`, in seconds, that are finite and not negative; None
    without one."""
    values = values[np.isfinite(values) & (values >= 0)]
    if not len(values):
        return None
    *kept, p99 = np.quantile(values, [*AT, 0.99])
    return Distribution(
        count=len(values),
        mean_s=float(f"{values.mean():.6g}"),
        quantiles_s=tuple(float(f"{value:.5g}") for value in kept),
        p99_s=float(f"{p99:.5g}"),
    )


def _short(values: Iterable[float], digits: int = 5) -> tuple[float, ...]:
    return tuple(float(f"{value:.{digits}g}") for value in values)


BINS = 96
"""Number of windows: enough for a day in quarters of an hour, and for a picture as wide as a
screen."""
SHORTEST_S = 1e-6
"""Shortest window in seconds; a run may have a single step."""
ACCEPTED = "accepted"
"""Outcome of a round in which at least one drafted token was accepted."""
REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Decode steps, once per request, counted in windows of equal length."""

    start_s: float
    """Unix time of the first step."""
    window_s: float
    steps: Mapping[str, tuple[int, ...]]
    """Steps per window by outcome: ACCEPTED, REJECTED, or the reason why nothing was drafted."""
    tokens_per_round: tuple[float | None, ...]
    """Acceptance length in each window; None in a window without a round."""


def timeline_of(tables: Tables, start_s: float, end_s: float) -> Timeline | None:
    """Return the timeline of a run whose decode steps lie between the two Unix times, also those
    of requests that figures leave out; None if a time is not finite."""
    if not math.isfinite(start_s) or not math.isfinite(end_s):
        return None
    window = max((end_s - start_s) / BINS, SHORTEST_S)
    import ibis

    rows = table(SERVED, "verify")
    verified, accepted = rows.verified.fill_null(0), rows.accepted.fill_null(0)
    kinds = ibis.cases(
        (verified > 0, ibis.ifelse(accepted > 0, ACCEPTED, REJECTED)),
        else_=rows.reason.fill_null(UNKNOWN),
    )
    place = ((rows.time_s - start_s) / window).floor().cast("int64")
    windowed = rows.mutate(window=place, kind=kinds, tokens=accepted + 1)
    by_kind = windowed.group_by("window", "kind").aggregate(
        steps=lambda t: t.count(), tokens=lambda t: t.tokens.sum()
    )
    counted = tables.engine.rows(by_kind)
    at = np.clip(whole(counted, "window"), 0, BINS - 1)
    number, tokens = whole(counted, "steps"), whole(counted, "tokens")
    kind = np.asarray(counted.column("kind").to_pylist(), dtype=np.object_)
    rounds = np.isin(kind, (ACCEPTED, REJECTED))
    names = [ACCEPTED, REJECTED, *sorted(set(kind[~rounds]))]

    def by_window(values: Codes, mine: NDArray[np.bool_]) -> list[float]:
        counts = np.bincount(at[mine], weights=values[mine], minlength=BINS)
        return [float(count) for count in counts]

    return Timeline(
        start_s=start_s,
        window_s=window,
        steps={name: tuple(map(int, by_window(number, kind == name))) for name in names},
        tokens_per_round=tuple(
            float(f"{token / n:.5g}") if n else None
            for token, n in zip(by_window(tokens, rounds), by_window(number, rounds), strict=True)
        ),
    )


def regions_of(
    position: Sequence[int], request: Mapping[str, Any] | None
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """Return the region of each round at these positions, and whether its text is copied; empty if
    the `request`, a request row, has no regions, has some of a later version, or is not known."""
    if request is None or not request["region_starts"]:
        return (), ()
    tokens = first_drafted(position, request["prompt_tokens"])
    names = dict(enumerate(Region.ALL))
    known = [names.get(code) for code in request["region_codes"]]
    found = [known[at] for at in regions_at(tokens, request["region_starts"])]
    if None in found:
        return (), ()
    copies = request["region_copies"] or ()
    copied = tuple(bisect_right(copies, token) % 2 == 1 for token in tokens)
    return tuple(name for name in found if name), copied


ROUND_COLUMNS = (*REQUEST, "time_s", "position", "verified", "accepted", "reason")
NOT_OPENED = ("top1", "entropy", *AUX, DISTANCE_MASS)
"""List columns of chains that a close-up of single requests does not show."""
ONE_BY_ONE = 1_000_000
"""Number of chains in a run above which the chains of single requests are found by their steps."""


def chains_of_requests(
    tables: Tables, names: Sequence[str], drafted_in: NDArray[np.int64], chains: int
) -> pa.Table:
    """Return the recorded chains of these requests, with the list columns that files leave out.

    `drafted_in`, [requests, 2], holds the first and last step of each request. In a run of many
    `chains` only these steps are searched, request by request, so that most files are not read at
    all.
    """
    rows = table(PART, "draft").drop(*NOT_OPENED)
    query = _rows_of_requests(rows, names)
    if chains > ONE_BY_ONE:
        queries = [
            _rows_of_requests(rows, [name]).filter(rows.step.between(first, last))
            for name, (first, last) in zip(names, drafted_in.tolist(), strict=True)
        ]
        query = functools.reduce(lambda a, b: a.union(b), queries)
    parts = []
    for derived in tables.parts:
        tables.use(derived)
        try:
            found = tables.engine.rows(query)
            # With the list columns that their files leave out.
            stored = found.drop_columns([name for name, _ in derived])
            metadata = {DERIVED_KEY: dumps(dict(derived)).encode()}
            restored = restore(stored.replace_schema_metadata(metadata))
            parts.append(restored.select(found.column_names).replace_schema_metadata(None))
        except ValueError as error:
            raise DamagedTraceError(
                f"{tables.path}: a draft file lacks columns that others are made from "
                f"({first_line(error)}); move it away to analyse the rest of the run"
            ) from error
    recorded_chains = pa.concat_tables(parts, promote_options="permissive")
    return in_order(recorded_chains, "time_s", "replica", "request", "position")


def _rows_of_requests(rows: ir.Table, names: Sequence[str]) -> ir.Table:
    return rows.filter(rows.request.isin(sorted(set(names))))


NAMED_EACH = 50
"""Number of requests named at each end."""
OPENED_EACH = 6
"""Number of requests at each end whose rounds are kept."""
MAX_ROUNDS = 48
"""Number of rounds kept of an opened request, counted from its first round."""
ENOUGH_ROUNDS = 3
"""Smallest number of rounds of a ranked request; with fewer, its acceptance length is chance."""

Floats = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRequest:
    """One request of the table; None for a number that does not exist."""

    request: str
    label: str
    rounds: int
    mean_length: float
    growth: float | None
    self_mass: float | None
    """Attention mass on the chain itself at depth K."""
    prompt_tokens: int | None
    output_tokens: int | None
    ttft_s: float | None
    tpot_s: float | None
    temperature: float | None
    accepted: str
    """Tokens accepted in each of its first rounds, in order; `-` stands for a step without a
    draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRequest:
    """Rounds of one named request, in order; None for a list that was not recorded."""

    request: str
    steps: int
    """Decode steps of the request; the lists are shorter if it had more than are kept."""
    position: tuple[int, ...]
    verified: tuple[int, ...]
    accepted: tuple[int, ...]
    reason: tuple[str | None, ...]
    masses: Mapping[str, tuple[Floats | None, ...]]
    """Masses by column of the trace: per round, by depth, averaged over layers."""
    fed_rms: tuple[Floats | None, ...]
    token_ids: tuple[tuple[int, ...] | None, ...]
    """Drafted tokens of each round; None where they were not recorded."""
    region: tuple[str, ...] = ()
    """Kind of text that each round drafts, one of `Region.ALL`; empty if it was not recorded."""
    copied: tuple[bool, ...] = ()
    """Whether the text of each round repeats an earlier passage; empty as `region`."""
    text: KeptText | None = None
    """Prompt and answer, if a replay kept them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRequest:
    """Figures per request, arrays of [requests] each; NaN for a number that does not exist."""

    rounds: NDArray[np.float64]
    mean_length: NDArray[np.float64]
    growth: NDArray[np.float64]
    self_mass: NDArray[np.float64]


def named_of(
    requests: Requests, per: PerRequest, chosen: NDArray[np.int64], rounds: pa.Table
) -> tuple[NamedRequest, ...]:
    """Return the rows of the table; `rounds` has the rounds of `chosen`, and possibly of others."""
    codes, wanted = requests.codes(rounds), set(chosen.tolist())
    verified, accepted = whole(rounds, "verified").tolist(), whole(rounds, "accepted").tolist()
    signs: dict[int, list[str]] = {}
    for at, request in enumerate(codes.tolist()):
        if request in wanted:
            signs.setdefault(request, []).append(str(accepted[at]) if verified[at] else "-")
    strips = {
        request: " ".join(all_of[:MAX_ROUNDS]) + (" …" if len(all_of) > MAX_ROUNDS else "")
        for request, all_of in signs.items()
    }
    return tuple(
        NamedRequest(
            request=_name(requests, code),
            label=str(requests.labels[code]),
            rounds=int(per.rounds[code]),
            mean_length=float(f"{per.mean_length[code]:.5g}"),
            growth=_rounded(per.growth[code]),
            self_mass=_rounded(per.self_mass[code]),
            prompt_tokens=_count(requests.prompt_tokens[code]),
            output_tokens=_count(requests.output_tokens[code]),
            ttft_s=_rounded(requests.ttft_s[code]),
            tpot_s=_rounded(requests.tpot_s[code]),
            temperature=_rounded(requests.temperature[code]),
            accepted=strips.get(code, ""),
        )
        for code in chosen.tolist()
    )


def opened_of(
    requests: Requests,
    opened: NDArray[np.int64],
    rounds: pa.Table,
    chains: pa.Table,
    texts: pa.Table,
) -> tuple[OpenedRequest, ...]:
    """Return the rounds of each request in `opened`; rounds and chains are in order of time, and
    `texts` has the kinds of text of the answers."""
    of_round, of_chain = requests.codes(rounds), requests.codes(chains)
    answers = dict(zip(requests.codes(texts).tolist(), texts.to_pylist(), strict=True))
    out = []
    for code in opened.tolist():
        steps = rounds.take(np.flatnonzero(of_round == code))
        recorded = chains.take(np.flatnonzero(of_chain == code))
        shown = steps.slice(0, MAX_ROUNDS)
        latest = {chain["position"]: chain for chain in recorded.to_pylist()}
        position = whole(shown, "position").tolist()
        found = [latest.get(place, {}) for place in position]
        region, copied = regions_of(position, answers.get(code))
        masses: dict[str, tuple[Floats | None, ...]] = {}
        for column in MASSES:
            if recorded.column(column).null_count == recorded.num_rows:
                continue
            lists = [(chain.get(column), int(chain.get("layers") or 1)) for chain in found]
            by_layer = [
                None if mass is None else np.asarray(mass).reshape(-1, max(layers, 1))
                for mass, layers in lists
            ]
            masses[column] = tuple(
                None if mass is None else _short(finite_mean(mass, axis=1).tolist(), 3)
                for mass in by_layer
            )
        request = OpenedRequest(
            request=_name(requests, code),
            steps=steps.num_rows,
            position=tuple(position),
            verified=tuple(whole(shown, "verified").tolist()),
            accepted=tuple(whole(shown, "accepted").tolist()),
            reason=tuple(shown.column("reason").to_pylist()),
            masses=masses,
            fed_rms=tuple(
                None if chain.get("fed_rms") is None else _short(chain["fed_rms"], 3)
                for chain in found
            ),
            token_ids=tuple(
                None if chain.get("token_ids") is None else tuple(map(int, chain["token_ids"]))
                for chain in found
            ),
            region=region,
            copied=copied,
        )
        out.append(request)
    return tuple(out)


def _name(requests: Requests, code: int) -> str:
    """Return the engine's id of a request, with its replica if that is not the first."""
    name = str(requests.keys.column("request")[code].as_py())
    replica = int(requests.replica[code])
    return name if not replica else f"{name} (replica {replica})"


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


def _count(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseUp:
    """Details of one run: single requests, moments and durations."""

    timeline: Timeline | None
    durations: Mapping[str, Distribution]
    named: tuple[NamedRequest, ...]
    """Requests of the table, worst acceptance first."""
    opened: tuple[OpenedRequest, ...]
    """A few requests from both ends of `named`, with their rounds."""


SAMPLED = 500
"""Number of requests whose outputs are timed one by one, taken evenly from all requests."""


def closeup_of(run: Sums, steps: pa.Table) -> CloseUp:
    """Return the close-up of a run; `steps` are those of `StepTimes`."""
    requests = run.requests
    n = len(run.requests)
    of_rounds = run.rounds.request
    count, accepted = (
        np.bincount(of_rounds, weights=number, minlength=n).astype(np.float64)
        for number in (run.rounds.rounds, run.rounds.accepted)
    )
    # Growth of the hidden state and attention on the chain at the last depth, [requests] each.
    chains, drift = run.chains, []
    for mean in (chains.means.get("growth"), chains.over_layers("self_mass")):
        values = np.full(n, np.nan)
        if mean is not None:
            values[chains.request] = ratio(mean.top[:, -1], mean.bottom[:, -1])
        drift.append(values)
    pairs = zip(accepted.tolist(), count.tolist(), strict=True)
    length = np.array([mean_length(a, n) if n else np.nan for a, n in pairs], dtype=np.float64)
    per = PerRequest(rounds=count, mean_length=length, growth=drift[0], self_mass=drift[1])
    known = np.flatnonzero(per.rounds >= min(ENOUGH_ROUNDS, per.rounds.max(initial=0.0)))
    known = known[per.rounds[known] > 0]
    order = known[np.argsort(per.mean_length[known], kind="stable")]
    if len(order) <= 2 * NAMED_EACH:
        chosen = order
    else:
        chosen = np.concatenate([order[:NAMED_EACH], order[-NAMED_EACH:]])
    if len(chosen) <= 2 * OPENED_EACH:
        opened = chosen
    else:
        opened = np.concatenate([chosen[:OPENED_EACH], chosen[-OPENED_EACH:]])
    sampled = np.unique(np.linspace(0, len(requests) - 1, min(len(requests), SAMPLED)).astype(int))
    timed = _rows_of_requests(table("verify"), _names(requests, np.union1d(sampled, chosen)))
    rounds = in_order(
        run.tables.engine.rows(timed.select(*ROUND_COLUMNS)),
        *("time_s", "replica", "request", "position"),
    )
    chains = chains_of_requests(
        run.tables, _names(requests, opened), run.drafted_in[opened], int(run.recorded.sum())
    )
    rows = table("request")
    columns = (*REQUEST, "prompt_tokens", "region_starts", "region_codes", "region_copies")
    texts = run.tables.engine.rows(
        _rows_of_requests(rows, _names(requests, opened)).select(*columns)
    )
    first, last = (moments[np.isfinite(moments)] for moments in (run.first_s, run.last_s))
    span = float(first.min(initial=np.inf)), float(last.max(initial=-np.inf))
    if run.cohort is not None:
        span = run.cohort.start_s, run.cohort.end_s
    return CloseUp(
        timeline=timeline_of(run.tables, *span),
        durations=durations_of(requests, steps, rounds),
        named=named_of(requests, per, chosen, rounds),
        opened=opened_of(requests, opened, rounds, chains, texts),
    )


def _names(requests: Requests, codes: NDArray[np.int64]) -> list[str]:
    names: list[str] = requests.keys.column("request").take(codes).to_pylist()
    return names

"""Follow an engine from outside, by its run directory or a page of metrics, and view figures."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, median, median_high, median_low
from typing import TypeVar
from urllib.parse import urlsplit

from driftscope.boundary.bounds import MAX_K, MAX_METRICS_BYTES
from driftscope.boundary.http_peer import OK, AnswerLimits, ask, public
from driftscope.boundary.text import shown
from driftscope.errors import (
    DamagedTraceError,
    NoDataError,
    PeerError,
    TelemetryError,
    Unknown,
    UnknownKindError,
    UsageError,
)
from driftscope.metrics.acceptance import UNCUT, mean_length, running_product
from driftscope.metrics.fallback import UNKNOWN
from driftscope.metrics.latency import all_in, cost_of
from driftscope.telemetry import instruments as i
from driftscope.telemetry.count import BadRowError, BatchCounter, record_status
from driftscope.telemetry.engine import ManifestFile, in_order
from driftscope.telemetry.instruments import (
    CLASS,
    DEPTH,
    PLACE,
    REASON,
    Instrument,
    Key,
    Point,
    Snapshot,
    Tally,
    difference,
)
from driftscope.telemetry.prometheus import (
    ENGINES,
    BadPageError,
    EnginePage,
    Sample,
    page_of_samples,
    points_on,
    samples_of_engine,
)
from driftscope.trace.manifest import CLIENT, read_manifest
from driftscope.trace.ranks import place_of
from driftscope.trace.reader import read_rows
from driftscope.trace.segments import segments, source_of
from driftscope.trace.status import read_statuses
from driftscope.vocabulary import EngineName

T = TypeVar("T")
CLASSES = ("sink", "prompt", "generated", "self")
LIMITS = AnswerLimits(seconds=5.0, octets=MAX_METRICS_BYTES)
"""Limits of one request to an endpoint."""
OUTLIER_SHARE = 0.85
"""Share of the siblings' median length below which a replica is named; the alert
DriftscopeFleetOutlier has the same."""
OUTLIER_GAUGE = 0.7
"""That share for a length of one log interval."""
_BY_CHANCE = 0.005
"""Share of pages on which a healthy replica may be named for the distance of its count of accepted
tokens from its siblings'."""
_ROUNDS_ALIKE = 20.0
"""Variance of that count, as a multiple of a Poisson count's: 2.5 to 3 for chains that end at their
first rejection, and the rest because rounds of one request are alike."""
_COLLAPSED = 0.125
"""Share of the siblings' accepted tokens below which a replica is named where they have at least
_SIBLINGS_ACCEPT of them in as many rounds: requests do not differ that much."""
_SIBLINGS_ACCEPT = 10.0
NOTHING_LENGTH = 1.05
"""Acceptance length below which nothing is accepted; the alert DriftscopeNothingAccepted has the
same."""
FEW_ROUNDS = 20
"""Rounds below which a length of 1.00 may be chance: a drafter that is accepted in one round of ten
has none in 20 rounds in 12 % of cases."""
_RECORDS = ("draft", "verify", "step", "request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Figures of one depth; None where nothing was measured or the quantity does not apply."""

    accepted: float | None
    """Marginal acceptance over the rounds that verified the depth."""
    masses: dict[str, float | None]
    """Attention masses by class of slots."""
    fed_rms: float | None
    top1: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Figures of an engine over a period."""

    rounds: int
    requests: int
    chains: int
    k: int
    simulated: bool
    """Whether accepted tokens are drawn at a given rate."""
    length: float | None
    verified: float | None
    """Draft tokens of a round that the target verified; a draft may be shorter than K."""
    tpot_s: float | None
    ttft_s: float | None
    draft_s: float | None
    verify_s: float | None
    rejected: float | None
    """Share of rejected rounds in all decode steps."""
    undrafted: dict[str, float]
    """Shares of undrafted steps in all decode steps, by reason."""
    rate: float | None
    overhead: float | None
    """Cost of the probe that a budget bounds; the largest of the engine's workers."""
    all_in: float | None
    """Cost of the probe, all in, since the start."""
    down: str
    """Kind of the reason why nothing is recorded; empty if the engine records."""
    growth: float | None
    """Mean growth of the hidden state over a chain; None without chains that have it."""
    dropped: int
    """Rows dropped since the start."""
    depths: tuple[Depth, ...]


class _Figures:
    """Sums over series."""

    def __init__(self, points: Snapshot) -> None:
        self._points: dict[tuple[str, str | None], list[tuple[Point, dict[str, str]]]] = {}
        """Points by name, and by name and depth."""
        for point in points.values():
            own = dict(point.attributes)
            for depth in {None, own.get(DEPTH)}:
                self._points.setdefault((point.name, depth), []).append((point, own))

    def total(self, instrument: Instrument, **by: str) -> float:
        return sum(p.value for p in self._points_of(instrument, by))

    def has(self, instrument: Instrument) -> bool:
        return (instrument.name, None) in self._points

    def mean(self, instrument: Instrument, **by: str) -> float | None:
        points = self._points_of(instrument, by)
        count = sum(p.count for p in points)
        return sum(p.value for p in points) / count if count else None

    def values(self, instrument: Instrument, attribute: str) -> dict[str, float]:
        totals: dict[str, float] = {}
        for point in self._points_of(instrument, {}):
            key = dict(point.attributes).get(attribute, UNKNOWN)
            totals[key] = totals.get(key, 0.0) + point.value
        return dict(sorted(totals.items()))

    def _points_of(self, instrument: Instrument, by: dict[str, str]) -> list[Point]:
        points = self._points.get((instrument.name, by.get(DEPTH)), ())
        return [point for point, own in points if by.items() <= own.items()]


class FollowedRun:
    """A run directory; each call of `look` reads the rows written since the previous one. `over`:
    whether no further figures can come; `budget`: share of the time per token that the probe may
    use, None if it is not governed, or not known; `page`: None, see FollowedEndpoint.

    Raises NotATraceError and its siblings where there is no run.
    """

    def __init__(self, run: Path) -> None:
        if read_manifest(run).engine == CLIENT:
            raise NoDataError(
                f"{run}: was recorded by no probe, so there is no engine to watch; give the run "
                "recorded in the server"
            )
        self._run, self._manifest = run, ManifestFile(run)
        self._tally, self._rows = Tally(), Counter[str]()
        self._counters = {
            first: BatchCounter(tally=self._tally, first_rank=first) for first in (True, False)
        }
        self.has_ended = False
        self.budget: float | None = None
        self.page: EnginePage | None = None

    def look(self) -> dict[Key, Point]:
        """Return the current figures."""
        statuses = read_statuses(self._run)  # first: rows reported as written are then found
        for record in _RECORDS:
            for path in segments(self._run, record):
                self._read(record, path)
        for status in statuses:
            record_status(self._tally, status)
        asked = (status.control.get("budget") for status in statuses)
        self.budget = next(
            (float(share) for share in asked if isinstance(share, int | float)), None
        )
        if manifest := self._manifest.read():
            if not 0 <= manifest.k <= MAX_K:
                raise DamagedTraceError(f"{self._run}: its manifest has k = {manifest.k}")
            self._tally.set(i.CONFIGURED_K, manifest.k)
            self._tally.set(i.SIMULATED, int(manifest.is_simulated))
        self.has_ended = bool(statuses) and all(status.closed for status in statuses)
        return self._tally.snapshot()

    def _read(self, record: str, path: Path) -> None:
        table = read_rows(path, record, [])
        new = table.slice(self._rows[path.stem])
        self._rows[path.stem] = max(table.num_rows, self._rows[path.stem])
        if not new.num_rows:
            return
        counter = self._counters[place_of(source_of(path, record)).rank == 0]
        batches = new.combine_chunks().to_batches()
        for name, batch in in_order([(record, batch) for batch in batches]):
            try:
                counter.take(name, batch)
            except BadRowError as error:
                raise DamagedTraceError(f"{path}: {error}") from error


class FollowedEndpoint:
    """The endpoint of an engine that answers Prometheus, or those of several replicas. Raises
    TelemetryError, and UnknownKindError for a page of something else.

    It shows driftscope's metrics, or the engine's own if the page has no others, if there are
    several pages, or if `own` names it. User and password in a URL are sent in its
    Authorization header and are never shown. `page`: the engine's own metrics, None if driftscope's
    are followed.
    """

    has_ended: bool = False
    budget: float | None = None

    def __init__(self, *urls: str, own: EngineName | None = None) -> None:
        bases = (url.rstrip("/") for url in urls)
        self._urls = [url if url.endswith("/metrics") else f"{url}/metrics" for url in bases]
        self._own, self._engines = own is not None, [own] if own else list(EngineName)
        self.page: EnginePage | None = None
        self.look()

    def look(self) -> dict[Key, Point]:
        """Return the current figures."""
        texts = [_text(url) for url in self._urls]
        one = len(texts) == 1
        if one and not self._own and (points := _read(self._urls[0], lambda: points_on(texts[0]))):
            return _read(self._urls[0], lambda: _possible(points))
        known = [ENGINES[name] for name in self._engines]
        samples = list[Sample]()
        for url, text in zip(self._urls, texts, strict=True):
            found = _read(url, functools.partial(samples_of_engine, text, known))
            if found is None:
                raise UnknownKindError(self._unknown(url))
            known, where = (
                [found[0]],
                {} if one else {"instance": urlsplit(url).netloc.rpartition("@")[2]},
            )
            samples += [replace(sample, labels={**sample.labels, **where}) for sample in found[1]]
        page = self.page = _read(self._urls[0], lambda: page_of_samples(known[0], samples))
        return _read(self._urls[0], lambda: _possible(page.points))

    def _unknown(self, url: str) -> Unknown:
        others = "" if self._own else "driftscope's, or those of "
        asked = " or ".join(ENGINES[name].title for name in self._engines)
        return Unknown(
            what=f"the page {public(url)}",
            instead="no metrics of speculative decoding are there",
            not_recognised=(f"{others}{asked}",),
            adding="give the metrics page of a server that speculates, the port of "
            "`driftscope serve --prometheus PORT`, or the run directory",
        )


def _possible(points: dict[Key, Point]) -> dict[Key, Point]:
    """Return the figures of a page; raises BadPageError for more tokens than can be accepted."""
    figures = _Figures(points)
    accepted, verified = figures.total(i.ACCEPTED), figures.total(i.VERIFIED)
    if figures.has(i.VERIFIED) and accepted > verified:
        raise BadPageError(f"{accepted:,.0f} tokens accepted of {verified:,.0f} that were verified")
    return points


def _text(url: str) -> str:
    def answer() -> str:
        found = ask(url, LIMITS)
        if found.status != OK:
            raise BadPageError(f"HTTP {found.status}")
        return found.text()

    return _read(url, answer)


def _read(url: str, action: Callable[[], T]) -> T:
    """Return the result; raises TelemetryError, with the URL, if there is no page or a bad one."""
    try:
        return action()
    except (PeerError, BadPageError) as error:
        why = error.why if isinstance(error, PeerError) else shown(str(error))
        raise TelemetryError(f"{public(url)}: no metrics there ({why})") from error


Followed = FollowedRun | FollowedEndpoint


def view(now: Snapshot, before: Snapshot | None = None) -> View:
    """Return the figures since `before`, or since the start; gauges have their current value."""
    new, whole = _Figures(difference(now, before or {})), _Figures(now)
    rounds, undrafted = new.total(i.ROUNDS), new.values(i.UNDRAFTED_STEPS, REASON)
    steps = rounds + sum(undrafted.values())
    counted = rounds and new.has(i.ACCEPTED)
    length = mean_length(new.total(i.ACCEPTED), rounds) if counted else None
    rejected = (
        new.total(i.REJECTED_ROUNDS) / steps if steps and new.has(i.REJECTED_ROUNDS) else None
    )
    draft_s, verify_s = new.mean(i.DRAFT_TIME), new.mean(i.VERIFY_TIME)
    k = int(whole.total(i.CONFIGURED_K))
    return View(
        rounds=int(rounds),
        requests=int(new.total(i.REQUESTS)),
        chains=int(new.total(i.CHAINS)),
        k=k,
        simulated=whole.total(i.SIMULATED) > 0,
        length=length,
        verified=new.total(i.VERIFIED) / rounds if rounds and new.has(i.VERIFIED) else None,
        tpot_s=new.mean(i.TPOT),
        ttft_s=new.mean(i.TTFT),
        draft_s=draft_s,
        verify_s=verify_s,
        rejected=rejected,
        undrafted={reason: n / steps for reason, n in undrafted.items() if steps and n},
        rate=max(whole.values(i.RATE, i.SOURCE).values(), default=None),
        overhead=max(whole.values(i.PROBE_OVERHEAD, i.SOURCE).values(), default=None),
        growth=new.mean(i.GROWTH),
        all_in=_all_in(whole),
        down=_down(whole),
        dropped=int(whole.total(i.DROPPED)),
        depths=tuple(
            _depth(new, str(n), rate) for n, rate in enumerate(_marginal(new, k, rounds), 1)
        ),
    )


def _all_in(whole: _Figures) -> float | None:
    """Return the probe's cost: each process's hooks and writer are one figure here, and the time of
    all model steps another."""
    step_s = whole.total(i.STEP_TIME)
    by_source = whole.values(i.PROBE_TIME, i.SOURCE)
    costs = [cost_of(f"{source}-0", taken_s, 0.0) for source, taken_s in by_source.items()]
    return all_in(replace(cost, step_s=step_s if cost.worker else 0.0) for cost in costs)


def _down(whole: _Figures) -> str:
    up = whole.values(i.UP, REASON)
    return "" if any(up.values()) else next(iter(up), "")


def _marginal(new: _Figures, k: int, rounds: float) -> list[float | None]:
    """Return the marginal acceptance by depth, [k], from risk sets; None where no round could be
    accepted at a depth. Engines' own metrics have no risk sets; their rates are over the rounds
    that drafted the depth, which are unknown beyond depth 1 if drafts are shorter than K."""
    reached, at_risk = (
        [new.total(item, **{DEPTH: str(n)}) for n in range(1, k + 1)]
        for item in (i.REACHED, i.AT_RISK)
    )
    if rounds and not any(at_risk):
        at = [new.total(i.VERIFIED_AT, **{DEPTH: str(n)}) for n in range(1, k + 1)]
        if not any(at):
            whole = not new.has(i.VERIFIED) or new.total(i.VERIFIED) >= UNCUT * rounds * k
            at = [rounds, *[rounds if whole else 0.0] * (k - 1)]
        known = new.has(i.REACHED)
        return [n / own if known and own else None for n, own in zip(reached, at, strict=False)]
    reached = [min(n, could) for n, could in zip(reached, at_risk, strict=True)]
    rates = running_product(reached, at_risk).tolist()
    return [rate if math.isfinite(rate) else None for rate in rates]


def _depth(new: _Figures, depth: str, accepted: float | None) -> Depth:
    at = {DEPTH: depth}
    return Depth(
        accepted=accepted,
        masses={name: new.mean(i.MASS, **at, **{CLASS: name}) for name in CLASSES},
        fed_rms=new.mean(i.RMS, **at, **{PLACE: "fed"}),
        top1=new.mean(i.TOP1, **at),
    )


def outliers(replicas: Mapping[str, tuple[float, int | None]]) -> dict[str, str]:
    """Return the replicas that accept less than their siblings, or more if none accepts less, each
    with its numbers in words. Those of another model have another drafter, and are no siblings.

    `replicas`: acceptance length of each and its number of rounds, None for a length of one log
    interval.
    """
    found = {-1: dict[str, str](), 1: dict[str, str]()}
    for name, (length, rounds) in replicas.items():
        model = _model_in(name)
        others = [
            other for key, other in replicas.items() if key != name and _model_in(key) == model
        ]
        side = _side(length, rounds, others) if others else 0
        if side:
            lengths = sorted(length for length, _ in others)
            period = "in its last log interval" if rounds is None else f"in {rounds:,} rounds"
            siblings = (
                f"its {len(others)} siblings accept {lengths[0]:.2f} to {lengths[-1]:.2f}, "
                f"median {median(lengths):.2f}"
                if len(others) > 1
                else f"its sibling accepts {lengths[0]:.2f}"
            )
            found[side][name] = f"accepts {length:.2f} tokens a round {period}; {siblings}"
    return found[-1] or (found[1] if len(replicas) > 2 else {})


_OF_MODEL = ("model_name ", "model ", "engine_type ")
"""Beginnings of the parts of a replica's name that are no replica's."""


def _model_in(name: str) -> list[str]:
    return [part for part in name.split(", ") if part.startswith(_OF_MODEL)]


def _side(length: float, rounds: int | None, others: Sequence[tuple[float, int | None]]) -> int:
    """Return -1 for a replica that accepts clearly less than the others, 1 for more, else 0."""
    bound = OUTLIER_GAUGE if rounds is None else OUTLIER_SHARE
    lengths = [length for length, _ in others]
    if length < bound * (middle := median_low(lengths)):
        side = -1
    elif length * bound > (middle := median_high(lengths)):
        side = 1
    else:
        return 0
    if rounds is None:
        return side
    accepted, expected = rounds * (length - 1), rounds * (middle - 1)
    if accepted < _COLLAPSED * expected and expected >= _SIBLINGS_ACCEPT:
        return side
    # The root of a Poisson count has a variance of 1/4 (Anscombe 1948).
    distance = 2 * (math.sqrt(max(accepted, 0.0) + 0.375) - math.sqrt(expected + 0.375))
    sure = NormalDist().inv_cdf(1 - _BY_CHANCE / (len(others) + 1))
    spread = math.sqrt(_ROUNDS_ALIKE * (1 + 1 / len(others)))
    return side if side * distance > sure * spread else 0


def nothing_accepted(
    length: float | None, k: int, *, rounds: int | None = None, running: int | None = None
) -> str:
    """Return in words what an acceptance length of 1.00 means; "" for a larger one, and for fewer
    than FEW_ROUNDS rounds. `rounds`: None for a length of one log interval."""
    few = rounds is not None and rounds < FEW_ROUNDS
    if length is None or length >= NOTHING_LENGTH or few:
        return ""
    if rounds is None and running == 0:
        return (
            f"{length:.2f} in the last log interval, and no request is running now: look again "
            "while requests run"
        )
    drafts = f"{k} draft tokens of each round" if k else "draft tokens"
    little = ("nothing", "all") if length < 1.005 else ("next to nothing", "nearly all")
    rejected = f"{little[0]} is accepted: {little[1]} {drafts} are rejected, which costs time and "
    rejected += "saves none"
    if running:
        return f"{rejected}; {running:,} requests are running, so the server is not idle"
    return rejected if running is None else f"{rejected}; no request is running now"


MOST_DRAFTED = 0.8
"""Share of output tokens in rounds with a draft, below which short answers do not explain the rest:
an answer's first token is of none."""


def mostly_undrafted(page: EnginePage) -> str:
    """Return in words that most output is of steps without a draft, of which an acceptance length
    says nothing; "" if it is not."""
    if page.drafted is None or page.drafted >= MOST_DRAFTED:
        return ""
    return (
        f"the length is that of rounds with a draft, which yield {page.drafted:.0%} of the output "
        "tokens; each other token took a step of its own"
    )


def follow(targets: Sequence[str], own: EngineName | None = None) -> Followed:
    """Return the engine named by a run directory or a URL, or replicas by the URLs of their pages;
    raises DriftscopeError.

    `own`: the engine whose own metrics are read, whatever else the page holds.
    """
    urls = [target for target in targets if target.startswith(("http://", "https://"))]
    if len(urls) == len(targets):
        return FollowedEndpoint(*urls, own=own)
    other = shown(next(target for target in targets if target not in urls))
    if len(targets) > 1:
        raise UsageError(f"{other}: is not a URL; several targets are pages of replicas")
    if own:
        raise UsageError(f"{other}: is not a URL; --engine reads a server's")
    return FollowedRun(Path(targets[0]))

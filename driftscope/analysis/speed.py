"""Speed of one server over another's: at each load, by the clients' clock and by the server's own.

A server that is started again differs from itself by RUN_EFFECT, so that every ratio of two runs
has that in its interval. Rounds in which both were started in turn show how large it is. What else
uses the machine for a while slows requests that follow each other: an interval holds the speed with
and without such a stretch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.comparability import (
    NO_DIFFERENCE,
    Claim,
    Comparability,
    comparability_of_clocks,
)
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.replays import (
    ReplaySummary,
    Row,
    grouped,
    load_words,
    pair_sums,
    throughput_of,
)
from driftscope.analysis.statistics.changes import odd_stretch
from driftscope.analysis.statistics.intervals import Z95, Interval, ratio
from driftscope.analysis.statistics.ratio import PairSums, paired_ratio
from driftscope.analysis.validity import RUN_EFFECT

MARGIN = 0.02
"""Relative difference in speed below which neither server is called faster, however certain the
difference is. This is driftscope's own bound: nobody changes a server for less."""
ASSUMED_ROUNDS = 4
"""Number of rounds that RUN_EFFECT counts like, beside those that were measured: fewer would let
two rounds that agree by chance make a difference certain."""
CLOCKS_APART = 0.1
"""Relative difference of the speedup by the server's clock from that by the clients' from which
they disagree. This is driftscope's own bound: twice RUN_EFFECT, which both clocks share."""
TPOT, TTFT, THROUGHPUT = "tpot_s", "ttft_s", "throughput"
"""Quantities in which servers are compared: time per output token, time to first token, and output
tokens per second of all requests at once."""
AT_ONCE = " at once"
"""End of the words for a load that keeps a number of requests running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one server over another's in one quantity."""

    value: float
    """Above 1: faster than the other."""
    interval: Interval
    """95% interval, which includes the run effect."""
    other: float
    """The other server's quantity: a time in seconds, or tokens per second."""
    own: float
    """This server's quantity."""
    odd: int = 0
    """Number of prompts in a row at which one server was slower or faster than before and after, if
    there are any; the interval then holds the speed without them, too."""

    @property
    def faster(self) -> bool | None:
        """Whether this server is faster; None if that cannot be told, or does not matter."""
        return is_faster(self.value, self.interval)


def is_faster(value: float, interval: Interval) -> bool | None:
    """Whether a speed of `value` over another's is faster, by more than MARGIN; None if that cannot
    be told, or if the difference is smaller."""
    if interval.low > 1.0 and value >= 1.0 + MARGIN:
        return True
    return False if interval.high < 1.0 and value <= 1.0 / (1.0 + MARGIN) else None


def with_run_effect(
    value: float, interval: Interval, *, effect: float = RUN_EFFECT, starts: int = 1
) -> Interval:
    """Return the interval of a ratio of two servers' times, each started `starts` times, with the
    run effect in addition to what it holds."""
    half = Z95 * effect * math.sqrt(2.0 / starts)
    down = math.hypot(math.log(value / interval.low), half)
    up = math.hypot(math.log(interval.high / value), half)
    ends = Interval.of(value * math.exp(-down), value * math.exp(up), interval.clusters)
    return ends or interval


def speed_by_means(slow: Latency, fast: Latency) -> tuple[float, Interval] | None:
    """Return the time per token of the first run over that of the second, with its 95% interval;
    None if either is not known."""
    found = ratio(slow.tpot_s, slow.tpot_s_interval, fast.tpot_s, fast.tpot_s_interval)
    return None if found is None else (found[0], with_run_effect(*found))


def measured_effect(rounds: Sequence[float]) -> float:
    """Return the relative standard deviation of one start of a server from the next, from the
    logarithm of the speed in each of several rounds."""
    mean = math.fsum(rounds) / max(len(rounds), 1)
    squares = math.fsum((one - mean) ** 2 for one in rounds) / 2.0
    return math.sqrt(
        (ASSUMED_ROUNDS * RUN_EFFECT**2 + squares) / (ASSUMED_ROUNDS + max(len(rounds) - 1, 0))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedAtLoad:
    """Speed of one server over another's at one load, on the same prompts."""

    decisive: Speed
    """Speed that decides: in the time per output token as users get it, or else as the server
    recorded it."""
    condition: str
    load: str
    """Load in words, such as "4 at once"."""
    pairs: int
    """Number of prompts that both answered."""
    by_client: Mapping[str, Speed]
    """Speeds by the clients' clock, by quantity."""
    by_server: Mapping[str, Speed]
    """Speeds by the servers' own clock; {} unless both servers recorded these requests."""
    clocks: Comparability = NO_DIFFERENCE
    """Differences between the two clocks, apart from where they stand."""

    @property
    def disagree(self) -> bool:
        """Whether the clients saw another speedup than the server, of which more follows than from
        theirs."""
        client, server = self.by_client.get(TPOT), self.by_server.get(TPOT)
        if client is None or server is None or not self.clocks.decides(Claim.SPEED):
            return False
        apart = abs(math.log(server.value / client.value)) > math.log1p(CLOCKS_APART)
        return apart and client.faster is not server.faster


def speeds_of(other: ReplaySummary, own: ReplaySummary) -> tuple[SpeedAtLoad, ...]:
    """Return the speed of the second replay's server over that of the first one's, at each load at
    which both answered the same prompts; in the baseline's condition, if there is one."""
    first, second = grouped(other.rows), grouped(own.rows)
    baseline = own.manifest.workload.get("baseline")
    both = first.keys() & second.keys()
    both = {key for key in both if key[0] == baseline} or both
    starts = min(other.starts, own.starts)
    return tuple(
        found
        for key in sorted(both, key=lambda k: (k[1] or 0, k[2] or 0, k[0]))
        if (found := _at_load(first[key], second[key], starts)) is not None
    )


def _at_load(other: Sequence[Row], own: Sequence[Row], starts: int) -> SpeedAtLoad | None:
    rounds = {row["round"] for row in other} & {row["round"] for row in own}
    other, own = ([row for row in rows if row["round"] in rounds] for rows in (other, own))
    if not other or not own:
        return None
    closed = own[0]["rate"] is None and own[0]["concurrency"] is not None
    client = {
        name: found
        for name in (TPOT, TTFT, *([THROUGHPUT] if closed else []))
        if (found := _speed(other, own, name, "", starts)) is not None
    }
    server = {
        name: found
        for name in (TPOT, TTFT)
        if (found := _speed(other, own, name, "server_", starts)) is not None
    }
    decisive = client.get(TPOT) or server.get(TPOT)
    if decisive is None:
        return None
    return SpeedAtLoad(
        decisive=decisive,
        condition=own[0]["condition"],
        load=f"{load_words(own[0])}{AT_ONCE if closed else ''}",
        pairs=len({row["pair"] for row in other} & {row["pair"] for row in own}),
        by_client=client,
        by_server=server,
        clocks=comparability_of_clocks(
            *(
                sum(row.get(f"{clock}{TPOT}") is not None for row in (*other, *own))
                for clock in ("", "server_")
            )
        ),
    )


def _speed(
    other: Sequence[Row], own: Sequence[Row], quantity: str, clock: str, starts: int
) -> Speed | None:
    """Return the speed in a quantity, paired by prompt; None if it has no interval."""
    sums = [_sums(rows, quantity, clock) for rows in (other, own)]
    found = paired_ratio(*_in_order((other, own), quantity, clock))
    if found is None or found.interval is None:
        return None
    # The logarithm of the speed in each round.
    rates = [
        paired_ratio(_sums(theirs, quantity, clock), _sums(rows, quantity, clock))
        for rows, theirs in _in_rounds(other, own)
    ]
    effect = measured_effect(
        [math.log(speed.value) for speed in rates if speed is not None and speed.value > 0]
    )
    interval = with_run_effect(found.value, found.interval, effect=effect, starts=starts)
    odd, steady = 0, _steady(other, own, quantity, clock)
    if steady is not None:
        rest = paired_ratio(*_in_order(steady, quantity, clock))
        if rest is None or rest.interval is None:
            return None
        ends = with_run_effect(rest.value, rest.interval, effect=effect, starts=starts)
        low, high = min(interval.low, ends.low), max(interval.high, ends.high)
        interval = Interval.of(low, high, interval.clusters) or interval
        odd = len(own) - len(steady[1])
    values = [_value(rows, quantity, some) for rows, some in zip((other, own), sums, strict=True)]
    return Speed(value=found.value, interval=interval, other=values[0], own=values[1], odd=odd)


def _in_order(
    both: tuple[Sequence[Row], Sequence[Row]], quantity: str, clock: str
) -> tuple[PairSums, PairSums]:
    """Return the sums of both servers, of which the first over the second is the speed: throughput
    is better if it is larger, and a time if it is smaller."""
    other, own = (_sums(rows, quantity, clock) for rows in both)
    return (own, other) if quantity == THROUGHPUT else (other, own)


def _sums(rows: Sequence[Row], quantity: str, clock: str) -> PairSums:
    """Return the numerator and denominator of a quantity's mean by prompt. A request's throughput
    is its tokens over its duration, of which as many as run at once make up the load's."""
    if quantity == THROUGHPUT:
        return pair_sums(rows, lambda row: (row["output_tokens"], row["e2e_s"]))
    return pair_sums(rows, lambda row: (row.get(f"{clock}{quantity}"), 1.0))


def _steady(
    other: Sequence[Row], own: Sequence[Row], quantity: str, clock: str
) -> tuple[list[Row], list[Row]] | None:
    """Return the rows of both servers without the prompts of a stretch of one round in which one of
    them was slower or faster than before and after; None if there is no such stretch."""
    out = set[tuple[int, str]]()
    for rows, theirs in _in_rounds(other, own):
        a, b = (_sums(some, quantity, clock) for some in (theirs, rows))
        order = dict.fromkeys(row["pair"] for row in sorted(rows, key=lambda row: row["sent_s"]))
        timed = [pair for pair in order if a.get(pair, (0.0,))[0] > 0 < b.get(pair, (0.0,))[0]]
        logs = [math.log(a[pair][0] / a[pair][1] * b[pair][1] / b[pair][0]) for pair in timed]
        stretch = odd_stretch(np.array(logs))
        if stretch is not None:
            out |= {(rows[0]["round"], pair) for pair in timed[stretch]}
    if not out:
        return None
    kept = [
        [row for row in rows if (row["round"], row["pair"]) not in out] for rows in (other, own)
    ]
    return kept[0], kept[1]


def _in_rounds(
    other: Sequence[Row], own: Sequence[Row]
) -> Iterator[tuple[Sequence[Row], Sequence[Row]]]:
    """Yield the rows of each round: of this server, and of the other."""
    for number in sorted({row["round"] for row in own}):
        yield (
            [row for row in own if row["round"] == number],
            [row for row in other if row["round"] == number],
        )


def _value(rows: Sequence[Row], quantity: str, sums: PairSums) -> float:
    if quantity == THROUGHPUT:
        return throughput_of(rows) or math.nan
    return sum(top for top, _ in sums.values()) / sum(bottom for _, bottom in sums.values())

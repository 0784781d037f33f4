"""Speed of one server over another's: at each load, by the clients' clock and by the server's own.

A server that is started again differs from itself by RUN_EFFECT, so that every ratio of two runs
has that in its interval. Rounds in which both were started in turn show how large it is. What else
uses the machine for a while slows requests that follow each other: an interval holds the speed with
and without such a stretch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import numpy as np

from driftscope.analysis.comparability import (
    CACHE,
    NO_DIFFERENCE,
    Claim,
    Comparability,
    RunDifference,
    comparability_of_answers,
    comparability_of_clocks,
)
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.number_words import milliseconds
from driftscope.analysis.replays import (
    Cell,
    ReplaySummary,
    Row,
    grouped,
    load_words,
    pair_sums,
    row_pairs,
    throughput_of,
)
from driftscope.analysis.statistics.changes import odd_stretch
from driftscope.analysis.statistics.intervals import Z95, Interval, ratio, student, wider
from driftscope.analysis.statistics.ratio import PairSums, paired_ratio
from driftscope.analysis.validity import RUN_EFFECT
from driftscope.metrics.latency import mean_s

MARGIN = 0.02
"""Relative difference in speed below which neither server is called faster, however certain the
difference is. This is driftscope's own bound: nobody changes a server for less."""
LEFT_OF_GAIN = 0.5
"""Share of what tokens gain that must be left of it when an answer has come whole. This is
driftscope's own bound: with less, waiting for the first token decides as much."""
MOST_ODD = 1 / 3
"""Largest share of the answers that count as a stretch beside the rule."""
OF_MACHINE = 0.25
"""Share of the difference in the time per token, in logarithms, from which the time to the first
token shows that the machines differ. This is driftscope's own bound: half of that time may pass
outside the engine, which is as fast on any machine."""
ASSUMED_ROUNDS = 4
"""Number of rounds that RUN_EFFECT counts like, beside those that were measured: fewer would let
two rounds that agree by chance make a difference certain."""
ROUNDS_APART = 1.3
"""Measured run effect over RUN_EFFECT from which rounds disagree: what a few of them measure is
then not known well, and is taken with Student's quantile. Two rounds of servers that differ by
RUN_EFFECT disagree in one case of thirty."""
CLOCKS_APART = 0.1
"""Relative difference of the speedup by the server's clock from that by the clients' from which
they disagree. This is driftscope's own bound: twice RUN_EFFECT, which both clocks share."""
TPOT, TTFT, THROUGHPUT, WHOLE = "tpot_s", "ttft_s", "throughput", "e2e_s"
"""Quantities in which servers are compared: time per output token, time to first token, output
tokens per second of all requests at once, and time per output token with the wait for the first."""
BUNCHED = 0.1
"""Share of one server's answers that came in one piece, without a time per token, above which the
whole answer's time decides: a front end that falls behind its engine passes tokens on in bunches,
and the time after the first of them is too short."""
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
    they alone decide which is faster; the interval holds the speed without them, too."""

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
    value: float,
    interval: Interval,
    *,
    effect: float = RUN_EFFECT,
    starts: int = 1,
    loads: int = 1,
    servers: int = 1,
) -> Interval:
    """Return the interval of a ratio of two servers' times, each started `starts` times, with the
    run effect in addition to what it holds. The intervals of so many loads, which share the starts,
    and of so many servers hold together."""
    half = wider(servers) * Z95 * effect * math.sqrt(2.0 / starts)
    down, up = (
        math.hypot(wider(loads * servers) * math.log(end), half)
        for end in (value / interval.low, interval.high / value)
    )
    ends = Interval.between(value * math.exp(-down), value * math.exp(up), interval.clusters)
    return ends or interval


def speed_by_means(slow: Latency, fast: Latency, servers: int = 1) -> tuple[float, Interval] | None:
    """Return the time per token of the first run over that of the second, one of so many `servers`
    that are compared with the first, with its 95% interval; None if either is not known."""
    found = ratio(slow.tpot_s, slow.tpot_s_interval, fast.tpot_s, fast.tpot_s_interval)
    return None if found is None else (found[0], with_run_effect(*found, servers=servers))


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
    """Speed that decides: in the time per output token as users get it, with the wait for the
    first one if answers came in one piece, or else as the server recorded it."""
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
    answers: Comparability = NO_DIFFERENCE
    """Differences between what both answered at this load."""

    @property
    def client(self) -> Speed | None:
        """Speed that decides by the clients' clock; None if they timed too little."""
        return self.by_client.get(WHOLE) or self.by_client.get(TPOT)

    @property
    def disagree(self) -> bool:
        """Whether the clients saw another speedup than the server, of which more follows than from
        theirs."""
        client, server = self.client, self.by_server.get(TPOT)
        if client is None or server is None or not self.clocks.decides(Claim.SPEED):
            return False
        differ = abs(math.log(server.value / client.value)) > math.log1p(CLOCKS_APART)
        return differ and client.faster is not server.faster


def speeds_of(
    other: ReplaySummary, own: ReplaySummary, servers: int = 1
) -> tuple[SpeedAtLoad, ...]:
    """Return the speed of the second replay's server over that of the first one's, at each load at
    which both answered the same prompts; in the baseline's condition, if there is one. Intervals
    hold together for all loads, and for all `servers` that are compared with the first one."""
    first, second = grouped(other.rows), grouped(own.rows)
    baseline = own.manifest.workload.get("baseline")
    both = first.keys() & second.keys()
    both = {key for key in both if key[0] == baseline} or both
    starts = min(other.starts, own.starts)
    facts = {"starts": starts, "loads": len(both), "servers": servers}
    found = []
    for key in sorted(both, key=lambda k: (k[1] or 0, k[2] or 0, k[0])):
        cells = [
            cell
            for replay in (other, own)
            for cell in replay.cells
            if (cell.condition, cell.concurrency, cell.rate) == key
        ]
        at_load = _at_load(first[key], second[key], cells, facts)
        found += [] if at_load is None else [at_load]
    hosts = {_host(replay) for replay in (other, own)}
    alone = next((one for one in found if one.load == f"1{AT_ONCE}"), None)
    return tuple(
        replace(one, answers=one.answers.and_also(_of_machines(one, alone, len(hosts) > 1)))
        for one in found
    )


def _host(replay: ReplaySummary) -> str | None:
    """Return the name of the server's machine; those of this machine are one."""
    name = urlsplit(replay.url).hostname
    return "localhost" if name in ("127.0.0.1", "::1") else name


def _of_machines(
    at_load: SpeedAtLoad, alone: SpeedAtLoad | None, elsewhere: bool
) -> list[RunDifference]:
    """Return that the servers differ in more than speculation, if the time to the first token of
    one request at a time, `alone`, does as that per token at a load does. Speculation does not
    shorten it. A drafter may make it longer, and so may a slower machine `elsewhere`."""
    if alone is None or TTFT not in alone.by_client:
        return []
    first, decisive = alone.by_client[TTFT], at_load.decisive
    if WHOLE in alone.by_client:  # clients got the first token with others
        first = alone.by_server.get(TTFT, first)
    cached = any(found.name == CACHE for found in alone.answers.differences)
    if cached or decisive.faster is None or first.faster is not decisive.faster:
        return []
    part = math.log(first.value) / math.log(decisive.value)
    if part < OF_MACHINE or not (first.faster or elsewhere):
        return []
    return [
        RunDifference(
            name="time to the first token at 1 at once, which speculation does not shorten"
            if first.faster
            else "machine and time to the first token",
            first=milliseconds(first.other),
            second=milliseconds(first.own),
            explains=(Claim.SPEED,),
            settle="Ask both on one machine that does nothing else, with no prompt in a cache.",
        )
    ]


def _of_waiting(other: Sequence[Row], own: Sequence[Row], decisive: Speed) -> list[RunDifference]:
    """Return that most of what one server gains by faster tokens is lost before the first one: it
    serves fewer requests at once, or something holds the stream back."""
    if decisive.faster is None:
        return []
    gained = whole = 0.0
    for a, b in row_pairs(other, own):
        if None not in (a["tpot_s"], b["tpot_s"], a["ttft_s"], b["ttft_s"], b["output_tokens"]):
            after_first = (a["tpot_s"] - b["tpot_s"]) * (b["output_tokens"] - 1)
            gained += after_first
            whole += after_first + a["ttft_s"] + a["waited_s"] - b["ttft_s"] - b["waited_s"]
    if whole * math.copysign(1.0, gained) >= LEFT_OF_GAIN * abs(gained):
        return []
    waits = (
        milliseconds(mean_s([row["ttft_s"] for row in rows if row["ttft_s"] is not None]))
        for rows in (other, own)
    )
    return [
        RunDifference(
            name="the wait for the first token, which takes back most of the difference",
            first=next(waits),
            second=next(waits),
            explains=(Claim.SPEED,),
            settle="Let both serve as many requests at once (--max-num-seqs), and let nothing hold "
            "their streams back.",
        )
    ]


def _at_load(
    other: Sequence[Row], own: Sequence[Row], cells: Sequence[Cell], facts: Mapping[str, int]
) -> SpeedAtLoad | None:
    rounds = {row["round"] for row in other} & {row["round"] for row in own}
    other, own = ([row for row in rows if row["round"] in rounds] for rows in (other, own))
    if not other or not own:
        return None
    closed = own[0]["rate"] is None and own[0]["concurrency"] is not None
    client, server = (
        {
            name: found
            for name in names
            if (found := _speed(other, own, name, clock, facts)) is not None
        }
        for clock, names in (
            ("", (TPOT, TTFT, *([THROUGHPUT] if closed else []))),
            ("server_", (TPOT, TTFT)),
        )
    )
    if any(map(_bunched, (other, own))) and (whole := _speed(other, own, WHOLE, "", facts)):
        client[WHOLE] = whole
    decisive = client.get(WHOLE) or client.get(TPOT) or server.get(TPOT)
    if decisive is None:
        return None
    waiting = _of_waiting(other, own, decisive) if decisive is client.get(TPOT) else []
    return SpeedAtLoad(
        decisive=decisive,
        condition=own[0]["condition"],
        load=f"{load_words(own[0])}{AT_ONCE if closed else ''}",
        pairs=len({row["pair"] for row in other} & {row["pair"] for row in own}),
        by_client=client,
        by_server=server,
        answers=comparability_of_answers(other, own, cells).and_also(waiting),
        clocks=comparability_of_clocks(
            *(
                sum(row.get(f"{clock}{TPOT}") is not None for row in (*other, *own))
                for clock in ("", "server_")
            )
        ),
    )


def _bunched(rows: Sequence[Row]) -> bool:
    """Return whether more than BUNCHED of the answers of several tokens came in one piece."""
    several = [row["tpot_s"] for row in rows if (row["output_tokens"] or 0) > 1]
    return several.count(None) > BUNCHED * len(several)


def _speed(
    other: Sequence[Row], own: Sequence[Row], quantity: str, clock: str, facts: Mapping[str, int]
) -> Speed | None:
    """Return the speed in a quantity, paired by prompt; None if it has no interval."""
    sums = [_sums_by_prompt(rows, quantity, clock) for rows in (other, own)]
    found = paired_ratio(*_in_order((other, own), quantity, clock))
    if found is None or found.interval is None:
        return None
    by_round = [
        one.value
        for rows, theirs in _in_rounds(other, own)
        if (one := paired_ratio(*_in_order((theirs, rows), quantity, clock))) and one.value > 0
    ]
    effect = measured_effect([math.log(speed) for speed in by_round])
    if effect > ROUNDS_APART * RUN_EFFECT:
        effect *= float(student(ASSUMED_ROUNDS + len(by_round) - 1.0)) / Z95
    interval = with_run_effect(found.value, found.interval, effect=effect, **facts)
    if by_round and (rounds := Interval.between(min(by_round), max(by_round))):
        interval = interval.hull(rounds)
    odd = 0
    for part in _without_odd_stretches((other, own), quantity, clock):
        rest = paired_ratio(*_in_order(part, quantity, clock))
        if rest is None or rest.interval is None:
            return None
        ends = with_run_effect(rest.value, rest.interval, effect=effect, **facts)
        if is_faster(rest.value, ends) is not is_faster(found.value, interval):
            odd = min(len(own) - len(part[1]), len(part[1]))
        interval = interval.hull(ends)
    values = [
        _quantity_value(rows, quantity, some) for rows, some in zip((other, own), sums, strict=True)
    ]
    return Speed(value=found.value, interval=interval, other=values[0], own=values[1], odd=odd)


def _in_order(
    both: Sequence[Sequence[Row]], quantity: str, clock: str
) -> tuple[PairSums, PairSums]:
    """Return the sums of both servers, of which the first over the second is the speed: throughput
    is better if it is larger, and a time if it is smaller."""
    other, own = (_sums_by_prompt(rows, quantity, clock) for rows in both)
    return (own, other) if quantity == THROUGHPUT else (other, own)


def _sums_by_prompt(rows: Sequence[Row], quantity: str, clock: str) -> PairSums:
    """Return the numerator and denominator of a quantity's mean by prompt. A request's throughput
    is its tokens over its duration, of which as many as run at once make up the load's."""
    if quantity == THROUGHPUT:
        return pair_sums(rows, lambda row: (row["output_tokens"], row["e2e_s"]))
    if quantity == WHOLE:
        return pair_sums(rows, lambda row: (row["e2e_s"], row["output_tokens"]))
    return pair_sums(rows, lambda row: (row.get(f"{clock}{quantity}"), 1.0))


def _without_odd_stretches(
    both: Sequence[Sequence[Row]], quantity: str, clock: str
) -> list[list[list[Row]]]:
    """Return the rows of both servers without the prompts of a stretch of one round in which one of
    them was slower or faster than before and after, and the rows of such stretches if those are so
    long that they may be the rule; [] if there is no such stretch."""
    out = set[tuple[int, str]]()
    for rows, theirs in _in_rounds(*both):
        a, b = (_sums_by_prompt(some, quantity, clock) for some in (theirs, rows))
        for sent in (theirs, rows):
            known = [row for row in sent if row["sent_s"] is not None]  # not in other tools' files
            order = dict.fromkeys(r["pair"] for r in sorted(known, key=lambda row: row["sent_s"]))
            timed = [pair for pair in order if a.get(pair, (0.0,))[0] > 0 < b.get(pair, (0.0,))[0]]
            logs = [math.log(a[pair][0] / a[pair][1] * b[pair][1] / b[pair][0]) for pair in timed]
            stretch = odd_stretch(np.array(logs))
            if stretch is not None:
                out |= {(rows[0]["round"], pair) for pair in timed[stretch]}
    rest, others = (
        [[row for row in rows if ((row["round"], row["pair"]) in out) is odd] for rows in both]
        for odd in (False, True)
    )
    if not out:
        return []
    return [rest, others] if len(others[1]) > MOST_ODD * len(both[1]) else [rest]


def _in_rounds(
    other: Sequence[Row], own: Sequence[Row]
) -> Iterator[tuple[Sequence[Row], Sequence[Row]]]:
    """Yield the rows of each round: of this server, and of the other."""
    for number in sorted({row["round"] for row in own}):
        yield (
            [row for row in own if row["round"] == number],
            [row for row in other if row["round"] == number],
        )


def _quantity_value(rows: Sequence[Row], quantity: str, sums: PairSums) -> float:
    if quantity == THROUGHPUT:
        return throughput_of(rows) or math.nan
    return sum(top for top, _ in sums.values()) / sum(bottom for _, bottom in sums.values())

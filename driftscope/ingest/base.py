"""Result files of other tools: their numbers, figures in driftscope's conventions, and readers.

Numbers come from untrusted JSON: absent is None, and anything that cannot be right is refused. A
length counts the target's own token of each round, so that a round of which nothing is accepted
yields 1. Rates are shares from 0 to 1, depth 1 first. A marginal rate is over the rounds that
verified the depth; tools count a depth that was not verified as rejected, so that where drafts were
cut their rates are replaced, as far as the file says what was verified.
"""

from __future__ import annotations

import codecs
import gzip
import io
import math
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from driftscope.analysis.log_changes import (
    DEAD,
    LINE,
    REQUEST,
    LineAcceptance,
    LogChange,
    changes_of,
)
from driftscope.analysis.number_words import count as number_of
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import ratio_intervals
from driftscope.boundary.bounds import MAX_COUNT, MAX_JSON_BYTES, MAX_K, MAX_SECONDS
from driftscope.boundary.files import first_line, open_regular, parse_json, read_bytes
from driftscope.boundary.json_document import written_property
from driftscope.errors import UsageError
from driftscope.metrics.acceptance import UNCUT, running_product

MOST_LENGTH = MAX_K + 1
Histogram = tuple[int, ...]
"""Rounds with 0, 1, ... tokens accepted."""
ByVerified = Mapping[int, Histogram]
"""Rounds by the number of draft tokens that they verified."""
OFF_BY = 0.02
"""Difference of two lengths above which they contradict each other: files round to two digits."""
NOTHING = 0.001
"""Share of draft tokens below which nothing is accepted: a drafter of common words has more."""
DEEPER = 10.0
"""Factor by which a depth is above NOTHING where only the deeper ones accept nothing."""
FEWEST_EXPECTED = 6
"""Accepted tokens expected at a depth, from which none is no chance (a probability of 0.2%)."""
THIS_RUN, SINCE_START, LAST_INTERVAL = "this run", "since the server's start", "last log interval"
"""Periods that figures cover."""
MOST_BYTES = 16 * MAX_JSON_BYTES
"""Bytes of a text, which is read line by line."""
MOST_JSON_BYTES, MOST_VALUES, MOST_OBJECTS = 4 * MAX_JSON_BYTES, 1 << 21, 1 << 18
"""Bytes, values and objects of JSON, which takes up to ten times its size of memory."""
MOST_LINES = 1_000_000


class BadFigureError(ValueError):
    """A value that no tool writes there; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Counts of one request."""

    rounds: int
    accepted: int
    verified: int | None = None
    histogram: Histogram | None = None
    by_verified: ByVerified | None = None
    """These rounds by what they verified; None if the file does not say it."""
    question: str | None = None
    """Identifier of the question, if the file names it: requests of two files with the same one are
    compared in pairs."""
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedFigures:
    """Figures of one run, or of one part of it that the file names; None for what it does not
    hold."""

    part: str = ""
    """Name of the part, such as a benchmark or a category; empty for the whole file."""
    is_sum: bool = False
    """Whether this part is the sum of the file's others."""
    period: str = THIS_RUN
    k: int | None = None
    """Draft tokens per round as configured."""
    requests: int | None = None
    rounds: int | None = None
    verified: int | None = None
    """Draft tokens that were verified."""
    accepted: int | None = None
    """Draft tokens that were accepted, without the target's own."""
    mean_length: float | None = None
    """Acceptance length, over rounds."""
    mean_length_interval: Interval | None = None
    """95% interval over requests; None without figures of single requests."""
    mean_length_by_request: float | None = None
    """Mean of the requests' acceptance lengths."""
    marginal: tuple[float | None, ...] | None = None
    """Share of the rounds accepted at least up to each depth, if they verified it; None for a depth
    that no round is known to have verified."""
    ttft_s: float | None = None
    """Mean time to the first token."""
    tpot_s: float | None = None
    """Mean time per output token after the first."""
    output_tokens_per_s: float | None = None
    """Output tokens per second, of all requests together."""
    prompts: str | None = None
    """Content of the prompts, see `driftscope.analysis.validity`."""
    ignores_stop: bool | None = None
    """Whether the tool told the server to go on after the end of an answer."""
    assumptions: tuple[str, ...] = ()
    """Assumptions and conversions of the reader."""
    contradictions: tuple[str, ...] = ()
    """Figures of the file that do not fit together."""
    observations: tuple[str, ...] = ()
    """Sentences on what the file shows beside its mean, such as that nothing is accepted."""
    log_lines: int | None = None
    """Lines of a log that report acceptance of enough draft tokens; None if the file is no log."""
    changes: tuple[LogChange, ...] = ()
    """Changes within a log."""

    @written_property
    def token_rate(self) -> float | None:
        """Accepted tokens as a share of the verified ones."""
        if not self.verified or self.accepted is None:
            return None
        return self.accepted / self.verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(IngestedFigures):
    """Figures, and the requests that they come from."""

    single: tuple[RequestCounts, ...] = field(default=(), repr=False)
    """Counts of single requests; () if the file has sums only."""
    by_verified: ByVerified | None = field(default=None, repr=False)
    """Rounds of all requests; None if the file does not say what single rounds verified."""
    verified_at: tuple[float, ...] | None = field(default=None, repr=False)
    """Number of rounds that verified each depth; None if the file does not say it."""

    @property
    def is_empty(self) -> bool:
        """Whether the file says nothing of acceptance or times."""
        lengths = (self.mean_length, self.mean_length_by_request, self.marginal)
        return all(value is None for value in (*lengths, self.ttft_s, self.tpot_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """A file that was read."""

    path: Path
    text: str = field(repr=False)
    document: Any = field(repr=False, default=None)
    """The file as one JSON value; None if it is not."""
    lines: tuple[Mapping[str, Any], ...] = field(repr=False, default=())
    """Its lines as JSON objects, or the responses of its event streams; () unless each line that is
    not empty is one."""

    def inside(self, path: Sequence[str]) -> ResultFile | None:
        """Return the file with what its objects hold at a path of keys in their place; None if none
        holds an object there."""
        found = list(self.objects)
        for key in path:
            held = [item.get(key) for item in found]
            items = [
                one for value in held for one in (value if isinstance(value, list) else [value])
            ]
            found = [value for value in map(_parsed, items) if isinstance(value, dict)]
        if not found:
            return None
        whole = found[0] if len(found) == 1 else found
        return replace(self, text="", document=whole, lines=())

    @property
    def fields(self) -> Mapping[str, Any]:
        """The JSON object that the file is; empty if it is none."""
        return self.document if isinstance(self.document, dict) else {}

    @property
    def objects(self) -> tuple[Mapping[str, Any], ...]:
        """The JSON objects that the file holds: its lines, the items of its list, or itself."""
        if self.lines:
            return self.lines
        items = self.document if isinstance(self.document, list) else [self.document]
        return tuple(item for item in items if isinstance(item, dict))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reader of one format."""

    name: str
    """Value of `--format`."""
    title: str
    """Tool and file, with the version that it was written for."""
    gives: str
    lacks: str
    """Quantities that the format cannot give."""
    marks: tuple[tuple[str, ...], ...]
    """Keys or words that its files have, one tuple for each form; they name the nearest reader of a
    file that none recognises."""
    recognises: Callable[[ResultFile], bool]
    read: Callable[[ResultFile], Iterable[Figures]]
    """Function that returns the figures of a file that it recognises. Raises BadFigureError."""


REGISTERED: dict[str, Reader] = {}
"""Readers by name, see `reader`."""

Read = Callable[[ResultFile], Iterator[Figures]]


def number(fields: Mapping[str, Any], name: str, most: float = float(MAX_COUNT)) -> float | None:
    """Return a number from 0 to `most`; None if it is absent, null or NaN."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFigureError(f"{name} is {str(value)[:40]!r}, not a number")
    if isinstance(value, float) and math.isnan(value):
        return None
    if not 0 <= value <= most:
        raise BadFigureError(f"{name} is {str(value)[:40]}, outside 0 to {most:g}")
    return float(value)


def count(fields: Mapping[str, Any], name: str, most: int = MAX_COUNT) -> int | None:
    """Return a whole number from 0 to `most`; None if it is absent."""
    value = number(fields, name, most)
    if value is None:
        return None
    if value != int(value):
        raise BadFigureError(f"{name} is {value:g}, not a whole number")
    return int(value)


def share(fields: Mapping[str, Any], name: str) -> float | None:
    """Return a number from 0 to 1; None if it is absent."""
    return number(fields, name, 1.0)


def length(fields: Mapping[str, Any], name: str) -> float | None:
    """Return tokens per round, the target's own included; None if it is absent."""
    return number(fields, name, MOST_LENGTH)


def milliseconds(fields: Mapping[str, Any], name: str) -> float | None:
    """Return a time in seconds from one in milliseconds; None if it is absent."""
    value = number(fields, name, 1000.0 * MAX_SECONDS)
    return None if value is None else value / 1000.0


def objects(fields: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the objects in a list; () if it is absent."""
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadFigureError(f"{name} is no list")
    return tuple(item for item in value if isinstance(item, dict))


def inner(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object; empty if it is absent."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def numbers(value: object, name: str, most: float = float(MAX_COUNT)) -> tuple[float, ...]:
    """Return a list of numbers from 0 to `most`."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MAX_COUNT:
        raise BadFigureError(f"{name} is no list of numbers")
    found = []
    for item in value:
        one = number({name: item}, name, most)
        if one is None:
            raise BadFigureError(f"{name} holds a value that is no number")
        found.append(one)
    return tuple(found)


def histogram_of(value: object, name: str) -> Histogram | None:
    """Return a histogram from a list, or from an object by number of tokens; None if absent."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        if not all(key.isascii() and key.isdecimal() and len(key) < 6 for key in value):
            raise BadFigureError(f"{name} has a key that is no number of tokens")
        numbers_of = {int(key): count(value, key) or 0 for key in value}
        most = max(numbers_of, default=0)
        if most > MAX_K:
            raise BadFigureError(f"{name} has a round of {most} accepted tokens")
        return tuple(numbers_of.get(at, 0) for at in range(most + 1))
    found = numbers(value, name)
    if len(found) > MAX_K + 1 or any(rounds != int(rounds) for rounds in found):
        raise BadFigureError(f"{name} is no histogram of rounds by accepted tokens")
    return tuple(map(int, found))


def accepted_in(histogram: Histogram) -> int:
    """Return the tokens that a histogram's rounds accepted."""
    return sum(tokens * rounds for tokens, rounds in enumerate(histogram))


def together(histograms: Sequence[Histogram]) -> Histogram:
    """Return the sum of histograms of different lengths."""
    longest = max(map(len, histograms), default=0)
    return tuple(
        sum(histogram[at] for histogram in histograms if at < len(histogram))
        for at in range(longest)
    )


def marginal_of(histogram: Histogram) -> tuple[float, ...]:
    """Return the share of the rounds that accept at least 1, 2, ... tokens; () without rounds."""
    rounds = sum(histogram)
    if not rounds:
        return ()
    reached = np.cumsum(histogram[::-1])[::-1][1:]
    return tuple((reached / rounds).tolist())


def interval_of(requests: Sequence[RequestCounts]) -> Interval | None:
    """Return the interval of the acceptance length over requests that have a round."""
    with_rounds = [request for request in requests if request.rounds]
    if not with_rounds:
        return None
    tokens = np.array([[request.rounds + request.accepted] for request in with_rounds], float)
    spread = ratio_intervals(tokens, np.array([[request.rounds] for request in with_rounds], float))
    # A round yields at least one token, which an interval over few requests may not reflect.
    return spread[0].within(1.0, np.inf) if spread and spread[0] else None


def mean_of(requests: Sequence[RequestCounts]) -> float | None:
    """Return the mean of the requests' acceptance lengths."""
    with_rounds = [request for request in requests if request.rounds]
    lengths = [1.0 + request.accepted / request.rounds for request in with_rounds]
    return sum(lengths) / len(lengths) if lengths else None


def completed(figures: Figures) -> Figures:
    """Return the figures with the length that counts give, with what contradicts it, and with rates
    over what was verified."""
    counted = None
    if figures.rounds and figures.accepted is not None:
        counted = 1.0 + figures.accepted / figures.rounds
    length = figures.mean_length if counted is None else counted
    rates = None if figures.marginal is None else tuple(rate or 0.0 for rate in figures.marginal)
    if length is None and rates is not None:
        length = 1.0 + sum(rates)
    found = tuple(_contradictions(figures, length, rates))
    marginal, words = _over_verified(figures)
    shown = tuple(_nothing_accepted(replace(figures, mean_length=length), marginal or ()))
    return replace(
        figures,
        mean_length=length,
        marginal=marginal,
        assumptions=(*figures.assumptions, *words),
        contradictions=(*figures.contradictions, *found),
        observations=(*shown, *figures.observations),
    )


def _nothing_accepted(figures: Figures, rates: tuple[float | None, ...]) -> Iterator[str]:
    """Yield where nothing is accepted at all, or nothing beyond a depth; `rates` are over the
    rounds that verified each depth."""
    accepted, verified = figures.accepted, figures.verified
    known = [rate for rate in rates if rate is not None]
    *before, last = 1.0, *takewhile(lambda rate: rate >= DEEPER * NOTHING, known)
    depth, deeper = len(before), known[len(before) :]
    if accepted is None and figures.mean_length is figures.mean_length_by_request is None:
        there = "no acceptance" if figures.is_empty else "times alone"
        yield f"{there}: the server did not speculate, or the tool did not ask it for acceptance"
    elif verified == 0 and accepted == 0 and figures.mean_length is None:
        yield (
            "no draft token was counted: the server did not speculate, or did not fill these counts"
        )
    elif verified and accepted is not None and accepted < NOTHING * verified:
        yield f"nothing is accepted: {accepted:,} of {verified:,} draft tokens"
    elif (
        accepted is None
        and (figures.mean_length or DEAD) < DEAD
        and not (figures.changes or figures.observations)
    ):
        yield "a length of 1.00: nothing is accepted, or the server was idle or does not draft"
    elif depth and deeper and max(deeper) < NOTHING:
        # A next step as good as the last one would be accepted as often once more.
        expected = last * last / before[-1]
        fades = expected < 2 * NOTHING
        if not fades and figures.rounds and figures.rounds * expected < FEWEST_EXPECTED:
            return
        where = f"nothing is accepted beyond depth {depth}, where {100 * last:.1f}% is: "
        if depth == 1:
            yield (
                f"{where}the drafter's {'first' if fades else 'second'} step gets a wrong state, "
                "position or cache entry, or was not trained"
            )
        elif not fades:
            yield (
                f"{where}drafts end there, or the drafter was trained for no more tokens, or gets "
                "a wrong position beyond"
            )


def _over_verified(figures: Figures) -> tuple[tuple[float | None, ...] | None, tuple[str, ...]]:
    """Return the rates over the rounds that verified each depth, and in words what was not
    verified.

    A file that says only how many draft tokens were verified in all, fewer than K in each round,
    leaves open in which rounds a depth was verified, except the first.
    """
    k, rounds, verified = figures.k, figures.rounds, figures.verified
    if figures.marginal is None or not k or not rounds or verified is None:
        return figures.marginal, ()
    if verified >= UNCUT * k * rounds:
        return figures.marginal, ()
    note = f"{verified / rounds:.1f} of K = {k} draft tokens were verified in a round"
    over_verified = "rates are over the rounds that verified the depth"
    if figures.verified_at is not None:
        pairs = zip(figures.marginal, figures.verified_at, strict=True)
        rates = tuple(
            rate * rounds / own if rate is not None and own else None for rate, own in pairs
        )
        return rates, (f"{note}: {over_verified}",)
    if figures.by_verified is None:
        only = (figures.marginal[0], *(None for _ in figures.marginal[1:]))
        return only, (f"{note}, and in which rounds is not in the file: no rate beyond depth 1",)
    deepest = max((n for n, rounds in figures.by_verified.items() if sum(rounds)), default=0)
    beyond = f"depth {k}" if deepest == k - 1 else f"depths {deepest + 1} to {k}"
    unseen = f"; {beyond} never" if deepest < k else ""
    return _rates_over_verified(figures.by_verified, k), (f"{note}{unseen}: {over_verified}",)


def _rates_over_verified(rounds: ByVerified, k: int) -> tuple[float | None, ...]:
    depths = range(1, k + 1)
    at_risk = [sum(sum(h[d - 1 :]) for n, h in rounds.items() if n >= d) for d in depths]
    reached = [sum(sum(h[d:]) for n, h in rounds.items() if n >= d) for d in depths]
    some = [any(sum(h) for n, h in rounds.items() if n >= d) for d in depths]
    rates = running_product(reached, at_risk).tolist()
    return tuple(
        rate if has_drafts and math.isfinite(rate) else None
        for rate, has_drafts in zip(rates, some, strict=True)
    )


def _contradictions(
    figures: Figures, length: float | None, rates: tuple[float, ...] | None
) -> Iterator[str]:
    """Yield where two figures of the file say different things; the identity is length = 1 + sum of
    the rates over all rounds."""
    k, rounds, verified = figures.k, figures.rounds, figures.verified
    if k and rounds and verified is not None and verified > k * rounds:
        yield f"{verified:,} draft tokens in {rounds:,} rounds are more than K = {k} in each"
    if verified is not None and figures.accepted is not None and figures.accepted > verified:
        yield f"{figures.accepted:,} tokens were accepted of {verified:,} that were verified"
    given = figures.mean_length
    if given is not None and length is not None and abs(given - length) > OFF_BY:
        yield (
            f"the file's acceptance length is {given:.2f}, its counts give {length:.2f}: "
            f"{_definition(given, length)}"
        )
    if rates is not None and length is not None:
        implied = 1.0 + sum(rates)
        deeper = verified is not None and rounds is not None and verified > len(rates) * rounds
        if abs(implied - length) > OFF_BY and not (deeper and implied < length):
            yield (
                f"its rates by position give a length of {implied:.2f}, not {length:.2f}: "
                "these are rates of another kind, or of fewer positions"
            )
    if rates is not None and not all(a >= b - 1e-9 for a, b in pairwise(rates)):
        yield "its rates by position rise with depth, which shares of all rounds cannot do"


def _definition(given: float, counted: float) -> str:
    if abs(given + 1.0 - counted) <= OFF_BY:
        return "it does not count the target's own token"
    return "these figures use another definition"


def changes_told(lines: Sequence[LineAcceptance], unit: str = LINE) -> dict[str, Any]:
    """Return what Figures say of a series: its changes, and how many lines tell acceptance."""
    known = sum(line.length is not None and line.tells for line in lines)
    return {"log_lines": known or None, "changes": tuple(changes_of(lines, unit))}


def over_requests(
    requests: Sequence[RequestCounts],
    *,
    k: int | None = None,
    part: str = "",
    number: int | None = None,
    ttft_s: Sequence[float | None] = (),
    tpot_s: Sequence[float | None] = (),
    ignores_stop: bool | None = None,
    assumptions: tuple[str, ...] = (),
) -> Figures:
    """Return the sums over requests, the interval over them, and the means of their times.

    `number` counts the requests of the file, also those that did not speculate.
    """
    histograms = [request.histogram for request in requests if request.histogram is not None]
    whole = together(histograms) if len(histograms) == len(requests) else None
    verified = [request.verified for request in requests]
    requests, used_k = _of_one_length(requests, k)
    lines = [
        LineAcceptance.of_request(one.rounds, one.accepted, one.verified)
        for one in requests
        if one.rounds
    ]
    split = [request.by_verified for request in requests if request.by_verified is not None]
    odd = [request for request in requests if not _fits_together(request)]
    return Figures(
        part=part,
        k=k,
        requests=len(requests) if number is None else number,
        rounds=sum(request.rounds for request in requests) if requests else None,
        accepted=sum(request.accepted for request in requests) if requests else None,
        verified=sum(tokens for tokens in verified if tokens is not None)
        if verified and None not in verified
        else None,
        mean_length_interval=interval_of(requests),
        mean_length_by_request=mean_of(requests),
        marginal=marginal_of(whole) or None if whole is not None else None,
        ttft_s=mean(ttft_s or [request.ttft_s for request in requests]),
        tpot_s=mean(tpot_s or [request.tpot_s for request in requests]),
        single=tuple(requests),
        changes=tuple(changes_of(lines, REQUEST)),
        by_verified=_summed(split) if len(split) == len(requests) and not odd else None,
        ignores_stop=ignores_stop,
        assumptions=(*assumptions, *used_k),
        contradictions=(f"{len(odd):,} requests whose rounds by draft length are not their rounds",)
        if odd
        else (),
    )


def _of_one_length(
    requests: Sequence[RequestCounts], k: int | None
) -> tuple[Sequence[RequestCounts], tuple[str, ...]]:
    """Return the requests with their rounds by what they verified, where all verified equally many
    tokens in each round on average, a whole number that no round exceeds: then each round is taken
    to have verified that many. The second value says so in words."""
    means = {
        None if request.verified is None else request.verified / request.rounds
        for request in requests
        if request.rounds
    }
    n = means.pop() if len(means) == 1 else None
    histograms = [request.histogram for request in requests if request.histogram is not None]
    if n is None or n != int(n) or len(histograms) < len(requests):
        return requests, ()
    if any(request.by_verified is not None for request in requests) or any(
        sum(histogram[int(n) + 1 :]) for histogram in histograms
    ):
        return requests, ()
    same = [
        replace(request, by_verified={int(n): histogram})
        for request, histogram in zip(requests, histograms, strict=True)
    ]
    tokens = number_of(int(n), "draft token")
    return same, () if n == k else (
        f"each round is taken to have verified {tokens}, as on average",
    )


def _fits_together(request: RequestCounts) -> bool:
    """Whether the rounds of a request by what they verified are those that its counts say."""
    split = request.by_verified
    if split is None or request.histogram is None:
        return True
    most = max(len(request.histogram), *(len(h) for h in split.values()), 1)
    padded = (*request.histogram, *(0 for _ in range(most - len(request.histogram))))
    whole = together(list(split.values()))
    tokens = sum(n * sum(histogram) for n, histogram in split.items())
    return (*whole, *(0 for _ in range(most - len(whole)))) == padded and (
        request.verified is None or tokens == request.verified
    )


def _summed(every: Sequence[ByVerified]) -> ByVerified:
    lengths = sorted({n for rounds in every for n in rounds})
    return {n: together([rounds[n] for rounds in every if n in rounds]) for n in lengths}


STDIN = Path("-")
_TIMES = re.compile(r"\[\s{0,9}[0-9]{1,9}\.[0-9][-+0-9.,eE\s]{4096,}\]")
"""List of hundreds of fractions, such as the times of a request's tokens, which no reader uses."""
_JSON, _HEAD_BYTES = re.compile(rb"\s*[\[{]"), 1024
"""Beginning of a file of JSON, and of a log in a collector's JSON."""


def open_result(path: Path) -> ResultFile:
    """Read a file. Raises UsageError for one that cannot be read, is no text, or is too large."""
    if path.parts[:1] in (("http:",), ("https:",)):
        url = f"{path}".replace(":/", "://", 1)
        raise UsageError(
            f"{url}: is a URL; save it with `curl -o page.prom {url}`, or see it with "
            f"`driftscope watch {url}`"
        )
    try:
        if path == STDIN:
            piped = sys.stdin.buffer.read(MOST_BYTES + 1)
            head = piped[:_HEAD_BYTES]
        else:
            with open_regular(path) as descriptor:
                head = os.read(descriptor, _HEAD_BYTES)
        json = _JSON.match(head) is not None
        limit = MOST_JSON_BYTES if json else MOST_BYTES
        content = piped if path == STDIN else read_bytes(path, limit=limit)
        if len(content) > limit:
            raise ValueError(f"is larger than {limit} bytes")
        if head.startswith(_GZIP):  # as logrotate leaves it
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                unpacked = file.read(MOST_JSON_BYTES + 1)
            if len(unpacked) > MOST_JSON_BYTES:
                raise ValueError(f"is larger than {MOST_JSON_BYTES} bytes; unpack a part of it")
            content = unpacked
            json = _JSON.match(content) is not None
        text = _decoded(content)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(f"{path}: not readable ({first_line(error)})") from error
    if not text.strip():
        raise UsageError(f"{path}: is empty; servers log to stderr: `docker logs NAME > FILE 2>&1`")
    text = _TIMES.sub("[]", text) if json else text
    for signs, most, words in (("{", MOST_OBJECTS, "objects"), (",[{", MOST_VALUES, "values")):
        if json and sum(map(text.count, signs)) > most:
            raise UsageError(f"{path}: JSON of more than {most:,} {words}; give a part of it")
    try:
        document = parse_json(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, list):  # bare numbers are no figures, and there may be millions
        document = [item for item in document if isinstance(item, dict | str)]
    lines = () if document is not None else _lines(text)
    return ResultFile(path=path, text=text, document=document, lines=lines)


_GZIP = b"\x1f\x8b"


def _decoded(content: bytes) -> str:
    """Return a text in UTF-8, or in UTF-16 as Windows writes it. Bytes of a log that are neither
    become U+FFFD. Raises ValueError for what is no text."""
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        if b"\0" in content:
            raise
        return content.decode("utf-8", "replace")


def _parsed(value: object) -> object:
    """Return the object that a text holds as JSON, as proxies log bodies; or the value itself."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return parse_json(value)
        except (ValueError, RecursionError):
            return value
    return value


_EVENT = "data:"
MOST_HEADERS = 200
"""Lines before the first event of a stream: a proxy's comments, and headers of `curl -i`."""


def _lines(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return all lines as objects, or () if one is none; a last line may be cut off.

    An event stream (text/event-stream, as curl saves it) is one object for each response: chunks
    with one id are put together, a later value in place of an earlier one.
    """
    rows = [row for row in text.splitlines() if row.strip()][:MOST_LINES]
    if not any(row.startswith(_EVENT) for row in rows[:MOST_HEADERS]):
        return _objects_of(rows)
    chunks = [row[len(_EVENT) :].strip() for row in rows if row.startswith(_EVENT)]
    responses: dict[str, dict[str, Any]] = {}
    for chunk in _objects_of([chunk for chunk in chunks if chunk != "[DONE]"]):
        name = str(chunk.get("id") or inner(chunk, "meta_info").get("id"))
        known = {key: value for key, value in chunk.items() if value not in (None, [], {})}
        responses.setdefault(name, {}).update(known)
    return tuple(responses.values())


def _objects_of(rows: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    objects = list[Mapping[str, Any]]()
    for number, row in enumerate(rows):
        try:
            value = parse_json(row)
        except (ValueError, RecursionError):
            if number == len(rows) - 1 and objects:
                break
            return ()
        if not isinstance(value, dict):
            return ()
        objects.append(value)
    return tuple(objects)


def reader(
    *,
    name: str,
    title: str,
    gives: str,
    lacks: str,
    marks: tuple[tuple[str, ...], ...],
    recognises: Callable[[ResultFile], bool],
) -> Callable[[Read], Read]:
    """Return a decorator that enters a function into REGISTERED; the arguments are a Reader's."""

    def enter(read: Read) -> Read:
        REGISTERED[name] = Reader(
            name=name,
            title=title,
            gives=gives,
            lacks=lacks,
            marks=marks,
            recognises=recognises,
            read=read,
        )
        return read

    return enter


def total(rows: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """Return the sum of a whole number over rows; None if no row has it."""
    known = [value for value in (count(row, name) for row in rows) if value is not None]
    return sum(known) if known else None


def counts_of(
    fields: Mapping[str, Any],
    accepted: str = "num_accepted_draft_tokens",
    verified: str = "num_draft_tokens",
) -> RequestCounts:
    """Return the counts of a request, named as vLLM does; `accepted` and `verified` name fields."""
    rounds, tokens = count(fields, "num_spec_steps"), count(fields, accepted)
    if rounds is None or tokens is None:
        raise BadFigureError(f"a request without num_spec_steps or {accepted}")
    return RequestCounts(
        rounds=rounds,
        accepted=tokens,
        verified=count(fields, verified),
        histogram=histogram_of(fields.get("acceptance_histogram"), "acceptance_histogram"),
        by_verified=_by_verified(fields),
    )


_BY_LENGTH = "acceptance_histogram_by_draft_length"


def _by_verified(fields: Mapping[str, Any]) -> ByVerified | None:
    """Return a request's rounds by what they verified: from vLLM's histograms by draft length
    (0.34), or from the rounds, which its level "detailed" lists; None without either."""
    if by_length := inner(fields, _BY_LENGTH):
        if not all(name.isascii() and name.isdecimal() and len(name) < 6 for name in by_length):
            raise BadFigureError(f"{_BY_LENGTH} has a key that is no number of tokens")
        found = {int(n): histogram_of(by_length[n], _BY_LENGTH) or () for n in by_length}
    else:
        steps = (fields.get("per_step_drafted"), fields.get("per_step_accepted"))
        if not all(steps):
            return None
        drafted, accepted = (numbers(values, "per_step counts", MAX_K) for values in steps)
        if len(drafted) != len(accepted):
            raise BadFigureError("per_step_drafted and per_step_accepted differ in length")
        rounds = Counter(zip(map(int, drafted), map(int, accepted), strict=True))
        found = {
            n: tuple(rounds[n, tokens] for tokens in range(MAX_K + 1)) for n in {*map(int, drafted)}
        }
    for n, histogram in found.items():
        if n > MAX_K or any(histogram[n + 1 :]):
            raise BadFigureError(f"{_BY_LENGTH} has rounds that accept more than {n} tokens")
    return found


def most_k(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the largest num_spec_tokens of rows; None if no row drafted."""
    return max((count(row, "num_spec_tokens") or 0 for row in rows), default=0) or None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are there; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

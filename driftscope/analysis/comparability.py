"""Whether two runs can be compared: what they have in common, and what else differs between them;
likewise two replays, two labels or two times of one run, and the clocks of server and client.

Every command, claim, gate and alert asks this module. A difference is one of three things. It is
what the runs are compared for (the drafter, K). Or the comparison removes it: requests are paired
where both runs answered the same prompts, depths that only one run drafted are left out, and labels
are weighted alike. Or it can explain the result: then the answer is "cannot tell", with what to
record or to type instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import UNLABELLED, Requests
from driftscope.analysis.figures.rounds import Side
from driftscope.analysis.number_words import listed, percent
from driftscope.analysis.pairing import (
    ENOUGH_PAIRED,
    LEAST_APART,
    UNPAIRED,
    Pairing,
    common_mix,
    label_shares,
)
from driftscope.analysis.query.query_engine import Codes, Matrix
from driftscope.analysis.replays import Cell, Row, row_pairs, same_prompts
from driftscope.analysis.statistics.changes import LEAST_CLUSTERS
from driftscope.trace.manifest import Manifest, Model


class Claim(StrEnum):
    """Kind of claim about two runs that something besides drafter and K can explain."""

    ACCEPTANCE = "acceptance"
    SPEED = "speed"


BOTH = (Claim.ACCEPTANCE, Claim.SPEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """One circumstance in which two runs differ."""

    name: str
    first: str = ""
    second: str = ""
    """Values in the two runs, in words; empty if the name says it all."""
    explains: tuple[Claim, ...] = ()
    """Claims that it can explain; () for what runs are compared for, and for what the
    comparison removes."""
    removed: str = ""
    """Way in which the comparison removes it, in words; empty if it does not."""
    settle: str = ""
    """Sentence that says what to record or to type so that it explains nothing."""
    of_server: bool = False
    """Whether it is a setting of the server, rather than what the server was asked."""

    @property
    def words(self) -> str:
        """Name and values: "temperature (0 against 0.7)"."""
        same_text = self.first == self.second
        return self.name if same_text else f"{self.name} ({self.first} against {self.second})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparability:
    """Circumstances in which two runs differ, apart from their figures."""

    differences: tuple[RunDifference, ...] = ()
    compared: str = "the runs"
    """Words for what is compared."""

    def and_also(self, more: Iterable[RunDifference]) -> Comparability:
        """Return these circumstances and more, those of one name once."""
        named = {found.name: found for found in (*self.differences, *more)}
        return replace(self, differences=tuple(named.values()))

    def explaining(self, claim: Claim) -> tuple[RunDifference, ...]:
        """Return the differences that can explain a claim; another target alone is enough."""
        found = tuple(found for found in self.differences if claim in found.explains)
        return tuple(difference for difference in found if difference.name == TARGET) or found

    def decides(self, claim: Claim) -> bool:
        """Whether nothing else can explain a claim."""
        return not self.explaining(claim)

    def doubt(self, claim: Claim) -> str:
        """Return a clause on what can explain a claim; "" if nothing can."""
        words = [found.words for found in self.explaining(claim)]
        return f", but {self.compared} also differ in {listed(words)}" if words else ""

    def settle(self, claim: Claim) -> str:
        """Return what to record or to type so that nothing else explains a claim;
        "" if nothing does."""
        return " ".join(dict.fromkeys(found.settle for found in self.explaining(claim)))

    @property
    def of_requests(self) -> Comparability:
        """Differences that are no settings of the server: a gate may be about those."""
        return replace(
            self, differences=tuple(found for found in self.differences if not found.of_server)
        )

    @property
    def other_drafting(self) -> bool:
        """Whether the runs differ in what they are compared for: drafter or K."""
        return any(found.name in (DRAFTER, K) for found in self.differences)

    @property
    def warning(self) -> str | None:
        """Warning that a difference in figures may not be the drafter's; None if it is."""
        words = [found.words for found in self.differences]
        if not any(found.explains for found in self.differences):
            return None
        if len(words) > 1:
            return (
                f"these runs differ in more than one thing: {listed(words)}; no difference in "
                "their figures can be attributed to one of these alone"
            )
        return (
            f"these runs differ in their {words[0]}: that, not the drafter, may explain a "
            "difference in their figures"
        )


NO_DIFFERENCE = Comparability()

SOME = 0.05
"""Smallest share of the rounds for which a number of drafted tokens counts as a K of the run: close
to a length limit a few rounds draft fewer tokens than K."""
DRAFTER, K = "drafter", "K"
"""Names of the differences that a comparison is usually about."""
TARGET = "target"
_MIMO = "MiMoMTP"
"""Begin of the head's architecture: MiMoMTPModel in vLLM, MiMoMTP in SGLang."""
_STATE_OF_MIMO = {"vllm": "before its final norm", "sglang": "after its final norm"}
"""State of the target that an engine gives to MiMo's MTP head. Sources: mimo.py of vLLM 0.32 and of
SGLang 0.5.23."""
SAME_LENGTH = 1.2
"""Largest ratio of two runs' mean answer lengths that count as equal: acceptance may change with
the position in the answer."""
SAME_SHARES = 0.02
"""Largest share of the requests whose temperature may differ between two runs."""
HOURS_APART = 3
"""Number of hours between the beginnings of two recordings from which the hour is named: traffic
differs by the time of the day."""
_REPLAY = "driftscope replay http://localhost:8000"
"""Command that sends prompts to the server of an address: to each of two servers in turn."""


def comparability_of(
    sides: tuple[Side, Side], manifests: tuple[Manifest, Manifest], pairing: Pairing
) -> Comparability:
    """Return what differs between two runs whose requests are paired by `pairing`, apart from what
    the pairs have in common. A side without rounds does not speculate."""
    speculate = all(len(side.rounds) for side in sides)
    found = [*_of_servers(*manifests)]
    if speculate:
        found += _of_drafting(sides, manifests)
    if pairing.how == UNPAIRED:
        found.append(_prompts(manifests))
        found += _of_mixes(*sides) if speculate else ()
    first, second = (side.requests for side in sides)
    if first is not None and second is not None:
        paired = pairing.how != UNPAIRED
        rows = (pairing.first, pairing.second) if paired else tuple(side.asked for side in sides)
        asked = [
            _Asked(side=side, requests=requests, rows=rows_of_side)
            for side, requests, rows_of_side in zip(sides, (first, second), rows, strict=True)
        ]
        found += _of_requests(asked[0], asked[1], paired=paired, speculate=speculate)
    return Comparability(differences=tuple(found))


def _unequal(
    name: str,
    first: object,
    second: object,
    *,
    explains: tuple[Claim, ...] = BOTH,
    removed: str = "",
    of_server: bool = True,
) -> Iterator[RunDifference]:
    """Yield the difference if both values are known and differ."""
    if first in (None, "") or second in (None, "") or first == second:
        return
    yield RunDifference(
        name=name,
        first=str(first),
        second=str(second),
        explains=explains,
        removed=removed,
        settle=f"Record both with the same {name}.",
        of_server=of_server,
    )


def _of_servers(a: Manifest, b: Manifest) -> Iterator[RunDifference]:
    """Yield the differences of what served: target, engine and its settings."""
    if models_differ(a, b, TARGET):
        yield RunDifference(
            name=TARGET,
            first=_name(a.target),
            second=_name(b.target),
            explains=BOTH,
            settle="Record both with the same target.",
        )
    runners = [f"{manifest.engine} {manifest.runner}" for manifest in (a, b)]
    yield from _unequal("runner", *runners)
    if a.engine == b.engine:
        yield from _unequal("engine version", a.engine_version, b.engine_version)
    for name, of in _OF_EXECUTION.items():
        yield from _unequal(name, of(a), of(b), explains=(Claim.SPEED,))


def _cache_dtype(manifest: Manifest) -> str:
    """Return the dtype of the KV cache; vLLM's "auto" is the target's own."""
    named = manifest.kv_cache_dtype
    return manifest.target.dtype if named == "auto" else named


_OF_EXECUTION: Mapping[str, Callable[[Manifest], object]] = {
    "hardware": lambda manifest: manifest.hardware,
    "execution mode": lambda manifest: manifest.mode,
    "attention backend": lambda manifest: manifest.attention_backend,
    "dtype of the cache": _cache_dtype,
    "tensor parallelism": lambda manifest: manifest.tensor_parallel,
    "pipeline parallelism": lambda manifest: manifest.pipeline_parallel,
    "data parallelism": lambda manifest: manifest.data_parallel,
}
"""Settings of a server that change how long its steps take, by name."""


def _of_drafting(
    sides: tuple[Side, Side], manifests: tuple[Manifest, Manifest]
) -> Iterator[RunDifference]:
    """Yield the differences of what drafted and verified, also drafter and K."""
    a, b = manifests
    yield from _of_rules(a, b)
    drafted = [_drafted(side) for side in sides]
    shallow = min(side.rounds.comparable_k for side in sides)
    at = f"acceptance is compared at the {shallow} depths that both verified of every draft"
    if any(side.rounds.uncut is not None for side in sides):
        yield RunDifference(name="drafts cut for low confidence", removed=at)
    yield from _unequal(
        K,
        *drafted,
        explains=(),
        removed=f"acceptance is compared at the {shallow} depths that both drafted",
    )
    # Engines number the layers of a checkpoint differently; the manifest counts alike for all.
    if a.aux_layers and b.aux_layers and not models_differ(a, b, DRAFTER):
        layers = [", ".join(map(str, manifest.aux_layers)) for manifest in (a, b)]
        yield from _unequal("captured layers", *layers)
    drafters = [manifest.drafter for manifest in (a, b)]
    if all(drafter and drafter.architecture.startswith(_MIMO) for drafter in drafters):
        states = [_STATE_OF_MIMO.get(manifest.engine, "") for manifest in (a, b)]
        yield from _unequal("the target's state that MiMo's head reads", *states)
    if models_differ(a, b, DRAFTER):
        yield RunDifference(name=DRAFTER, first=_name(a.drafter), second=_name(b.drafter))


def _of_rules(a: Manifest, b: Manifest) -> Iterator[RunDifference]:
    """Yield that drafts were verified by different rules, or accepted at a given rate."""
    if a.is_simulated or b.is_simulated:
        yield RunDifference(
            name="acceptance that was simulated",
            explains=BOTH,
            settle="Record both with the standard rule of verification.",
        )
    else:
        yield from _unequal("rule of verification", a.verification, b.verification, of_server=False)


def _drafted(side: Side) -> str:
    """Return K, or several K with their shares of the rounds in tenths: a different mix of the same
    K gives a different acceptance length."""
    by_length = side.rounds.lengths.sum(axis=0)
    shares = by_length / max(by_length.sum(), 1)
    some = np.flatnonzero(shares >= SOME).tolist()
    if len(some) < 2:
        return f"{side.rounds.k}"
    return listed([f"{k} in {max(round(10 * shares[k]), 1)} of 10 rounds" for k in some])


def _name(model: Model | None) -> str:
    return model.name if model else "none"


def models_differ(a: Manifest, b: Manifest, part: str) -> bool:
    """Whether the models of two runs differ; `part` is DRAFTER or TARGET. Two engines complete one
    checkpoint's config in different ways, so that between engines the weights decide."""
    mine, theirs = getattr(a, part), getattr(b, part)
    if mine is None or theirs is None:
        return mine is not theirs
    if a.engine != b.engine and mine.weights_digest and theirs.weights_digest:
        return bool(mine.weights_digest != theirs.weights_digest)
    if mine.config_digest != theirs.config_digest:
        return True
    if mine.weights_digest and theirs.weights_digest:
        return bool(mine.weights_digest != theirs.weights_digest)
    return bool(mine.name != theirs.name)


_OF_REPLAYS = {"prompts": "prompts", "settings": "settings", "suite": "suite_digest"}
"""Keys of a replay's workload that decide what was asked, by what they are called."""


def comparability_of_replays(a: Manifest, b: Manifest) -> Comparability:
    """Return what differs between two replays apart from the drafter: the model, the engine's
    version, the rule of verification, and what was asked. The load is part of what is compared, see
    `speed`."""
    found = [
        *_unequal(TARGET, _name(a.target), _name(b.target)),
        *_unequal("engine version", a.engine_version, b.engine_version),
        *_of_rules(a, b),
    ]
    for name, key in _OF_REPLAYS.items():
        found += _unequal(name, *(str(manifest.workload.get(key, "")) for manifest in (a, b)))
    return Comparability(differences=tuple(found), compared="the replays")


CACHE = "what of the prompts was in the cache"
CACHED_APART = 0.1
"""Largest difference in the share of the prompts' tokens that is read from the cache between two
replays that count as equal."""


def comparability_of_answers(
    first: Sequence[Row], second: Sequence[Row], cells: Sequence[Cell]
) -> Comparability:
    """Return what differs between the answers of two replays at one load; `cells` are their figures
    there. One request at a time does not wait for the prompts of others, cached or not."""

    found = list[RunDifference]()
    asked = [(cell.answered or 0, cell.requests or 0) for cell in cells]
    if any(answered < ENOUGH_PAIRED * requests for answered, requests in asked):
        words = [f"{answered} of {requests}" for answered, requests in asked]
        found.append(
            RunDifference(
                name="requests answered",
                first=words[0],
                second=words[1],
                explains=BOTH,
                settle="Find out why requests were not answered: their rows say it.",
            )
        )
    if not same_prompts(first, second):
        found.append(
            RunDifference(
                name="the lengths of their prompts",
                explains=BOTH,
                settle="Send both the same prompts, also in the same template.",
            )
        )
    lengths = [(x["output_tokens"], y["output_tokens"]) for x, y in row_pairs(first, second)]
    found += _answers_cut(*np.array(lengths, dtype=np.float64).reshape(-1, 2).T)
    cached = [
        float(np.mean(shares))
        for shares in (
            [
                row["cached_tokens"] / row["prompt_tokens"]
                for row in rows
                if row["cached_tokens"] is not None and row["prompt_tokens"]
            ]
            for rows in (first, second)
        )
        if shares
    ]
    if len(cached) == 2 and abs(cached[0] - cached[1]) > CACHED_APART:
        found.append(
            RunDifference(
                name=CACHE,
                first=percent(cached[0]),
                second=percent(cached[1]),
                explains=() if first[0]["concurrency"] == 1 else (Claim.SPEED,),
                settle="Restart both servers before they are asked.",
            )
        )
    return Comparability(differences=tuple(found))


def comparability_of_parts(
    first: Side, second: Side, compared: str, *, same_mix: bool = False
) -> Comparability:
    """Return what differs in what was asked between two parts of one run, such as two labels or two
    times; `compared` names them. The server is one, and their load part of what acceptance does to
    it. With `same_mix`, requests of one temperature are compared with each other already."""
    if first.requests is None or second.requests is None:
        return NO_DIFFERENCE
    a, b = (
        _Asked(side=side, requests=requests, rows=side.asked)
        for side, requests in ((first, first.requests), (second, second.requests))
    )
    found = [] if same_mix else [*_of_temperatures(a, b, paired=False)]
    found += _of_lengths(a, b, paired=False)
    return Comparability(differences=tuple(found), compared=compared)


def comparability_of_clocks(answered: int, recorded: int) -> Comparability:
    """Return what differs between the times of a server's clients, of `answered` requests, and its
    own, of those that it recorded."""
    if recorded >= ENOUGH_PAIRED * answered:
        return NO_DIFFERENCE
    requests = RunDifference(
        name="requests",
        first=f"{answered:,}",
        second=f"{recorded:,}, which the server recorded",
        explains=(Claim.SPEED,),
        settle="Record every request: see what the server lost.",
    )
    return Comparability(differences=(requests,), compared="clients and server")


def prompts_not_known(*manifests: Manifest) -> Comparability:
    """Return that nothing is known about what two runs were asked."""
    return Comparability(differences=(_prompts(manifests),))


def _prompts(manifests: Sequence[Manifest]) -> RunDifference:
    """Return that the prompts may differ, with the hours of the recordings if they differ, too."""
    begun = [manifest.created_s for manifest in manifests]
    hours = abs(begun[0] - begun[1]) / 3600
    when = f", recorded {hours:,.0f} hours apart" if hours >= HOURS_APART else ""
    return RunDifference(
        name=f"prompts{when}", explains=BOTH, settle=f"Send both the same prompts: `{_REPLAY}`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Requests of one run that are compared."""

    side: Side
    requests: Requests
    rows: Codes
    """Requests, as indices, [compared]."""

    def answer_tokens(self) -> Matrix:
        """Return the length of each answer, [compared], or of what is left of it in a part of a
        run; NaN if it is not known."""
        if not self.side.is_part:
            return self.requests.output_tokens[self.rows]
        return self.by_request(self.side.rounds.rounds + self.side.rounds.accepted)

    def by_request(self, values: NDArray[np.int64]) -> Matrix:
        """Return a number of each answer, [compared], from those of the rows of rounds; NaN if it
        has none."""
        out = np.full(len(self.requests), np.nan)
        out[self.side.rounds.request] = values
        return out[self.rows]

    def speculates(self) -> bool:
        """Whether the run has rounds."""
        return len(self.side.rounds) > 0

    def temperatures(self) -> dict[float, float]:
        """Return the share of the requests of each known temperature, ascending; {} if none is
        known."""
        known = self.requests.temperature[self.rows]
        values, number = np.unique(np.round(known[np.isfinite(known)], 2), return_counts=True)
        return dict(zip(values.tolist(), (number / max(number.sum(), 1)).tolist(), strict=True))


def _of_requests(a: _Asked, b: _Asked, *, paired: bool, speculate: bool) -> Iterator[RunDifference]:
    """Yield the differences of what was asked, and of the load. What a server without speculation
    is asked hardly changes its time per token, but a drafter must have drafted the same answers as
    far as that server gave them. Load changes acceptance by what is verified alone,
    and acceptance is compared at the depths that both runs verified of every draft."""
    if speculate:
        yield from _of_temperatures(a, b, paired=paired)
        yield from _of_lengths(a, b, paired=paired)
    elif paired:
        plain, drafted = (one.answer_tokens() for one in sorted((a, b), key=_Asked.speculates))
        yield from _answers_cut(plain, drafted)
    loads = a.requests.load, b.requests.load
    if loads[0] is not None and loads[1] is not None and not loads[0].is_like(loads[1]):
        yield RunDifference(
            name="load",
            first=f"{loads[0].at_once:.1f}",
            second=f"{loads[1].at_once:.1f} requests at once",
            explains=(Claim.SPEED,),
            settle="Send both the same load: "
            f"`{_REPLAY} --concurrency {max(round(loads[0].at_once), 1)}`.",
        )


def _of_temperatures(a: _Asked, b: _Asked, *, paired: bool) -> Iterator[RunDifference]:
    """Yield that temperatures have other shares of the requests, by more than chance explains where
    the requests are not the same."""
    mine, theirs = a.temperatures(), b.temperatures()
    differing_share = sum(abs(mine.get(t, 0.0) - theirs.get(t, 0.0)) for t in {*mine, *theirs}) / 2
    chance = 0.0 if paired else math.sqrt(sum(1 / max(len(run.rows), 1) for run in (a, b)))
    if not mine or not theirs or differing_share <= max(SAME_SHARES, chance):
        return
    common = sorted(mine.keys() & theirs.keys(), key=lambda t: -min(mine[t], theirs[t]))
    yield RunDifference(
        name="temperature",
        first=_temperature_words(mine),
        second=_temperature_words(theirs),
        explains=BOTH,
        settle=f"Compare one temperature only: add `--where 'temperature = {common[0]:g}'`."
        if common
        else "Record both with the same temperature.",
    )


def _temperature_words(shares: Mapping[float, float]) -> str:
    """Return temperatures in words: "0.7", or "0 in 80% and 1 in 20% of the requests"."""
    if len(shares) < 2:
        return ", ".join(f"{value:g}" for value in shares)
    most = sorted(shares, key=lambda value: -shares[value])[:_MOST_TEMPERATURES]
    return listed([f"{value:g} in {percent(shares[value])}" for value in sorted(most)])


_MOST_TEMPERATURES = 3
"""Number of temperatures that are named."""


def _of_lengths(a: _Asked, b: _Asked, *, paired: bool) -> Iterator[RunDifference]:
    """Yield that the answers of one run are longer, in tokens and in rounds, by more than
    SAME_LENGTH and more than chance explains. Chance differences of single answers are in the
    intervals already."""
    tokens = [a.answer_tokens(), b.answer_tokens()]
    known = [np.isfinite(values) for values in tokens]
    if paired:
        known = [known[0] & known[1]] * 2
    first, second = (values[is_known] for values, is_known in zip(tokens, known, strict=True))
    if not _lengths_differ(first, second, paired=paired):
        return
    rounds = [
        float(np.nanmean(run.by_request(run.side.rounds.rounds)[is_known]))
        for run, is_known in zip((a, b), known, strict=True)
    ]
    factor = float(second.mean() / first.mean()), rounds[1] / rounds[0]
    if not (min(factor) > SAME_LENGTH or max(factor) < 1 / SAME_LENGTH):
        return
    short = math.floor(min(np.quantile(values, _SHORTER) for values in (first, second)))
    yield RunDifference(
        name="answer length",
        first=f"{first.mean():.0f}",
        second=f"{second.mean():.0f} tokens",
        explains=BOTH,
        settle="Compare the same positions in the answers: add "
        f"`--where 'position < prompt_tokens + {short}'`; for speed, send both with the same "
        "max_tokens.",
    )


def _answers_cut(plain: Matrix, drafted: Matrix) -> Iterator[RunDifference]:
    """Yield that answers with speculation end before those without it, to the same prompts: what
    comes later may be accepted less often."""
    known = np.isfinite(plain) & np.isfinite(drafted)
    first, second = plain[known], drafted[known]
    if _lengths_differ(first, second, paired=True) and second.mean() < first.mean():
        yield RunDifference(
            name="answer length",
            first=f"{first.mean():.0f}",
            second=f"{second.mean():.0f} tokens",
            explains=BOTH,
            settle="Let both answer to the same length: see what ends the answers of one.",
        )


def _lengths_differ(first: Matrix, second: Matrix, *, paired: bool) -> bool:
    """Whether answers of these lengths differ in their mean by more than SAME_LENGTH and more than
    chance explains."""
    if min(len(first), len(second)) < _FEWEST_LENGTHS:
        return False
    samples = [first - second] if paired else [first, second]
    error = math.sqrt(sum(float(np.var(values, ddof=1)) / len(values) for values in samples))
    short, long = sorted((float(first.mean()), float(second.mean())))
    return long > SAME_LENGTH * short and long - short > _SURE_ERRORS * error


_SHORTER = 0.1
"""Share of the shorter answers that may end before the positions at which both are compared."""
_FEWEST_LENGTHS = 5
_SURE_ERRORS = 2.0
"""Number of standard errors from which a difference in length is more than chance."""


LEFT_APART = 0.05
"""Largest share of the rounds that may be of other labels after the mixes are evened out."""


def _of_mixes(a: Side, b: Side) -> Iterator[RunDifference]:
    """Yield that two runs served labels in other shares, and whether a common mix removes that: it
    does not for labels of too few requests."""
    shares = [label_shares(side, np.array(side.labels)) for side in (a, b)]
    if any(set(share) <= {UNLABELLED} for share in shares):
        return
    gaps = {
        name: abs(shares[0].get(name, 0.0) - shares[1].get(name, 0.0))
        for name in {*shares[0], *shares[1]}
    }
    if max(gaps.values()) < LEAST_APART:
        return
    most = max(sorted(gaps), key=lambda name: gaps[name])
    mix = common_mix(a, b)
    left = sum(difference for name, difference in gaps.items() if name not in mix) / 2
    first, second = (percent(share.get(most, 0.0)) for share in shares)
    yield RunDifference(
        name="labels",
        first=f"{first} {most}",
        second=f"{second} {most}",
        explains=BOTH if left > LEFT_APART else (),
        removed="" if left > LEFT_APART else "acceptance is compared at one mix of labels",
        settle=f"Record {LEAST_CLUSTERS} or more sessions of each label in both runs.",
    )

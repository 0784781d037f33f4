"""Results of the trio on its held-out prompts: one record per prompt, and tables of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftscope.inspect.reference.chain import MASSES, Chain
from driftscope.inspect.reference.engine import Generation

PER_DEPTH = (*MASSES, "fed_rms", "prenorm_rms", "top1")
"""Fields of `Chain` that are averaged."""

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    """One prompt generated with one drafter.

    `accepted_at` holds, per depth d, the number of rounds that accepted at least d tokens; `means`
    holds the mean over the rounds' chains of each field of `PER_DEPTH`, per depth.
    """

    prompt: str
    condition: str
    """One of `trio.CONDITIONS`, or another condition of `held_out`."""
    drafter: str
    prompt_tokens: int
    output_tokens: int
    rounds: int
    accepted_at: tuple[int, ...]
    means: dict[str, tuple[float, ...]]

    @property
    def accepted(self) -> int:
        """Number of accepted tokens over all rounds."""
        return sum(self.accepted_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All prompts of one condition with one drafter, weighted by rounds.

    `tau` is the mean acceptance length, 1 + accepted / rounds: tokens per target pass. `acceptance`
    is the marginal rate: rounds that accepted at least d tokens / rounds.
    """

    rounds: int
    tau: float
    acceptance: tuple[float, ...]
    means: dict[str, tuple[float, ...]]


def record(
    prompt: str, condition: str, drafter: str, prompt_tokens: int, result: Generation, k: int
) -> PromptRecord:
    """Reduce a generation to its figures."""
    accepted = [one.accepted for one in result.rounds]
    chains = [one.chain for one in result.rounds]
    return PromptRecord(
        prompt=prompt,
        condition=condition,
        drafter=drafter,
        prompt_tokens=prompt_tokens,
        output_tokens=len(result.token_ids),
        rounds=len(chains),
        accepted_at=tuple(sum(a >= depth for a in accepted) for depth in range(1, k + 1)),
        means={name: _mean(chains, name) for name in PER_DEPTH},
    )


def summarize(records: Sequence[PromptRecord]) -> Summary:
    """Pool records of one condition and drafter. Raises ZeroDivisionError without a round."""
    rounds = sum(one.rounds for one in records)
    accepted_at = _add(one.accepted_at for one in records)
    return Summary(
        rounds=rounds,
        tau=1 + sum(accepted_at) / rounds,
        acceptance=tuple(count / rounds for count in accepted_at),
        means={name: _weighted(records, name, rounds) for name in PER_DEPTH},
    )


def tau_ratio(
    over: Sequence[PromptRecord], under: Sequence[PromptRecord]
) -> tuple[float, float, float]:
    """Return tau of `over` / tau of `under`, and a paired percentile interval over prompts."""
    rng = random.Random(0)
    pairs = list(zip(over, under, strict=True))
    draws = sorted(
        _ratio([pairs[rng.randrange(len(pairs))] for _ in pairs]) for _ in range(RESAMPLES)
    )
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return _ratio(pairs), draws[tail], draws[-1 - tail]


def loss_by_depth(records: Sequence[PromptRecord], name: str) -> tuple[float, tuple[float, float]]:
    """Return the mean `name` of `PER_DEPTH` at the last depth as a share of its mean at the first
    depth, and a percentile interval over prompts."""
    rng = random.Random(0)
    draws = sorted(_kept(rng.choices(records, k=len(records)), name) for _ in range(RESAMPLES))
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return _kept(records, name), (draws[tail], draws[-1 - tail])


def _kept(records: Sequence[PromptRecord], name: str) -> float:
    first, last = (sum(r.means[name][at] * r.rounds for r in records) for at in (0, -1))
    return last / first


def _ratio(pairs: Sequence[tuple[PromptRecord, PromptRecord]]) -> float:
    return _tau(one for one, _ in pairs) / _tau(other for _, other in pairs)


def _tau(records: Iterable[PromptRecord]) -> float:
    listed = list(records)
    return 1 + sum(one.accepted for one in listed) / sum(one.rounds for one in listed)


def _mean(chains: Sequence[Chain], name: str) -> tuple[float, ...]:
    columns = zip(*(getattr(chain, name) for chain in chains), strict=True)
    return tuple(round(sum(column) / len(chains), 6) for column in columns)


def _add(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*rows, strict=True))


def _weighted(records: Sequence[PromptRecord], name: str, rounds: int) -> tuple[float, ...]:
    weighted = [[value * one.rounds for value in one.means[name]] for one in records if one.rounds]
    return tuple(sum(column) / rounds for column in zip(*weighted, strict=True))

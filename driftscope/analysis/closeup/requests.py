"""The requests that a report names: the worst and the best, and the rounds of a few of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.closeup.round_regions import regions_of
from driftscope.analysis.figures.request_codes import Requests
from driftscope.analysis.query.column_arrays import ints
from driftscope.metrics.chains import finite_mean
from driftscope.vocabulary import MASSES

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
    drafted: tuple[int, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRequest:
    """Figures per request, arrays of [requests] each; NaN for a number that does not exist."""

    rounds: NDArray[np.float64]
    mean_length: NDArray[np.float64]
    growth: NDArray[np.float64]
    self_mass: NDArray[np.float64]


def ranked(per: PerRequest) -> NDArray[np.int64]:
    """Return the requests to name, worst first: both ends of the requests with enough rounds."""
    known = np.flatnonzero(per.rounds >= min(ENOUGH_ROUNDS, per.rounds.max(initial=0.0)))
    known = known[per.rounds[known] > 0]
    order = known[np.argsort(per.mean_length[known], kind="stable")]
    if len(order) <= 2 * NAMED_EACH:
        return order
    return np.concatenate([order[:NAMED_EACH], order[-NAMED_EACH:]])


def named_of(
    requests: Requests, per: PerRequest, chosen: NDArray[np.int64], rounds: pa.Table
) -> tuple[NamedRequest, ...]:
    """Return the rows of the table; `rounds` has the rounds of `chosen`, and possibly of others."""
    strips = _strips(rounds, requests, chosen)
    return tuple(
        NamedRequest(
            request=_name(requests, code),
            label=str(requests.labels[code]),
            rounds=int(per.rounds[code]),
            mean_length=float(f"{per.mean_length[code]:.5g}"),
            growth=_known(per.growth[code]),
            self_mass=_known(per.self_mass[code]),
            prompt_tokens=_count(requests.prompt_tokens[code]),
            output_tokens=_count(requests.output_tokens[code]),
            ttft_s=_known(requests.ttft_s[code]),
            tpot_s=_known(requests.tpot_s[code]),
            temperature=_known(requests.temperature[code]),
            accepted=strips.get(code, ""),
        )
        for code in chosen.tolist()
    )


def ends_of(chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first and the last of `chosen`, whose rounds are shown."""
    if len(chosen) <= 2 * OPENED_EACH:
        return chosen
    return np.concatenate([chosen[:OPENED_EACH], chosen[-OPENED_EACH:]])


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
    return tuple(
        _opened(
            _name(requests, code),
            rounds.take(np.flatnonzero(of_round == code)),
            chains.take(np.flatnonzero(of_chain == code)),
            answers.get(code),
        )
        for code in opened.tolist()
    )


def _opened(
    name: str, rounds: pa.Table, chains: pa.Table, answer: Mapping[str, Any] | None
) -> OpenedRequest:
    steps, rounds = rounds.num_rows, rounds.slice(0, MAX_ROUNDS)
    latest = {p: at for at, p in enumerate(ints(chains, "position").tolist())}
    position = ints(rounds, "position").tolist()
    at = [latest.get(p) for p in position]
    region, copied = regions_of(position, answer)
    return OpenedRequest(
        request=name,
        steps=steps,
        position=tuple(position),
        drafted=tuple(ints(rounds, "drafted").tolist()),
        accepted=tuple(ints(rounds, "accepted").tolist()),
        reason=tuple(rounds.column("reason").to_pylist()),
        masses={
            column: tuple(_layered(_cell(chains, column, i), _layers(chains, i)) for i in at)
            for column in MASSES
            if chains.column(column).null_count < chains.num_rows
        },
        fed_rms=tuple(_floats(_cell(chains, "fed_rms", i)) for i in at),
        token_ids=tuple(_ints(_cell(chains, "token_ids", i)) for i in at),
        region=region,
        copied=copied,
    )


def _strips(rounds: pa.Table, requests: Requests, chosen: NDArray[np.int64]) -> dict[int, str]:
    codes, wanted = requests.codes(rounds), set(chosen.tolist())
    drafted, accepted = ints(rounds, "drafted").tolist(), ints(rounds, "accepted").tolist()
    signs: dict[int, list[str]] = {}
    for at, code in enumerate(codes.tolist()):
        if code in wanted:
            signs.setdefault(code, []).append(str(accepted[at]) if drafted[at] else "-")
    return {
        code: " ".join(all_of[:MAX_ROUNDS]) + (" …" if len(all_of) > MAX_ROUNDS else "")
        for code, all_of in signs.items()
    }


def _name(requests: Requests, code: int) -> str:
    """Return the engine's id of a request, with its replica if that is not the first."""
    name = str(requests.keys.column("request")[code].as_py())
    replica = int(requests.replica[code])
    return name if not replica else f"{name} (replica {replica})"


def _cell(chains: pa.Table, name: str, at: int | None) -> list[float] | None:
    value: list[float] | None = None if at is None else chains.column(name)[at].as_py()
    return value


def _layers(chains: pa.Table, at: int | None) -> int:
    return 1 if at is None else max(int(chains.column("layers")[at].as_py()), 1)


def _layered(values: list[float] | None, layers: int) -> Floats | None:
    if values is None:
        return None
    return _floats(finite_mean(np.asarray(values).reshape(-1, layers), axis=1).tolist())


def _floats(values: list[float] | None) -> Floats | None:
    return None if values is None else tuple(float(f"{value:.3g}") for value in values)


def _ints(values: list[float] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(value) for value in values)


def _known(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


def _count(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None

"""Bounds that the rates of `benchmarks.calibration` have to meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

NOMINAL = 0.05
FALSE_AT_MOST = 0.068
"""Largest share of false answers: the nominal 5 % and 1.64 standard errors of 400 trials."""
COVERED_AT_LEAST = 0.93
COVERED_OF_FEW = 0.9
"""Smallest coverage over fewer than FEW_CLUSTERS clusters."""
FEW_CLUSTERS = 8
POWER_AT_LEAST = 0.9
BIAS_AT_MOST = 0.005
"""Largest relative error of a mean acceptance length."""
OFF_AT_MOST = 0.02
"""Largest error of a conditional rate, and largest relative error of an acceptance length from
rounds cut anew."""
PART_OFF = 0.02
"""Largest error of the mean of a part of the loss, as a share of the positions."""
HELD_AT_LEAST = 0.95
"""Share of the times that their bounds hold, and of the commanded K that serve at most 5 % slower
than the best."""
REGRET_AT_MOST = 0.01
"""Mean of how much slower than the best a commanded K serves."""
REGRET_SPREAD = 0.02
"""Standard deviation of that regret, about which fewer trials may be off."""
ERRORS = 3.1
"""Standard errors that chance is allowed with fewer trials than the bounds are made for. About
fifty rates are checked together, of which one in five hundred may pass a bound of so many."""

Row: TypeAlias = Any
"""A row of a table: a dataclass of its module, or its fields as read from a result file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One rate of a row and its bounds."""

    name: str
    value: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def is_met(self) -> bool:
        """Whether the rate lies within its bounds."""
        return self.least <= self.value <= self.most


def _false(name: str, value: float, trials: int) -> Rate:
    return Rate(name=name, value=value, most=max(FALSE_AT_MOST, NOMINAL + _slack(NOMINAL, trials)))


def _covered(name: str, value: float, trials: int) -> Rate:
    least = min(COVERED_AT_LEAST, 1 - NOMINAL - _slack(NOMINAL, trials))
    return Rate(name=name, value=value, least=least)


def _power(name: str, value: float, trials: int) -> Rate:
    return Rate(name=name, value=value, least=POWER_AT_LEAST - _slack(POWER_AT_LEAST, trials))


def _slack(rate: float, trials: int) -> float:
    return ERRORS * math.sqrt(rate * (1 - rate) / trials)


def _coverage(row: Row, trials: int) -> Iterator[Rate]:
    yield _covered("coverage", row.covered, trials)


def _calls(row: Row, trials: int) -> Iterator[Rate]:
    yield _false("called", row.called, trials)


def _cuts(row: Row, trials: int) -> Iterator[Rate]:
    yield _false("change where there is none", row.flat, trials)


def _several_k(row: Row, trials: int) -> Iterator[Rate]:
    if hasattr(row, "worst"):
        yield _covered("coverage at the worst depth", row.worst, trials)
    else:
        yield _false("change where only the mix of K changes", row.comparable, trials)


def _within_request(row: Row, trials: int) -> Iterator[Rate]:
    if row.relation:
        yield _power("relation called", row.called, trials)
    else:
        yield _false("relation called", row.called, trials)


def _attention_drift(row: Row, trials: int) -> Iterator[Rate]:
    if row.truth != "drift":
        yield _false("drift", row.drift, trials)
    else:
        yield _false("no drift", row.no_drift, trials)
        yield _power("drift", row.drift, trials)


def _unfinished(row: Row, trials: int) -> Iterator[Rate]:
    if row.requests == "cohort":
        yield _false("change", row.changed, trials)
        yield Rate(name="bias", value=row.bias, least=-BIAS_AT_MOST, most=BIAS_AT_MOST)


def _over_time(row: Row, trials: int) -> Iterator[Rate]:
    if not row.drops:
        yield _false("high drop", row.high, trials)


def _risk_sets(row: Row, trials: int) -> Iterator[Rate]:
    if not row.informative:
        yield Rate(name="error", value=row.off, most=OFF_AT_MOST)
        yield _covered("coverage", row.covered, trials)


def _advice(row: Row, trials: int) -> Iterator[Rate]:
    commands = max(round(row.commanded * trials), 1)
    least = HELD_AT_LEAST - _slack(HELD_AT_LEAST, commands)
    more = ERRORS * REGRET_SPREAD / math.sqrt(commands)
    yield Rate(name="bounds hold", value=row.held, least=HELD_AT_LEAST)
    yield _covered("measured times covered", row.held_measured, trials)
    yield Rate(name="commands within 5 %", value=row.regret_kept, least=least)
    yield Rate(name="mean regret of commands", value=row.regret, most=REGRET_AT_MOST + more)
    yield Rate(name="commands from one run", value=row.early, most=0.0)


def _cut_anew(row: Row, _: int) -> Iterator[Rate]:
    yield Rate(name="error of lengths cut anew", value=row.anew, most=OFF_AT_MOST)


def _clusters(row: Row, trials: int) -> Iterator[Rate]:
    few = row.clusters < FEW_CLUSTERS
    wanted, nominal = (COVERED_OF_FEW, COVERED_OF_FEW) if few else (COVERED_AT_LEAST, 1 - NOMINAL)
    yield Rate(
        name="coverage", value=row.covered, least=min(wanted, nominal - _slack(NOMINAL, trials))
    )
    yield _false("other prompts called different", row.unpaired, trials)
    yield _false("the same prompts called different", row.paired, trials)


def _label_mix(row: Row, trials: int) -> Iterator[Rate]:
    yield _false("another mix called a difference", row.called, trials)
    yield _false("gate broken by another mix", row.gate, trials)
    yield _power("worse drafter found", row.found, trials)
    yield _power("worse drafter breaks the gate", row.gate_found, trials)


def _text_kinds(row: Row, trials: int) -> Iterator[Rate]:
    region = _power if row.harder_region else _false
    begin = _power if row.harder_begin else _false
    yield region("region called harder", row.region, trials)
    yield begin("begins called harder", row.begin, trials)


def _high_findings(row: Row, trials: int) -> Iterator[Rate]:
    yield _false("high finding about a healthy run", row.high, trials)


def _ablations(row: Row, _: int) -> Iterator[Rate]:
    if row.made:
        yield _power("the part that the cause makes", row.found, row.seeds)
    else:
        yield _false("a part that the cause does not make", row.found, row.seeds)
    yield Rate(name="error of the part", value=row.off, least=-PART_OFF, most=PART_OFF)


def _shared_steps(row: Row, trials: int) -> Iterator[Rate]:
    # At most 20 spans of time, of which few may be independent.
    least = COVERED_OF_FEW - _slack(NOMINAL, trials)
    yield Rate(name="coverage", value=row.covered, least=least)


BOUNDS: Mapping[str, Callable[[Row, int], Iterator[Rate]]] = {
    "coverage": _coverage,
    "false_calls": _calls,
    "gate": _calls,
    "changes": _cuts,
    "several_k": _several_k,
    "within_request": _within_request,
    "attention_drift": _attention_drift,
    "unfinished": _unfinished,
    "over_time": _over_time,
    "risk_sets": _risk_sets,
    "k_advice": _advice,
    "cut_anew": _cut_anew,
    "clusters": _clusters,
    "label_mix": _label_mix,
    "text_kinds": _text_kinds,
    "high_findings": _high_findings,
    "ablations": _ablations,
    "shared_steps": _shared_steps,
}
"""Rates of a row to check, by table; tables that are not here are for reading."""


def breaches(table: str, rows: Sequence[Row], trials: int) -> list[str]:
    """Return one line for each rate that does not meet its bounds."""
    rates = BOUNDS.get(table)
    if rates is None:
        return []
    return [
        f"{table}: {_name(row)}: {rate.name} {rate.value:.3f}, wanted {_wanted(rate)}"
        for row in rows
        for rate in rates(row, trials)
        if not rate.is_met
    ]


def _name(row: Row) -> str:
    words = [str(getattr(row, field)) for field in row.__slots__ if field in _NAMES]
    return ", ".join(words)


_NAMES = ("run", "world", "figure", "pairing", "at_once", "requests", "rounds", "part")
"""Fields of a row that say what it is about."""


def _wanted(rate: Rate) -> str:
    if math.isinf(rate.most):
        return f"at least {rate.least:.3f}"
    return f"at most {rate.most:.3f}" if math.isinf(rate.least) else f"{rate.least} to {rate.most}"

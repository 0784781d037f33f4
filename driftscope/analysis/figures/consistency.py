"""Checks that the rows of a run belong together; everything after this may rely on them."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from driftscope.analysis.figures.captured_layers import captured_states
from driftscope.analysis.figures.requests import requests_that_finished
from driftscope.analysis.passes.kinds import (
    OPTIONAL,
    kinds_of_chains,
    kinds_of_steps,
    lengths_of_rounds,
    one_with,
)
from driftscope.analysis.query.chain_shape import Shape
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.query.record_views import Tables, chains_too_long, two_drafters
from driftscope.errors import DamagedTraceError, MixedTraceError, NoDataError
from driftscope.vocabulary import AUX, MASS_CLASSES, Execution

ENOUGH_CHAINS = 50
"""Number of chains that must reach a depth for it to be shown in a run of several K: with fewer,
the standard error of a mean is more than a seventh of the spread between chains."""


def shape_of(tables: Tables) -> Shape:
    """Return the shape of a run's chains, which may have several K.

    If K follows the batch size, or changes while the server runs, that is still one run. Raises
    MixedTraceError for chains longer than the run was configured for, and for chains of drafters
    with different numbers of layers: such files come from two runs.
    """
    manifest, rows = tables.manifest, tables.engine.rows
    kinds = rows(kinds_of_chains())
    by_k = _chains_by_k(kinds)
    asked = {*by_k, *whole(rows(kinds_of_steps()), "k").tolist()}
    drafted = set(whole(rows(lengths_of_rounds()), "drafted").tolist())
    ks = tuple(sorted(asked)) or (manifest.k,)
    k = max(*ks, *drafted) if drafted else ks[-1]
    if k > manifest.k:
        raise MixedTraceError(chains_too_long(tables, manifest.k, k))
    layers = sorted(set(whole(kinds, "layers").tolist()))
    if len(layers) > 1:
        raise MixedTraceError(two_drafters(tables, layers))
    return Shape(
        k=k,
        ks=ks,
        shorter=tuple(sorted(n for n in drafted if n < k)),
        depths=_depths(by_k) if len(ks) > 1 and by_k else k,
        layers=max(layers[0], 1) if layers else 1,
        aux=captured_states(tables),
        sink_slots=tuple(manifest.sink_slots),
        sinkless=manifest.sinkless,
        absent=tuple(name for name in OPTIONAL if not rows(one_with(name)).num_rows),
        executions=tuple(sorted(set(kinds.column("execution").to_pylist()) - {Execution.UNSAID})),
        rate=_rate(kinds),
    )


def _chains_by_k(kinds: pa.Table) -> Counter[int]:
    by_k: Counter[int] = Counter()
    for k, chains in zip(whole(kinds, "k").tolist(), whole(kinds, "chains").tolist(), strict=True):
        by_k[k] += chains
    return by_k


def _depths(by_k: Counter[int]) -> int:
    """Return the largest K that enough chains reach."""
    wanted = min(ENOUGH_CHAINS, by_k.total() / 2)
    return max(k for k in by_k if sum(n for each, n in by_k.items() if each >= k) >= wanted)


def _rate(kinds: pa.Table) -> float | None:
    rates = {rate for end in ("low", "high") for rate in kinds.column(end).to_pylist()}
    rate = rates.pop() if len(rates) == 1 else None
    return rate if rate and 0 < rate <= 1 else None


def check_chains(tables: Tables, chains: pa.Table, shape: Shape) -> None:
    """Raise DamagedTraceError for rates and lists that no writer produces.

    Per-depth lists have as many elements as the chain has tokens; masses have that many times the
    drafter's layers.
    """
    if whole(chains, "bad_rates").sum():
        raise DamagedTraceError(
            f"{tables.path}: draft rows whose sampling rate is not above 0 and at most 1; "
            "the run's files are damaged"
        )
    for name in shape.lists():
        if whole(chains, f"{name}_misfits").sum():
            raise DamagedTraceError(
                f"{tables.path}: draft rows whose {name} is not {_wanted(name, shape)} long; "
                "the run's files are damaged or not from one run"
            )
    if "bad_heads" in chains.column_names and whole(chains, "bad_heads").sum():
        raise DamagedTraceError(
            f"{tables.path}: draft rows whose head_mass is not K times layers times heads times "
            f"{len(MASS_CLASSES)} long; the run's files are damaged or not from one run"
        )


def _wanted(name: str, shape: Shape) -> str:
    if shape.mixed and name not in AUX:
        each = shape.per_depth(name)
        return "K" if each == 1 else f"K times {each}"
    return str(shape.width(name))


def check_rounds(tables: Tables, rounds: pa.Table) -> None:
    """Raise DamagedTraceError for impossible rounds, and NoDataError if there are no rounds."""
    if whole(rounds, "wrong").sum():
        raise DamagedTraceError(
            f"{tables.path}: verify rows with more tokens accepted than drafted; "
            "the run's files are damaged or not from one run"
        )
    if not whole(rounds, "rounds").sum() and tables.conditions:
        raise NoDataError(
            f"{tables.path}: no round in it meets {' and '.join(map(str, tables.conditions))}; "
            "`driftscope analyze RUN` without --where and --since says what is in it"
        )
    if not whole(rounds, "rounds").sum():
        finished = tables.engine.rows(requests_that_finished()).num_rows
        undrafted = whole(rounds, "undrafted").sum()
        raise NoDataError(
            f"{tables.path}: no round in it ({finished} requests, {undrafted} "
            "steps without a draft); send requests to the server while the probe is on, and check "
            "that speculation is configured"
        )

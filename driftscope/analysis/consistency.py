"""Whether the rows of a run belong together; everything after this may rely on it."""

from __future__ import annotations

import pyarrow as pa

from driftscope.analysis.captured import captured_states
from driftscope.analysis.columns import whole
from driftscope.analysis.passes.kinds import (
    OPTIONAL,
    drafted_more_than,
    kinds_of_chains,
    kinds_of_steps,
    one_with,
)
from driftscope.analysis.passes.requests import requests_that_finished
from driftscope.analysis.shape import Shape
from driftscope.analysis.tables import Tables
from driftscope.errors import DamagedTraceError, MixedTraceError, NoDataError
from driftscope.trace.records import MASS_CLASSES, Execution


def shape_of(tables: Tables) -> Shape:
    """The one shape that all chains of a run have.

    Raises MixedTraceError for chains of several. A round that drafted fewer than K tokens is
    legitimate: it ran close to a length limit.
    """
    manifest, rows = tables.manifest, tables.engine.rows
    kinds = rows(kinds_of_chains())
    lengths = {
        manifest.k,
        *whole(kinds, "k").tolist(),
        *whole(rows(kinds_of_steps()), "k").tolist(),
        *whole(rows(drafted_more_than(manifest.k)), "drafted").tolist(),
    }
    if len(lengths) > 1:
        found = ", ".join(str(k) for k in sorted(lengths))
        raise MixedTraceError(
            f"{tables.path}: chains of different lengths in one run (K = {found}); "
            "record one run directory per K and give them all to analyze"
        )
    layers = sorted(set(whole(kinds, "layers").tolist()))
    if len(layers) > 1:
        raise MixedTraceError(
            f"{tables.path}: drafters of {' and '.join(map(str, layers))} layers in one run; "
            "record one run directory per drafter"
        )
    return Shape(
        k=manifest.k,
        layers=max(layers[0], 1) if layers else 1,
        aux=captured_states(tables),
        sink_slots=tuple(manifest.sink_slots),
        sinkless=manifest.sinkless,
        absent=tuple(name for name in OPTIONAL if not rows(one_with(name)).num_rows),
        executions=tuple(sorted(set(kinds.column("execution").to_pylist()) - {Execution.UNSAID})),
        rate=_rate(kinds),
    )


def _rate(kinds: pa.Table) -> float | None:
    rates = {rate for end in ("low", "high") for rate in kinds.column(end).to_pylist()}
    rate = rates.pop() if len(rates) == 1 else None
    return rate if rate and 0 < rate <= 1 else None


def check_chains(tables: Tables, chains: pa.Table, shape: Shape) -> None:
    """Raise DamagedTraceError for rates and lists that no writer makes.

    Per-depth lists have K elements, masses K times the drafter's layers.
    """
    if whole(chains, "bad_rates").sum():
        raise DamagedTraceError(
            f"{tables.path}: draft rows whose sampling rate is not above 0 and at most 1; "
            "the run's files are damaged"
        )
    for name in shape.lists():
        if whole(chains, f"{name}_misfits").sum():
            raise DamagedTraceError(
                f"{tables.path}: draft rows whose {name} is not {shape.width(name)} long; "
                "the run's files are damaged or not from one run"
            )
    if "bad_heads" in chains.column_names and whole(chains, "bad_heads").sum():
        raise DamagedTraceError(
            f"{tables.path}: draft rows whose head_mass is not K times layers times heads times "
            f"{len(MASS_CLASSES)} long; the run's files are damaged or not from one run"
        )


def check_rounds(tables: Tables, rounds: pa.Table) -> None:
    """Raise DamagedTraceError or NoDataError for rounds that cannot be, or that are not there."""
    if whole(rounds, "wrong").sum():
        raise DamagedTraceError(
            f"{tables.path}: verify rows with more tokens accepted than drafted; "
            "the run's files are damaged or not from one run"
        )
    if not whole(rounds, "rounds").sum() and tables.conditions:
        raise NoDataError(
            f"{tables.path}: no round in it meets {' and '.join(tables.conditions)}; "
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

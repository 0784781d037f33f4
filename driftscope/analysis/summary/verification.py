"""Comparison of recorded chains with the rounds that verified them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from driftscope.analysis.figures.chain_sample import COMPARED, chain_sample
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.passes.verified import (
    DONE,
    DRAWN,
    VERIFIED,
    by_execution,
    done,
    drawn,
    joined,
    number_verified,
    reliability,
    repeated_chains,
    repeated_rounds,
)
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.query.record_views import LOOKED_AT
from driftscope.metrics.confidence import BINS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verification:
    """Outcome of the recorded chains that were checked."""

    looked_at: int
    verified: int
    """Number of checked chains whose round is in the run."""
    by_confidence: pa.Table | None
    """Verified tokens, see `passes.verified.reliability`, without a row if no confidence was
    recorded; None if no chain was verified."""
    by_execution: pa.Table | None
    """Verified chains, see `passes.verified.by_execution`; None if all ran in the same way."""


NOTHING = Verification(looked_at=0, verified=0, by_confidence=None, by_execution=None)
"""Result for a run without recorded chains."""


def verification_of(run: Sums) -> Verification:
    """Compare the chains of a run with their rounds."""
    if not run.recorded.any():
        return NOTHING
    looked_at = look_at(run)
    rows = run.tables.engine.rows
    verified = int(whole(rows(number_verified()), "chains").sum())
    apart = verified and len(set(run.shape.executions)) > 1
    return Verification(
        looked_at=looked_at,
        verified=verified,
        by_confidence=rows(reliability(BINS)) if verified else None,
        by_execution=rows(by_execution(run.shape)) if apart else None,
    )


def look_at(run: Sums) -> int:
    """Keep the verified chains of some requests at hand, and return how many chains these requests
    have."""
    engine, sample = run.tables.engine, chain_sample(run, COMPARED)
    sample.show(run, LOOKED_AT, np.arange(len(run.requests)))
    engine.keep(DRAWN, drawn(sample.steps is not None))
    engine.keep(DONE, done())
    queries = (repeated_chains(), repeated_rounds())
    repeated = any(whole(engine.rows(query), "keys").sum() for query in queries)
    engine.keep(VERIFIED, joined(repeated))
    return int(run.recorded[sample.requests].sum())

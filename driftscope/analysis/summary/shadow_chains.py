"""Live interventions of a run: chains that were not served, compared with the target's tokens."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.passes.shadows import shadows
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.summary.shadow_agreement import (
    ShadowAgreement,
    ShadowCounts,
    shadow_agreement,
)
from driftscope.vocabulary import LIVE_INTERVENTIONS


def shadow_chains(run: Sums) -> tuple[ShadowAgreement, ...]:
    """Return the agreement of each intervention that the run has chains of."""
    table = run.tables.engine.rows(shadows())
    found = (_of(run, table, each) for each in LIVE_INTERVENTIONS)
    return tuple(each for each in found if each is not None)


def _of(run: Sums, table: pa.Table, intervention: str) -> ShadowAgreement | None:
    mine = table.filter(pc.equal(table.column("intervention"), intervention))
    counts = ShadowCounts(
        k=whole(mine, "k"),
        known=whole(mine, "known"),
        agreed=whole(mine, "agreed"),
        served_agreed=whole(mine, "served_agreed"),
        chains=whole(mine, "chains"),
        cluster=run.clusters[run.requests.codes(mine)],
    )
    return shadow_agreement(intervention, counts)

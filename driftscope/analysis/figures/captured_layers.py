"""How many captured target layers a run's chains have states of."""

from __future__ import annotations

from driftscope.analysis.passes.kinds import captured_in
from driftscope.analysis.query.chain_shape import AUX
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.query.record_views import Tables


def captured_states(tables: Tables) -> int:
    """Return the length of the lists in `AUX`: as many as the manifest names layers.

    A manifest may name none and the chains have states all the same: so it was before the probe
    took the layers from the engine, for a drafter whose config names none. Then the chains say.
    """
    if tables.manifest.aux_layers:
        return len(tables.manifest.aux_layers)
    lengths = (whole(tables.engine.rows(captured_in(name)), "states") for name in AUX)
    return max((length for found in lengths for length in found.tolist()), default=0)

"""Number of captured target layers whose states a run's chains contain."""

from __future__ import annotations

from driftscope.analysis.passes.kinds import captured_in
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.query.record_views import Tables
from driftscope.vocabulary import AUX


def captured_states(tables: Tables) -> int:
    """Return the length of the lists in `AUX`, which is the number of layers that the manifest
    names.

    Older manifests may name none although the chains have states: for a drafter whose config names
    no layers, the probe did not yet read them from the engine. The length is then taken from the
    chains.
    """
    if tables.manifest.aux_layers:
        return len(tables.manifest.aux_layers)
    lengths = (whole(tables.engine.rows(captured_in(name)), "states") for name in AUX)
    return max((length for column in lengths for length in column.tolist()), default=0)

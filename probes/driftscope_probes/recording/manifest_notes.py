"""Notes that a run's manifest carries, whatever engine the run is from."""

from __future__ import annotations

from dataclasses import replace

from driftscope.trace.format.manifest import Manifest
from driftscope.vocabulary import SINK_FOUND
from driftscope_probes.masses.sink_search import MIN_CHAINS, MIN_REQUESTS, SinkSet

SINKS_SOUGHT = (
    "the search for the sink set had not finished: attention masses are recorded once it is found, "
    f"{MIN_CHAINS} recorded chains of {MIN_REQUESTS} requests into the run"
)
"""Note in the manifest of a run whose sink set has not been determined yet."""
IDENTIFIERS_OFF = "request ids are keyed hashes, and no trace context was recorded"
"""Note in the manifest of a run that was recorded with DRIFTSCOPE_IDENTIFIERS=off."""


def with_sinks(manifest: Manifest, sinks: SinkSet) -> Manifest:
    """Return `manifest` with the sink set that the search has found."""
    return replace(
        manifest,
        sink_tokens=len(sinks.slots),
        sink_slots=sinks.slots,
        sink_source=SINK_FOUND,
        notes=(*(note for note in manifest.notes if note != SINKS_SOUGHT), sinks.note),
    )

"""Exchange of figures between the processes of one engine, by small files in the run directory.

Acceptance is known in the engine core and drift in the workers. Each process counts for itself and
rewrites one JSON file of its counts. The engine core reads its workers' files and exports all
figures, so that an engine is one Prometheus target and one OTLP client. The files do not grow, they
outlive a process that is killed, and they are still written when the trace has reached its size
limit on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from driftscope.boundary import strict_json
from driftscope.boundary.files import PRIVATE_FILE, read_json, write_file
from driftscope.telemetry.collect.batch_counter import NotableChain
from driftscope.telemetry.collect.tally import Snapshot, from_rows, to_rows
from driftscope.trace.read.ranks import place_of

_PREFIX = "telemetry-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The figures of one process."""

    source: str
    points: Snapshot
    chains: tuple[NotableChain, ...] = ()
    """The latest chains that drifted hard."""


def publish(run: Path, shared: Shared) -> None:
    """Replace the file of this source atomically by rename; raises OSError."""
    path = run / f"{_PREFIX}{shared.source}.json"
    content = {
        "points": to_rows(shared.points),
        "chains": [asdict(chain) for chain in shared.chains],
    }
    write_file(path, strict_json.dumps(content).encode(), mode=PRIVATE_FILE, durable=False)


def workers_of(run: Path, replica: int) -> Iterator[Shared]:
    """Yield the published figures of a replica's workers. Unreadable files are skipped."""
    for path in sorted(run.glob(f"{_PREFIX}worker*.json")):
        source = path.stem.removeprefix(_PREFIX)
        if (place_of(source).replica or 0) != replica:
            continue
        try:
            raw = read_json(path, follow=False)
            yield Shared(source=source, points=from_rows(raw["points"]), chains=_chains(raw))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


def _chains(raw: dict[str, Iterable[dict[str, object]]]) -> tuple[NotableChain, ...]:
    return tuple(NotableChain(**each) for each in raw["chains"])  # type: ignore[arg-type]

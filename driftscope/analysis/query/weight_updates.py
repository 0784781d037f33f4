"""Updates of the served weights, as the processes of a run noted them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from driftscope.analysis.query.query_engine import Matrix
from driftscope.trace.ranks import place_of
from driftscope.trace.status import Status, WeightUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An update of the weights of one replica, between two of its rounds."""

    number: int
    """Updates so far, from 1."""
    time_s: float
    """Unix time at which the new weights were in place."""
    models: tuple[str, ...]
    """Models that changed: TARGET, DRAFTER or both."""
    version: str | None
    """Name of the new weights, if the engine was given one."""

    @property
    def name(self) -> str:
        """Name of the weights in words."""
        version = f" ({self.version})" if self.version else ""
        return f"update {self.number}{version}"


def noted_updates(statuses: Iterable[Status]) -> dict[int, list[WeightUpdate]]:
    """Return what each replica's first rank and engine core noted, by time."""
    noted: defaultdict[int, list[WeightUpdate]] = defaultdict(list)
    for status in statuses:
        place = place_of(status.source)
        if place.rank == 0 and status.weights:
            noted[place.replica or 0] += status.weights
    return {
        replica: sorted(updates, key=lambda update: update.time_s)
        for replica, updates in noted.items()
    }


def served_updates(
    noted: Mapping[int, list[WeightUpdate]], times: Mapping[int, Matrix]
) -> dict[int, list[Update]]:
    """Return the updates of each replica that has rounds at the sorted `times`.

    What is noted without a round in between is one update: trainers send weights in parts, and the
    worker that loads them and the engine core that names them are two processes. Weights that are
    loaded before the first round are those that the run started with.
    """
    out: dict[int, list[Update]] = {}
    for replica, updates in noted.items():
        rounds = np.searchsorted(times.get(replica, np.array([])), [u.time_s for u in updates])
        parts = groupby(zip(rounds.tolist(), updates, strict=True), key=lambda part: part[0])
        separate = [[update for _, update in part] for before, part in parts if before]
        out[replica] = [_one(number, part) for number, part in enumerate(separate, 1)]
    return out


def _one(number: int, parts: list[WeightUpdate]) -> Update:
    names = [part.version for part in parts if part.version]
    return Update(
        number=number,
        time_s=parts[-1].time_s,
        models=tuple(sorted({part.model for part in parts})),
        version=names[-1] if names else None,
    )

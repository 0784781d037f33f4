"""Updates of the served weights are those between rounds, whatever processes noted of them."""

import numpy as np

from driftscope.analysis.query.weight_updates import noted_updates, served_updates
from driftscope.trace.status import DRAFTER, Status, WeightUpdate


def _status(source: str, *noted: WeightUpdate) -> Status:
    return Status(source=source, closed=True, flushed_s=1.0, weights=noted)


def test_what_is_noted_between_two_rounds_is_one_update() -> None:
    worker = _status(
        "worker0-1",
        WeightUpdate(time_s=1.0),  # before the first round: the run started with these
        WeightUpdate(time_s=10.0),
        WeightUpdate(time_s=12.0, model=DRAFTER),
        WeightUpdate(time_s=20.0),
    )
    core = _status("engine0-2", WeightUpdate(time_s=12.5, version="step-1"))
    other_rank = _status("worker1-3", WeightUpdate(time_s=10.2), WeightUpdate(time_s=15.0))
    noted = noted_updates([worker, core, other_rank])
    rounds = np.array([5.0, 9.0, 14.0, 16.0, 30.0])
    first, second = served_updates(noted, {0: rounds})[0]
    assert (first.number, first.time_s, first.version) == (1, 12.5, "step-1")
    assert first.models == (DRAFTER, "target") and first.name == "update 1 (step-1)"
    assert (second.number, second.time_s, second.name) == (2, 20.0, "update 2")


def test_each_replica_has_its_own_updates() -> None:
    statuses = [
        _status(f"worker0.dp{replica}-{replica}", WeightUpdate(time_s=10.0 + replica))
        for replica in range(2)
    ]
    served = served_updates(noted_updates(statuses), {0: np.array([1.0]), 1: np.array([])})
    assert [update.time_s for update in served[0]] == [10.0] and served[1] == []

"""Unusual runs that strain a command: recorded ones, and simulated ones that allow few conclusions.

`ODD` has one writer per name; `RECORDED` names the run directories that are part of the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from support.analyses import client_row, write_replay, written
from support.runs import START_S, Spec, rows, verify, write_run
from support.simulate import Cost, Prompts, Truth

from driftscope.trace.manifest import MANIFEST
from driftscope.trace.records import DraftRow, RequestRow, ResourceRow, Row, StepRow
from driftscope.vocabulary import Ended

ROOT = Path(__file__).parents[2]
RECORDED = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for folder in ("tests", "reports/gallery/traces", "examples")
    for path in (ROOT / folder).rglob(MANIFEST)
)
"""Every run directory that is part of the sources."""


def _world(world: Spec | Truth) -> Callable[[Path], Path]:
    return lambda run: written(run, world)


def _without(*kinds: type[Row]) -> Callable[[Path], Path]:
    """Return a writer of the usual run without the rows of these records."""
    return lambda run: write_run(
        run, None, [row for row in rows(Spec()) if not isinstance(row, kinds)]
    )


def _nothing(run: Path) -> Path:
    return write_run(run, None, [row for row in rows(Spec()) if isinstance(row, ResourceRow)])


def _one_heavy(run: Path) -> Path:
    """Write a run of one request with 400 rounds and two with one round each."""
    alone = list(rows(Spec(requests=1, rounds=400)))
    (whole,) = (row for row in alone if isinstance(row, RequestRow))
    begin = START_S + 0.1
    short: list[Row] = []
    for n, accepted in ((1, 2), (2, 0)):
        own = {"prompt_digest": f"{n:016x}", "conversation": f"{n:016x}"}
        short.append(verify(n, 900 + n, begin, 99, 4, accepted))
        short.append(replace(whole, request=f"req-{n}", arrival_s=begin, time_s=begin, **own))
    return write_run(run, None, [*alone, *short])


def _one_round(run: Path) -> Path:
    return write_run(run, None, [verify(0, 1, START_S, 99, 4, 2)])


def _not_a_number(run: Path) -> Path:
    """Write a run in which every other chain has values that are not finite."""
    return write_run(
        run,
        None,
        [
            _spoilt(row) if row.step % 2 else row
            for row in rows(Spec())
            if not isinstance(row, RequestRow | ResourceRow)
        ],
    )


def _spoilt(row: Row) -> Row:
    if not isinstance(row, DraftRow):
        return row
    return replace(row, fed_rms=[float("nan"), float("inf"), 1.0, 0.0], top1=[float("nan")] * 4)


def _still(run: Path) -> Path:
    """Write a run in which every step took no time, as with a stopped clock."""
    return write_run(
        run,
        None,
        [
            replace(row, step_s=0.0, draft_s=0.0, time_s=START_S)
            if isinstance(row, StepRow)
            else row
            for row in rows(Spec())
        ],
    )


def _replay(run: Path) -> Path:
    return write_replay(run, [client_row(n) for n in range(6)])


def _unanswered(run: Path) -> Path:
    silent = dict.fromkeys(("ttft_s", "tpot_s", "e2e_s", "output_tokens", "verified", "accepted"))
    return write_replay(run, [client_row(n, ended=Ended.TIMEOUT, **silent) for n in range(3)])


TWO = (Prompts(label="chat"), Prompts(label="code", tokens=(500, 4000), shift=-1.0))
ODD: dict[str, Callable[[Path], Path]] = {
    "usual": _world(Spec()),
    "killed": lambda run: write_run(run, closed=False),
    "one-request": _world(Spec(requests=1)),
    "one-request-with-all-the-weight": _one_heavy,
    "two-requests": _world(Spec(requests=2)),
    "one-round": _one_round,
    "no-round": _nothing,
    "no-request-rows": _without(RequestRow),
    "no-step-rows": _without(StepRow),
    "no-draft-rows": _without(DraftRow),
    "only-verify-rows": _without(DraftRow, StepRow, RequestRow, ResourceRow),
    "nothing-accepted": _world(Spec(conditional=(0.0,) * 4)),
    "all-accepted": _world(Spec(conditional=(1.0,) * 4)),
    "one-request-nothing-accepted": _world(Spec(requests=1, conditional=(0.0,) * 4)),
    "k-1": _world(Spec(k=1, conditional=(0.7,))),
    "k-1-nothing-accepted": _world(Spec(k=1, conditional=(0.0,))),
    "no-attention": _world(Spec(heads=0)),
    "no-sink": _world(Spec(sink_slots=(), sink_source="found")),
    "no-growth": _world(Spec(growth=1.0, self_last=0.0, sink=(0.0, 0.0))),
    "undrafted": _world(Spec(undrafted=("k_zero", "structured_output", "preempted", None))),
    "not-a-number": _not_a_number,
    "stopped-clock": _still,
    "two-ranks-two-replicas": _world(Spec(tensor_parallel=2, data_parallel=2)),
    "batches": _world(Truth(requests=60, rounds=30, batches=(1, 4, 8), prompts=TWO)),
    "batches-nothing-accepted": _world(
        Truth(requests=60, rounds=30, batches=(1, 4), conditional=(1e-12,) * 7)
    ),
    "one-batch-of-noise": _world(Truth(requests=4, rounds=60, batches=(2,), between=3.0)),
    "times-of-noise": _world(Truth(requests=60, rounds=30, batches=(1, 2), cost=Cost(noise=2.0))),
    "several-k": _world(Truth(requests=60, rounds=30, batches=(1, 8), k_by_batch=((2, 7), (8, 3)))),
    "replay": _replay,
    "replay-unanswered": _unanswered,
}

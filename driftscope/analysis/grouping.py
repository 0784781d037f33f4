"""Puts a run's rounds into groups by circumstance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.analysis import measure
from driftscope.analysis.columns import Codes, floats, ints
from driftscope.analysis.groups import LOOP_ROUNDS, QUARTERS, Group, Groups
from driftscope.analysis.join import accepted_of_chains
from driftscope.analysis.requests import UNFINISHED, Requests
from driftscope.analysis.rounds import Rounds
from driftscope.trace.reader import Trace
from driftscope.trace.records import Execution, UndraftedReason

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds:
    """[rounds] in order of request and time."""

    request: Codes
    time_s: NDArray[np.float64]
    context: NDArray[np.int64]
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]


def groups_of(trace: Trace, requests: Requests) -> Groups:
    """The groups of `trace`."""
    k, rounds = trace.manifest.k, _rounds(trace, requests)
    quarter = _quarters(rounds, len(requests))
    labels = np.array([str(label) for label in requests.labels])[rounds.request]
    looping, long_enough = _loops(rounds, requests, k)
    return Groups(
        context=tuple(_by_context(rounds, k)),
        label=tuple(_by_value(rounds, labels, k)),
        time=tuple(_by_value(rounds, quarter, k)),
        execution=_by_execution(trace, requests, k),
        structured=_by_structure(trace, requests, rounds, k),
        duration_s=float(np.ptp(rounds.time_s)) if len(rounds.time_s) else 0.0,
        looping=looping,
        long_enough=long_enough,
        shares=_shares(labels, quarter),
    )


def _rounds(trace: Trace, requests: Requests) -> _Rounds:
    drafted = ints(trace.verify, "drafted")
    request, time_s = requests.codes(trace.verify), floats(trace.verify, "time_s")
    kept = np.lexsort((time_s, request))
    kept = kept[drafted[kept] > 0]
    return _Rounds(
        request=request[kept],
        time_s=time_s[kept],
        context=ints(trace.verify, "position")[kept] + 1,
        drafted=drafted[kept],
        accepted=ints(trace.verify, "accepted")[kept],
    )


def _group(name: str, rounds: _Rounds, mine: NDArray[np.bool_], k: int) -> Group:
    return _measured(name, rounds.request[mine], rounds.drafted[mine], rounds.accepted[mine], k)


def _measured(
    name: str, request: Codes, drafted: NDArray[np.int64], accepted: NDArray[np.int64], k: int
) -> Group:
    none = np.empty(0, dtype=np.object_)
    rounds = Rounds(
        request=request, drafted=drafted, accepted=accepted, undrafted_request=_NONE, reasons=none
    )
    found = measure.acceptance(rounds, k, intervals=True)
    return Group(
        name=name,
        requests=len(np.unique(request)),
        rounds=len(request),
        mean_length=found.mean_length,
        mean_length_interval=found.mean_length_interval,
        marginal=found.marginal,
        marginal_interval=found.marginal_interval,
    )


def _by_context(rounds: _Rounds, k: int) -> Iterator[Group]:
    power = np.floor(np.log2(np.maximum(rounds.context, 1))).astype(np.int64)
    for each in np.unique(power).tolist():
        yield _group(f"{2**each:,} to {2 ** (each + 1) - 1:,} tokens", rounds, power == each, k)


def _by_value(rounds: _Rounds, value: NDArray[np.str_], k: int) -> Iterator[Group]:
    for each in np.unique(value).tolist():
        yield _group(each, rounds, value == each, k)


def _quarters(rounds: _Rounds, requests: int) -> NDArray[np.str_]:
    """[rounds] part of the run, named so that the names sort in time."""
    start = np.full(requests, np.inf)
    np.minimum.at(start, rounds.request, rounds.time_s)
    begin = start[rounds.request]
    if not len(begin):
        return np.empty(0, dtype=np.str_)
    lasted = max(float(np.ptp(begin)), np.finfo(np.float64).tiny)
    part = np.minimum(((begin - begin.min()) / lasted * QUARTERS).astype(int), QUARTERS - 1)
    names = np.array([f"quarter {n + 1}" for n in range(QUARTERS)])
    return np.asarray(names[part])


def _shares(labels: NDArray[np.str_], quarter: NDArray[np.str_]) -> dict[str, tuple[float, ...]]:
    parts = np.unique(quarter)
    return {
        label: tuple(float((labels[quarter == part] == label).mean()) for part in parts)
        for label in np.unique(labels).tolist()
    }


def _by_execution(trace: Trace, requests: Requests, k: int) -> tuple[Group, ...]:
    names = np.asarray(trace.draft.column("execution").to_pylist(), dtype=np.object_)
    if len(set(names.tolist()) - {Execution.UNSAID}) < 2:
        return ()
    accepted = accepted_of_chains(trace, requests)
    request, known = requests.codes(trace.draft), np.isfinite(accepted)
    drafted = ints(trace.draft, "k")
    groups = []
    for name in sorted(set(names.tolist()) - {Execution.UNSAID}):
        mine = known & (names == name)
        if mine.any():
            taken = accepted[mine].astype(np.int64)
            groups.append(_measured(name, request[mine], drafted[mine], taken, k))
    return tuple(groups)


def _by_structure(trace: Trace, requests: Requests, rounds: _Rounds, k: int) -> tuple[Group, ...]:
    lost = pc.equal(trace.verify.column("reason"), UndraftedReason.STRUCTURED_OUTPUT)
    lost = np.asarray(pc.fill_null(lost, False).to_numpy(), dtype=np.bool_)
    if not lost.any():
        return ()
    touched = np.zeros(len(requests), dtype=np.bool_)
    touched[requests.codes(trace.verify)[lost]] = True
    mine = touched[rounds.request]
    both = (("that lost drafts to a grammar", mine), ("the others", ~mine))
    return tuple(_group(name, rounds, some, k) for name, some in both if some.any())


def _loops(rounds: _Rounds, requests: Requests, k: int) -> tuple[int, int]:
    """Finished requests that end in LOOP_ROUNDS rounds accepted whole, and those long enough."""
    if not len(rounds.request):
        return 0, 0
    starts = np.flatnonzero(np.append(True, np.diff(rounds.request) != 0))
    ends = np.append(starts[1:], len(rounds.request))
    finished = requests.labels[rounds.request[starts]] != UNFINISHED
    enough = finished & (ends - starts >= LOOP_ROUNDS)
    whole = (rounds.accepted >= np.minimum(rounds.drafted, k)) & (rounds.drafted == k)
    run = np.append(0, np.cumsum(whole))
    tail = run[ends] - run[np.maximum(ends - LOOP_ROUNDS, starts)]
    return int((enough & (tail == LOOP_ROUNDS)).sum()), int(enough.sum())

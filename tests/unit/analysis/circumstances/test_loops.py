"""Requests that end in a loop, and requests that a good drafter accepts whole by chance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.simulate import Truth, simulate

from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import Trace, read_trace

GOOD = Truth(k=1, conditional=(0.92,), requests=80, rounds=60, between=0.8)
LOOP_ROUNDS = 25


def _loops(trace: Trace) -> bool:
    found = analyze(Inputs(sources=[trace], labels=["run"])).findings
    return "looks_like_a_loop" in {each.id for each in found}


def _looping(trace: Trace, share: float) -> Trace:
    """Return the trace with the last rounds of some requests accepted whole."""
    rows = trace.verify.sort_by([("request", "ascending"), ("time_s", "ascending")])
    names = rows["request"].to_numpy(zero_copy_only=False)
    accepted = rows["accepted"].to_numpy().copy()
    drafted = rows["drafted"].to_numpy()
    requests = np.unique(names)
    for name in requests[: int(share * len(requests))]:
        last = np.flatnonzero(names == name)[-LOOP_ROUNDS:]
        accepted[last] = drafted[last]
    at = rows.schema.get_field_index("accepted")
    column = pa.array(accepted, rows.schema.field(at).type)
    return replace(trace, verify=rows.set_column(at, rows.schema.field(at), column))


@pytest.mark.parametrize("seed", range(6))
def test_a_good_drafter_of_one_token_does_not_loop(seed: int, tmp_path: Path) -> None:
    trace = read_trace(simulate(tmp_path / "run", replace(GOOD, seed=seed)))
    assert not _loops(trace)


@pytest.mark.parametrize("conditional", [(0.6,), (0.6, 0.6, 0.6)])
def test_a_loop_is_found_at_every_k(conditional: tuple[float, ...], tmp_path: Path) -> None:
    truth = replace(GOOD, k=len(conditional), conditional=conditional)
    trace = read_trace(simulate(tmp_path / "run", truth))
    assert not _loops(trace)
    assert _loops(_looping(trace, 0.2))

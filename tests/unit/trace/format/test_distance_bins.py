"""Masses by distance: their bins, and what readers refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.runs import Spec, manifest, rows, write_rows

from driftscope.analysis.query.record_views import open_run
from driftscope.errors import DamagedTraceError
from driftscope.trace.manifest import MANIFEST, read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.records import DraftRow, Row, edges_of, longest_of, reach_of

SPEC = Spec(requests=3, rounds=2, layers=2, windowed=(1,), distance_every=2)
BINS = len(edges_of(SPEC.k))
EVERY_READER = pytest.mark.parametrize(
    ("read", "closed"), [(read_trace, False), (read_trace, True), (open_run, True)]
)
Change = Callable[[np.ndarray], None]


@pytest.mark.parametrize(
    ("k", "edges"),
    [
        (1, (0, 1, 2, 4, 8)),
        (3, (0, 1, 2, 3, 6, 12, 24)),
        (8, (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
    ],
)
def test_distances_a_chain_can_reach_are_single_and_then_bins_double(
    k: int, edges: tuple[int, ...]
) -> None:
    assert edges_of(k) == edges
    assert len(edges) == k + 4
    assert longest_of(len(edges)) == k
    assert reach_of(len(edges)) == edges[-1] == 8 * k


def _written(run: Path, change: Change | None = None, *, closed: bool = True) -> Path:
    """Write a run whose masses by distance, [k, layers, bins], have gone through `change`."""
    run.mkdir()
    (run / MANIFEST).write_text(manifest(SPEC).to_json())
    content: list[Row] = []
    for row in rows(SPEC):
        if change and isinstance(row, DraftRow) and row.distance_mass is not None:
            masses = np.array(row.distance_mass).reshape(SPEC.k, SPEC.layers, BINS)
            change(masses)
            row = replace(row, distance_mass=masses.ravel().tolist())
        content.append(row)
    write_rows(run, "worker0-1", content, closed=closed)
    return run


@EVERY_READER
def test_masses_by_distance_are_read_where_they_were_recorded(
    tmp_path: Path, read: Callable[[Path], object], closed: bool
) -> None:
    run = _written(tmp_path / "run", closed=closed)
    read(run)
    trace = read_trace(run)
    assert (trace.manifest.distance_every, trace.manifest.distance_edges) == (2, edges_of(SPEC.k))
    lists = trace.draft.column("distance_mass").to_pylist()
    carries = [masses is not None for masses in lists]
    assert carries == [step % 2 == 1 for step in trace.draft.column("step").to_pylist()]
    recorded = np.array([masses for masses in lists if masses is not None])
    assert recorded.shape[1] == SPEC.k * SPEC.layers * BINS


@EVERY_READER
def test_depths_without_masses_are_accepted(
    tmp_path: Path, read: Callable[[Path], object], closed: bool
) -> None:
    def void(masses: np.ndarray) -> None:
        masses[-1] = np.nan

    read(_written(tmp_path / "run", void, closed=closed))


def _too_much(masses: np.ndarray) -> None:
    masses[1, 0, 2] += 0.01


def _negative(masses: np.ndarray) -> None:
    masses[0, 1, 0] -= 0.3
    masses[0, 1, 1] += 0.3


@EVERY_READER
@pytest.mark.parametrize(
    ("change", "words"),
    [(_too_much, "sum to a number other than 1"), (_negative, "distance_mass is ")],
)
def test_masses_that_no_recorder_writes_are_refused(
    tmp_path: Path, read: Callable[[Path], object], closed: bool, change: Change, words: str
) -> None:
    with pytest.raises(DamagedTraceError, match=words):
        read(_written(tmp_path / "run", change, closed=closed))


def test_a_depth_with_only_some_of_its_bins_is_refused(tmp_path: Path) -> None:
    def torn(masses: np.ndarray) -> None:
        masses[1, 0, 2] = np.nan

    with pytest.raises(DamagedTraceError, match="not a number in some bins"):
        read_trace(_written(tmp_path / "run", torn))


@EVERY_READER
def test_another_number_of_bins_than_the_manifest_states_is_refused(
    tmp_path: Path, read: Callable[[Path], object], closed: bool
) -> None:
    run = _written(tmp_path / "run", closed=closed)
    other = replace(manifest(SPEC), distance_edges=edges_of(SPEC.k + 1))
    (run / MANIFEST).write_text(other.to_json())
    with pytest.raises(DamagedTraceError, match=f"times {BINS + 1} bins long"):
        read(run)


@pytest.mark.parametrize(
    ("edges", "every"), [((0, 1, 2), 1), ((0, 1, 2, 4, 8), 0), ((), 8), ((0, 2, 1, 4, 8), 1)]
)
def test_a_manifest_with_impossible_bins_is_refused(
    tmp_path: Path, edges: tuple[int, ...], every: int
) -> None:
    raw = json.loads(manifest(SPEC).to_json())
    raw |= {"distance_edges": edges, "distance_every": every}
    (tmp_path / MANIFEST).write_text(json.dumps(raw))
    with pytest.raises(DamagedTraceError, match="distance_e"):
        read_manifest(tmp_path)

"""Size of a recorded round on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import noisy_rows

from driftscope.trace.segments import segments
from driftscope.trace.writer_files import RecordFiles
from driftscope_probes.settings import DEFAULT_DISTANCE_EVERY

SEALED_BYTES_PER_ROUND = 160
"""With K = 7, one chain per step, without masses by distance: the draft, verify and step files
together."""
SEALED_BYTES_WITH_DISTANCES = 190
"""Bytes of a round with K = 8 and masses by distance at the default interval."""
ROUNDS = 4000
RECORDS = ("draft", "verify", "step")


def sealed_bytes(
    run: Path, *, norm_output: bool, k: int = 7, distance_every: int = 0, rounds: int = ROUNDS
) -> dict[str, float]:
    """Bytes per round by record, sealed, of a run recorded into the directory `run`."""
    files = RecordFiles(run, "worker0-1", 1 << 30)
    files.append(noisy_rows(rounds, k, norm_output=norm_output, distance_every=distance_every))
    files.seal()
    return {
        record: sum(path.stat().st_size for path in segments(run, record)) / rounds
        for record in RECORDS
    }


@pytest.mark.parametrize("norm_output", [True, False], ids=["EAGLE-3.1", "EAGLE-3"])
def test_a_sealed_round_is_small(tmp_path: Path, norm_output: bool) -> None:
    assert sum(sealed_bytes(tmp_path, norm_output=norm_output).values()) <= SEALED_BYTES_PER_ROUND


@pytest.mark.parametrize("norm_output", [True, False], ids=["EAGLE-3.1", "EAGLE-3"])
def test_a_sealed_round_with_masses_by_distance_is_small(tmp_path: Path, norm_output: bool) -> None:
    sizes = sealed_bytes(
        tmp_path, norm_output=norm_output, k=8, distance_every=DEFAULT_DISTANCE_EVERY
    )
    assert sum(sizes.values()) <= SEALED_BYTES_WITH_DISTANCES

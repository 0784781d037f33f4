"""Size of a recorded round on disk; `python tests/trace/test_size.py` prints it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from support.runs import noisy_rows

from driftscope.trace.format.segment import segments
from driftscope.trace.write.record_files import RecordFiles

SEALED_BYTES_PER_ROUND = 160
"""With K = 7, one chain per step: the draft, verify and step files together."""
ROUNDS = 4000
RECORDS = ("draft", "verify", "step")


def sealed_bytes(run: Path, *, norm_output: bool, rounds: int = ROUNDS) -> dict[str, float]:
    """Bytes per round by record, sealed, of a run recorded into the directory `run`."""
    files = RecordFiles(run, "worker0-1", 1 << 30)
    files.append(noisy_rows(rounds, norm_output=norm_output))
    files.seal()
    return {
        record: sum(path.stat().st_size for path in segments(run, record)) / rounds
        for record in RECORDS
    }


@pytest.mark.parametrize("norm_output", [True, False], ids=["EAGLE-3.1", "EAGLE-3"])
def test_a_sealed_round_is_small(tmp_path: Path, norm_output: bool) -> None:
    assert sum(sealed_bytes(tmp_path, norm_output=norm_output).values()) <= SEALED_BYTES_PER_ROUND


if __name__ == "__main__":
    for norm_output in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            found = sealed_bytes(Path(folder), norm_output=norm_output)
        parts = ", ".join(f"{record} {size:.1f}" for record, size in found.items())
        drafter = "EAGLE-3.1" if norm_output else "EAGLE-3"
        sys.stdout.write(f"{drafter}: {sum(found.values()):.1f} bytes per round ({parts})\n")

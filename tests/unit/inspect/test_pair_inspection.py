"""The exit code of two checkpoints is the worse one; accepting less is no error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.inspections import broken, pair

from driftscope.errors import EXIT_GATE_FAILED, EXIT_INTERRUPTED, EXIT_OK


def test_a_drafter_that_accepts_less_is_no_error(tmp_path: Path) -> None:
    assert pair(tmp_path).exit_code(strict=True) == EXIT_OK


def test_an_error_of_either_counts(tmp_path: Path) -> None:
    both, bad = pair(tmp_path), broken(tmp_path)
    assert replace(both, first=bad).exit_code(strict=False) == EXIT_GATE_FAILED
    assert replace(both, second=bad).exit_code(strict=False) == EXIT_GATE_FAILED


def test_ctrl_c_counts_more_than_an_error(tmp_path: Path) -> None:
    both = replace(pair(tmp_path), first=broken(tmp_path), stopped=True)
    assert both.exit_code(strict=False) == EXIT_INTERRUPTED

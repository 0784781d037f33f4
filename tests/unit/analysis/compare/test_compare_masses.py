"""Attention masses of two runs, at rounds that both verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.command import run_command
from support.simulate import Truth, simulate

from driftscope.analysis.compare import MassComparison
from driftscope.metrics.attention import GENERATED, PROMPT, SELF, SINK
from driftscope.pipeline import compare

TRUTH = Truth(k=3, requests=24, rounds=12, batches=(1,), sink=(0.3, 0.2), self_last=0.3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("masses") / "first", TRUTH)


def _masses(first: Path, second: Path) -> MassComparison:
    return compare(first, second, ("first", "second")).masses


def test_equal_runs_have_equal_masses(run: Path) -> None:
    compared = compare(run, run, ("first", "second"))
    assert compared.same_rounds
    assert {row.metric for row in compared.masses.differences} == {
        SINK.name,
        PROMPT.name,
        GENERATED.name,
        SELF.name,
    }
    assert {row.depth for row in compared.masses.differences} == {1, 3}
    assert not any(row.difference for row in compared.masses.differences)
    assert compared.masses.rounds[0] == compared.masses.rounds[1] > 0


def test_a_sink_that_is_lost_is_a_difference_at_its_depth_only(run: Path, tmp_path: Path) -> None:
    lost = simulate(tmp_path / "second", replace(TRUTH, sink=(0.3, 0.05)))
    rows = {(row.metric, row.depth): row for row in _masses(run, lost).differences}
    last = rows[SINK.name, 3]
    assert last.differs
    assert last.difference == pytest.approx(-0.15, abs=0.02)
    assert last.interval is not None
    assert last.interval.low < -0.15 < last.interval.high
    assert not rows[SINK.name, 1].differs


def test_chains_that_no_target_verified_count_in_neither_run(
    run: Path, edited: Callable[[Path], Path]
) -> None:
    """An engine that also records each request's last chain shows the same masses."""
    compared = _masses(run, edited(run))
    assert not any(row.difference for row in compared.differences)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[Path], Path]:
    """Return a function that adds, to a copy of a run, one chain a request far behind its text."""
    import shutil

    import pyarrow as pa
    import pyarrow.parquet as pq

    def make(run: Path) -> Path:
        copy = tmp_path / "copy"
        shutil.copytree(run, copy)
        files = list(copy.glob("draft-*.parquet"))
        assert files
        for path in files:
            table = pq.read_table(path)
            _, last = np.unique(table.column("request").to_numpy(False), return_index=True)
            more = table.take(pa.array(last))
            at = more.column_names.index("position")
            behind = pa.array([100_000] * more.num_rows, table.schema.field(at).type)
            more = more.set_column(at, table.schema.field(at), behind)
            pq.write_table(pa.concat_tables([table, more]), path)
        return copy

    return make


def test_the_command_says_over_how_many_rounds(run: Path, tmp_path: Path) -> None:
    same = simulate(tmp_path / "sub" / "first", TRUTH)
    result = run_command("compare", str(run), str(same))
    assert result.returncode == 0, result.stderr
    words = " ".join(result.stdout.split())
    assert "the runs accept the same" in words
    assert "Attention: no difference of a point at depths 1 and 3" in words
    assert "sub/first" in words, "runs of equal names are told apart by their folders"

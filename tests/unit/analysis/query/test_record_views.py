"""Runs that are queried where they lie."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from support.folders import folder_names
from support.runs import Spec, write_run
from support.simulate import Truth, simulate
from support.summaries import assert_same

from driftscope.analysis import closeup
from driftscope.analysis.figures import requests
from driftscope.analysis.figures.run_sums import collect
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import DamagedTraceError
from driftscope.json_report import to_json
from driftscope.pipeline import conclude, summarise
from driftscope.trace.reader import read_trace
from driftscope.trace.segments import DERIVED_KEY, RELATIVE_ERROR

pytestmark = pytest.mark.slow


ALIKE = 1e-6
"""Float32's own precision: masses that follow from others are restored in float64."""


def _both(path: Path) -> tuple[RunSummary, RunSummary]:
    return summarise(open_run(path), "run"), summarise(read_trace(path), "run")


@pytest.mark.parametrize(
    "spec",
    [
        Spec(labels=("chat", None), undrafted=("k_zero", "no_draft"), chunked=2),
        Spec(layers=2, windowed=(1,), sink=(0.4, 0.3), norm_output=True, every=3),
        Spec(tensor_parallel=2, data_parallel=2, requests=6),
        Spec(heads=0),
    ],
    ids=["plain", "windowed", "ranks", "no attention"],
)
def test_files_give_the_same_figures_as_rows_in_memory(tmp_path: Path, spec: Spec) -> None:
    there, read = _both(write_run(tmp_path / "run", spec))
    assert_same(there, read, ALIKE)


def test_replicas_and_lists_that_files_leave_out(tmp_path: Path) -> None:
    path = simulate(tmp_path / "run", Truth(requests=60, replicas=2, layers=2))
    file = next(path.glob("draft-*.parquet"))
    left_out = json.loads(pq.read_schema(file).metadata[DERIVED_KEY])
    assert set(left_out) == {"fed_rms", "in_rms", "generated_mass"}
    there, read = _both(path)
    assert_same(there, read, ALIKE)
    assert there.requests == 60


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run under a plain name, and all its figures."""
    path = write_run(
        tmp_path_factory.mktemp("named") / "plain", Spec(requests=6, labels=("a", "b"))
    )
    return path, _figures(path)


def _figures(path: Path) -> str:
    return to_json(conclude([summarise(open_run(path), "run")]))


@settings(max_examples=10)
@given(name=folder_names())
@example(name="accepted=8")
@example(name="replica=3")
@example(name="time_s=1")
@example(name="a[X]b")
@example(name="\udcff")
def test_no_figure_depends_on_what_a_folder_is_called(plain: tuple[Path, str], name: str) -> None:
    path, figures = plain
    with tempfile.TemporaryDirectory() as base:
        write_run(Path(base) / "aXb" / "run", Spec(requests=4, growth=1.0))
        shutil.copytree(path, Path(base) / name / "run", dirs_exist_ok=True)
        assert _figures(Path(base) / name / "run") == figures


def test_columns_that_differ_in_case_only_are_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", Spec(requests=4))
    file = next(path.glob("verify-*.parquet"))
    table = pq.read_table(file)
    more = table.append_column("Accepted", table.column("drafted"))
    pq.write_table(more.replace_schema_metadata(table.schema.metadata), file)
    with pytest.raises(DamagedTraceError, match=f"{file.name}: has 2 columns named 'accepted'"):
        open_run(path)


def test_a_run_that_goes_on_is_read_to_its_last_batch(tmp_path: Path) -> None:
    there, read = _both(simulate(tmp_path / "run", Truth(requests=20), sealed=False))
    assert_same(there, read, ALIKE)
    assert there.problems


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    file = next(path.glob("verify-*.parquet"))
    file.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DamagedTraceError, match=file.name):
        open_run(path)


def test_requests_beyond_the_bound_are_put_together_within_their_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured values do not change; intervals are over groups."""
    path = write_run(tmp_path / "run", Spec(labels=("a", "b"), odd=2.0))
    apart = summarise(open_run(path), "run")
    monkeypatch.setattr(requests, "MAX_CLUSTERS", 30)
    together = collect(open_run(path))
    assert len(np.unique(together.cells)) == 20
    found = summarise(together, "run")
    assert found.hidden.fed_rms == pytest.approx(apart.hidden.fed_rms)
    assert [s.growth for s in found.segments] == pytest.approx([s.growth for s in apart.segments])
    assert found.hidden.growth_interval is not None


def test_requests_are_opened_alike_in_a_run_of_many_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There they are looked for one by one, where their steps are."""
    path = simulate(tmp_path / "run", Truth(requests=40, rounds=12))
    usual = summarise(open_run(path), "run").closeup
    monkeypatch.setattr(closeup, "ONE_BY_ONE", 0)
    assert summarise(open_run(path), "run").closeup == usual


def test_numbers_of_a_file_are_rounded_no_further_than_it_says(tmp_path: Path) -> None:
    truth = Truth(requests=30, spread=0.0)
    run = summarise(open_run(simulate(tmp_path / "run", truth)), "run")
    assert run.hidden.fed_rms == pytest.approx(truth.states(), rel=2 * RELATIVE_ERROR)


def _without_values(run: Path, *names: str) -> Path:
    """Empty columns of the run's chains, as a mutation of its file did; return the run."""
    file = next(run.glob("draft-*.parquet"))
    table = pq.read_table(file)
    for name in {*names} & {*table.column_names}:
        at = table.column_names.index(name)
        column = pa.nulls(len(table), table.schema.field(at).type)
        table = table.set_column(at, table.schema.field(at), column)
    pq.write_table(table, file)
    for status in run.glob("status-*"):
        status.unlink()  # it has the checksum of the file as it was
    return run


def test_chains_without_the_masses_that_others_are_made_from_are_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    _without_values(run, "sink_mass", "prompt_mass", "self_mass", "null_mass")
    with pytest.raises(DamagedTraceError, match="lacks columns that others are made from"):
        summarise(open_run(run), "run")

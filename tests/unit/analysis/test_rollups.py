"""Rollups: what a run's export holds, what commands make of a folder of them, and bad ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.command import assert_fails, run_command
from support.runs import Spec, write_run
from verification.rollups import table_of

from benchmarks.calibration.fleets import A_FIFTH, Fleet
from driftscope.pipeline import Inputs, measure
from driftscope.trace.reader import read_trace
from driftscope.trace.rollups import SCHEMA, write_rollups


def _changed(name: str, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        column = pa.array([value] * rows.num_rows, SCHEMA.field(name).type)
        return rows.set_column(rows.schema.get_field_index(name), name, column)

    return change


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rollups") / "pod-a"
    return write_run(path, Spec(labels=("chat", "code"), undrafted=("k_zero",)))


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a healthy day, one with a sick replica, and one with a replica that
    serves other labels; of 6 replicas, 2 hours each."""
    folder = tmp_path_factory.mktemp("fleets")
    for name, truth in {
        "healthy": Fleet(),
        "sick": Fleet(sick=A_FIFTH),
        "json": Fleet(sick_json=0.9),
    }.items():
        for replica in range(6):
            table = table_of(truth, replica, 0, 120)
            write_rollups(folder / name, f"pod-{replica}", table)
            if name == "json":
                for hidden in (("label",), ("label", "region")):
                    table = _changed(hidden[-1], "")(table)
                    write_rollups(folder / f"no {' or '.join(hidden)}", f"pod-{replica}", table)
    return folder


def test_the_sums_are_those_of_the_rows_and_a_second_export_replaces_the_first(
    run: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        done = run_command("export", run, "--format", "rollup", "-o", tmp_path)
        assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("*.parquet")
    assert str(file) in done.stderr
    rows = pq.read_table(file)
    assert rows.schema.equals(SCHEMA)
    assert set(rows.column("replica").to_pylist()) == {"pod-a"}
    assert set(rows.column("label").to_pylist()) == {"chat", "code"}
    verify = read_trace(run).verify
    verified, accepted = (verify.column(name).to_numpy() for name in ("verified", "accepted"))
    for depth in range(1, int(verified.max()) + 1):
        at = rows.filter(pc.equal(rows.column("depth"), depth))
        assert pc.sum(at.column("rounds")).as_py() == (verified >= depth).sum()
        assert pc.sum(at.column("accepted")).as_py() == (accepted >= depth).sum()


def test_the_report_has_the_length_of_the_run_and_says_what_needs_rows(
    run: Path, tmp_path: Path
) -> None:
    run_command("export", run, "--format", "rollup", "-o", tmp_path / "day", "--label", "a")
    done = run_command("analyze", tmp_path / "day", "--json", "-o", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    (replay,) = json.loads(done.stdout)["replays"]
    (own,) = measure(Inputs(sources=[run], labels=["a"])).runs
    assert replay["cells"][0]["condition"] == "a"
    assert replay["cells"][0]["mean_length"] == pytest.approx(own.acceptance.mean_length)
    assert "need rows; run `driftscope analyze RUN`" in done.stderr


def _export(*more: object) -> tuple[object, ...]:
    return ("export", "RUN", "--format", *more)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (_export("rollup", "-o", "-"), "give a folder or a URI"),
        (_export("speculation-profile", "-o", "x", "--label", "a"), "names the replica in rollups"),
        (("analyze", "FOLDER", "--where", "k = 4"), "rollups have no rows to choose from"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(
    run: Path, fleets: Path, tmp_path: Path, words: tuple[object, ...], said: str
) -> None:
    names = {"RUN": run, "FOLDER": fleets / "healthy"}
    done = run_command(*(names.get(str(word), word) for word in words), cwd=tmp_path)
    assert_fails(done, 2, said)


@pytest.mark.parametrize(
    ("day", "code"),
    [("healthy", 0), ("sick", 3), ("json", 0), ("no label", 0), ("no label or region", 3)],
)
def test_a_replica_that_accepts_less_is_found_and_one_with_another_mix_is_not(
    fleets: Path, day: str, code: int
) -> None:
    done = run_command("check", fleets / day, "--fail-on", "fleet_replica_differs")
    assert done.returncode == code, done.stdout + done.stderr


def test_replicas_are_ranked_and_the_finding_names_the_worst(fleets: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = run_command("analyze", fleets / "sick", "--format", "json", "-o", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    ranked = [c for c in report["replays"][0]["cells"] if c["length_ratio"] is not None]
    values = [cell["length_ratio"]["value"] for cell in ranked]
    assert (ranked[0]["condition"], len(ranked)) == ("pod-0", 6)
    assert values == sorted(values)
    (finding,) = (f for f in report["findings"] if f["id"] == "fleet_replica_differs")
    assert finding["statement"].startswith("pod-0 accepts 8")
    assert finding["evidence"]["kept"] == pytest.approx(0.81, abs=0.04)


def test_two_days_are_compared_on_the_kinds_of_rounds_that_both_have(fleets: Path) -> None:
    def ratio(day: str) -> dict[str, Any]:
        done = run_command("compare", fleets / "healthy", fleets / day, "--json")
        assert done.returncode == 0, done.stderr
        (pair,) = json.loads(done.stdout)["replays_compared"]
        return dict(pair["length_ratio"])

    sick, json_day = ratio("sick"), ratio("json")
    assert sick["value"] < 1.0
    assert json_day["interval"]["low"] < 1.0 < json_day["interval"]["high"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_changed("rounds", -5), "rounds from -5 to -5, outside 1"),
        (_changed("accepted", -1), "accepted from -1"),
        (_changed("accepted", 1 << 29), "accepted is above the rounds"),
        (_changed("depth", 0), "depth from 0"),
        (_changed("depth", 1 << 40), "outside 1 to"),
        (_changed("rounds", 1 << 62), "outside 1 to"),
        (_changed("context", 0), "context from 0"),
        (_changed("minute", -1), "minute from -1"),
        (_changed("label", None), "column 'label' has a value missing"),
        (_changed("label", "x" * 70_000), "a name is too long"),
        (lambda rows: rows.drop_columns(["replica"]), "column 'replica' is missing"),
        (lambda rows: rows.slice(0, 0), "it has no rows"),
        (
            lambda rows: rows.set_column(0, "minute", rows.column("minute").cast(pa.int64())),
            "column 'minute' is missing or of another type",
        ),
    ],
)
def test_a_file_that_no_export_writes_is_one_clear_error(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    rows = change(table_of(Fleet(), 0, 0, 2))
    pq.write_table(rows, tmp_path / "a.rollup.parquet")
    done = run_command("analyze", tmp_path, cwd=tmp_path)
    assert_fails(done, 1, "a.rollup.parquet: is no rollup", said)


@pytest.mark.parametrize("kept", [0, 7, 400, -20])
def test_a_file_that_is_cut_off_is_one_clear_error(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "a.rollup.parquet"
    pq.write_table(table_of(Fleet(), 0, 0, 2), file)
    file.write_bytes(file.read_bytes()[:kept])
    assert_fails(run_command("check", tmp_path, "--fail-on", "high"), 1, "a.rollup.parquet")


def test_a_rollup_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_rollups(tmp_path / folder, "pod-0", table_of(Fleet(), 0, 0, 2))
    done = run_command("analyze", tmp_path, cwd=tmp_path)
    assert_fails(done, 1, "which would count twice")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nothing://x/y", "Unrecognized filesystem type"),
        ("file:///no/such/folder", "file:///no/such/folder: the folder or object store cannot"),
    ],
)
def test_a_place_that_cannot_be_reached_is_one_clear_error(
    tmp_path: Path, place: str, said: str
) -> None:
    assert_fails(run_command("analyze", place, cwd=tmp_path), 1, said)

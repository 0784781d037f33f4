"""`driftscope ls`, `rm`, `prune`, and `latest` in place of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.command import Driftscope
from support.runs import Spec, write_run

from driftscope import pipeline
from driftscope.trace.manifest import MANIFEST, read_manifest

pytestmark = pytest.mark.process
SPEC = Spec(requests=40, drafter="models/tiny-eagle3")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs in the folder that `serve` writes to, the second one newer."""
    folder = tmp_path / "driftscope-runs"
    write_run(folder / "first", SPEC)
    write_run(folder / "second", replace(SPEC, requests=50))
    manifest = replace(read_manifest(folder / "second"), created_s=1_760_000_000.0)
    (folder / "second" / MANIFEST).write_text(manifest.to_json())
    return folder


def test_runs_are_listed_newest_first_with_their_main_finding(
    driftscope: Driftscope, runs: Path
) -> None:
    done = driftscope("ls")
    assert done.returncode == 0, done.stderr
    head, newest, path, older, _ = done.stdout.splitlines()
    assert head.split() == ["started", "target", "drafter", "K", "rounds", "state", "size"]
    assert "tiny-target" in newest and "tiny-eagle3" in newest and "closed" in newest
    assert " 4 " in newest and " 500 " in newest and " 400 " in older
    name, _, finding = path.strip().partition("  ")
    assert name == "driftscope-runs/second"
    assert finding.partition(":")[0] in ("high", "medium"), "what the first screen is about"
    assert max(map(len, (head, newest, older))) <= 80
    content = json.loads(driftscope("ls", runs, "--json", "--findings", "0").stdout)
    assert (content["kind"], content["schema_version"]) == ("runs", 1)
    newest, older = content["runs"]
    assert [Path(run["path"]).name for run in (newest, older)] == ["second", "first"]
    assert (newest["rounds"], newest["k"], newest["state"]) == (500, 4, "closed")
    assert newest["finding"] is None and newest["bytes"] > 0


def test_no_runs_are_no_error(driftscope: Driftscope) -> None:
    done = driftscope("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "driftscope serve" in done.stderr


def test_latest_is_taken_wherever_a_run_is(driftscope: Driftscope, runs: Path) -> None:
    compared = json.loads(driftscope("compare", runs / "first", "latest", "--json").stdout)
    assert (compared["first"], compared["second"]) == ("first", "second")
    status = json.loads(driftscope("probe", "status", "latest", "--json").stdout)
    assert status["run"] == "driftscope-runs/second"
    checked = driftscope("check", "driftscope-runs/latest", "--fail-on", "acceptance.k < 0")
    assert checked.returncode == 2, "the rule is wrong, the run is found"
    assert json.loads(driftscope("watch", "latest", "--once", "--json").stdout)["rounds"] == 500


def test_a_parent_folder_offers_its_runs(driftscope: Driftscope, runs: Path) -> None:
    done = driftscope("analyze", "driftscope-runs")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "newest first: driftscope-runs/second, driftscope-runs/first" in done.stderr


def test_rm_removes_what_it_names(driftscope: Driftscope, runs: Path) -> None:
    """Unless nobody answers its question."""
    other = set((runs / "second").iterdir())
    assert driftscope("rm", runs / "first").returncode == 2 and (runs / "first").is_dir()
    done = driftscope("rm", runs / "first", "--yes")
    assert done.returncode == 0, done.stderr
    assert "removed: 1 run (" in done.stderr
    assert set(runs.rglob("*")) == {runs / "second", *other}


def test_rm_removes_nothing_if_one_of_its_runs_is_refused(
    driftscope: Driftscope, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(runs / "second")
    done = driftscope("rm", runs / "first", tmp_path / "link", "--yes")
    assert done.returncode == 1 and "symbolic link" in done.stderr
    assert sorted(run.name for run in runs.iterdir()) == ["first", "second"]


def test_prune_needs_a_bound_and_can_be_tried(driftscope: Driftscope, runs: Path) -> None:
    assert driftscope("prune", "--yes").returncode == 2
    assert driftscope("prune", "--older-than", "soon").returncode == 2
    tried = driftscope("prune", "--older-than", "1d", "--dry-run", "--json")
    assert [Path(load["path"]).name for load in json.loads(tried.stdout)["runs"]] == ["first"]
    none = driftscope("prune", "--max-total", "1GB", "--yes")
    assert none.returncode == 0 and none.stderr.startswith("nothing to remove: 2 runs (")
    octets = sum(path.stat().st_size for path in (runs / "second").iterdir())
    assert driftscope("prune", "--max-total", f"{octets + 10}", "--yes").returncode == 0
    assert [run.name for run in runs.iterdir()] == ["second"]


def test_prune_goes_on_after_a_run_that_it_must_leave(driftscope: Driftscope, runs: Path) -> None:
    write_run(runs / "odd", SPEC)
    (runs / "odd" / "notes.txt").touch()
    options = ("prune", "--older-than", "1d", "--keep", "0")
    tried = driftscope(*options, "--dry-run")
    assert tried.returncode == 1 and "would remove: 2 runs" in tried.stderr
    done = driftscope(*options, "--yes", "--json")
    assert done.returncode == 1 and "left: driftscope-runs/odd: holds 'notes.txt'" in done.stderr
    document = json.loads(done.stdout)
    assert len(document["runs"]) == 2 and "notes.txt" in document["left"][0]
    assert [run.name for run in runs.iterdir()] == ["odd"]


def test_a_run_whose_analysis_fails_is_listed_beside_the_others(
    driftscope: Driftscope, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyze = pipeline.analyze

    def failing(inputs: pipeline.Inputs) -> object:
        if inputs.labels == ["second"]:
            raise TypeError("what no rule foresees")
        return analyze(inputs)

    monkeypatch.setattr(pipeline, "analyze", failing)
    done = driftscope("ls")
    assert (done.returncode, done.stderr) == (0, "")
    assert "second  not analysed (TypeError)" in done.stdout
    assert "first  not analysed" not in done.stdout and "/first  " in done.stdout

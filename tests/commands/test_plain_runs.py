"""A run without speculation, alone and beside a run with it: of a server without a drafter, and of
one that drafts nothing on purpose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from support.command import assert_fails, run_command
from support.runs import Spec, write_run
from support.simulate import Truth, simulate

from driftscope.trace.manifest import MANIFEST, read_manifest

ROOT = Path(__file__).parents[2]
TRUTH = Truth(requests=60, rounds=20)
PLAIN = ("no-drafter", "k-is-zero")


def without_drafter(run: Path) -> Path:
    """Return the run of a server that drafts nothing, turned into that of one without a drafter."""
    manifest = replace(read_manifest(run), drafter=None, method="", k=0)
    (run / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that speculates and both kinds of runs that do not."""
    folder = tmp_path_factory.mktemp("runs")
    simulate(folder / "spec", TRUTH)
    for name in PLAIN:
        simulate(folder / name, replace(TRUTH, k_zero_above=0))
    without_drafter(folder / "no-drafter")
    return folder


@pytest.mark.parametrize("name", PLAIN)
def test_alone_it_tells_its_speed_and_what_to_compare(
    folder: Path, tmp_path: Path, name: str
) -> None:
    page = tmp_path / "r.html"
    done = run_command("analyze", folder / name, "-o", page)
    assert done.returncode == 0, done.stderr
    first = " ".join(done.stdout.split())
    assert first.startswith("[NO SPECULATION] Without speculation an output token takes ")
    assert "over 60 requests" in first and f"--baseline {name}" in first
    assert "No speculation" in page.read_text(encoding="utf-8")
    content = json.loads(run_command("analyze", folder / name, "-o", page, "--json").stdout)
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(content)
    assert content["runs"] == [] and content["plain"]["requests"] == 60
    assert content["plain"]["latency"]["tpot_s"] > 0
    markdown = run_command("analyze", folder / name, "--format", "markdown", "-o", tmp_path / "r")
    assert markdown.returncode == 0 and "Drift" not in (tmp_path / "r").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PLAIN)
def test_beside_a_run_it_is_the_baseline_wherever_it_stands(folder: Path, name: str) -> None:
    spec, plain = folder / "spec", folder / name
    said = run_command("analyze", spec, "--baseline", plain, "--json").stdout
    for order in ((spec, plain), (plain, spec)):
        beside = json.loads(run_command("analyze", *order, "--json").stdout)
        named = json.loads(said)
        assert beside["plain"].pop("label") == name and named["plain"].pop("label") == "baseline"
        assert beside == named
    assert "without speculation" in json.loads(said)["first_screen"]["figures"][0]["reference"]


def test_two_baselines_are_one_too_many(folder: Path) -> None:
    plain = [folder / name for name in PLAIN]
    for given in (plain, [folder / "spec", plain[0], "--baseline", plain[1]]):
        assert_fails(run_command("analyze", *given), 2, "several runs to compare with")
    assert_fails(run_command("analyze", plain[0], "--where", "k = 4"), 2, "about rounds")


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("check", "--fail-on", "high"), "a run without speculation, of which no rule"),
        (("advise",), "a run without speculation, of which no K is known"),
        (("export", "--format", "sps-table", "-o", "x"), "a run without speculation"),
    ],
)
def test_what_is_about_a_drafter_has_no_data(
    folder: Path, name: str, command: tuple[str, ...], words: str
) -> None:
    first, *options = command
    assert_fails(run_command(first, folder / name, *options), 4, words)


def test_lists_and_screens_show_it_as_what_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = folder / "no-drafter"
    listed = json.loads(run_command("ls", folder, "--json").stdout)["runs"]
    (entry,) = [run for run in listed if run["path"].endswith(plain.name)]
    assert (entry["drafter"], entry["k"], entry["rounds"], entry["requests"]) == (None, 0, None, 60)
    assert entry["state"] == "closed"
    assert entry["finding"]["title"].startswith("Without speculation an output token takes")
    shown = run_command("ls", folder).stdout
    (line,) = [line for line in shown.splitlines() if "(none)" in line]
    assert "60 sent" in line
    monkeypatch.setenv("COLUMNS", "200")
    watched = run_command("watch", plain, "--once").stdout
    assert "no speculation  close" in watched and "60 requests" in watched
    assert "acceptance" not in watched
    assert "no speculation" in run_command("doctor", "--run", plain).stdout
    timed = run_command("compare", plain, folder / "spec")
    assert timed.returncode == 0 and "time per output token" in timed.stdout


def test_a_drafter_that_drafts_nothing_is_no_run_without_speculation(tmp_path: Path) -> None:
    """Its steps were to draft: why they did not is in the server's log."""
    broken = write_run(tmp_path / "broken", Spec(rounds=0, undrafted=("no_draft",)))
    assert_fails(run_command("analyze", broken), 4, "no round in it", "see its log")

"""`driftscope analyze` as a user runs it, also of runs without speculation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from support.analyses import PAIR
from support.command import assert_fails, run_command
from support.command import run_command as driftscope
from support.runs import Spec, rows, write_rows, write_run
from support.simulate import Truth, simulate

from driftscope.trace.manifest import MANIFEST, read_manifest

pytestmark = pytest.mark.slow

MAIN = "from driftscope.cli.app import main; main()"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder / name, spec) for name, spec in PAIR.items()]


def test_writes_report_and_json_and_prints_a_table(runs: list[Path], tmp_path: Path) -> None:
    """A report that was there is replaced; with --json the table is on stderr."""
    done = driftscope("analyze", *runs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    as_json = driftscope("analyze", *runs, "--json", cwd=tmp_path)
    assert "acceptance length" in as_json.stderr and "replaced: report.html" in as_json.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html"], "- is no file"
    content = json.loads(as_json.stdout)
    assert content["schema_version"] == 1
    assert [run["label"] for run in content["runs"]] == ["eagle3", "eagle3.1"]
    page = (tmp_path / "report.html").read_text()
    assert "driftscope analyze" in page
    lost = "missing: eagle3: worker0-1 dropped 3 rows (queue full)"
    headline = content["first_screen"]["headline"]
    assert " ".join(done.stdout.split()).startswith(f"{lost} [ACT] {headline}")
    for run in content["runs"]:
        assert f"{run['acceptance']['mean_length']:.2f}" in done.stdout
    assert "written: report.html" in done.stderr
    assert "next: " in done.stderr
    assert "worker0-1 dropped 3 rows" not in done.stderr, "it is told above"
    quiet = driftscope("analyze", runs[0], runs[0], "--quiet", "--json", cwd=tmp_path)
    labels = [run["label"] for run in json.loads(quiet.stdout)["runs"]]
    assert (labels, quiet.stderr) == (["eagle3", "eagle3 (2)"], "")


def test_a_report_on_stdout_is_alone_there(runs: list[Path], tmp_path: Path) -> None:
    done = driftscope("analyze", runs[0], "--format", "markdown", "-o", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("### ", "> Not everything was recorded"))
    assert "next: " not in done.stderr and "written: " not in done.stderr
    assert list(tmp_path.iterdir()) == [], "- is no file"


def test_each_format_has_a_next_step_of_its_own(runs: list[Path], tmp_path: Path) -> None:
    done = driftscope("analyze", runs[0], "--format", "markdown", cwd=tmp_path)
    assert "next: gh pr comment --body-file report.md" in done.stderr
    done = driftscope("analyze", runs[0], "--format", "json", cwd=tmp_path)
    assert "next: " not in done.stderr


def test_the_ending_of_the_file_names_its_format(runs: list[Path], tmp_path: Path) -> None:
    for name, begins in (("x.md", (">", "#")), ("x.json", "{"), ("x", "<!"), ("x.HTML", "<!")):
        assert driftscope("analyze", runs[0], "-q", "-o", name, cwd=tmp_path).returncode == 0
        assert (tmp_path / name).read_text().startswith(begins)
    driftscope("analyze", runs[0], "-q", "-o", "x.md", "--format", "html", cwd=tmp_path)
    assert (tmp_path / "x.md").read_text().startswith("<!")


def test_a_run_that_broke_off_is_read_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec(), closed=False)
    stream = next(run.glob("draft-*.arrows"))
    stream.write_bytes(stream.read_bytes()[:-100])
    write_rows(run, "worker0-2", rows(Spec(requests=5)))
    done = driftscope("analyze", run, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert any("ends after" in problem for problem in content["runs"][0]["problems"])
    assert any("was killed" in note["statement"] for note in content["notes"])
    assert content["runs"][0]["hidden"]["fed_rms"] is not None


@pytest.mark.parametrize(
    "where",
    [
        "true); COPY (SELECT 42) TO 'pwn1.csv'; --",
        "CAST((SELECT content FROM read_text('secret.csv')) AS INT) > 1",
        "label in (SELECT a FROM read_csv('http://127.0.0.1:1/a.csv'))",
        " ",
    ],
    ids=lambda where: where[:24],
)
def test_a_condition_is_no_sql(runs: list[Path], tmp_path: Path, where: str) -> None:
    (tmp_path / "secret.csv").write_text("s3cret")
    done = driftscope("analyze", runs[0], "--where", where, cwd=tmp_path)
    assert_fails(done, 2, "--where")
    assert "s3cret" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize("times", [1, 4 << 20])
def test_a_file_that_is_no_trace(tmp_path: Path, times: int) -> None:
    (tmp_path / "notes.txt").write_text("hello" * times)
    for words in (["analyze"], ["check", "--fail-on", "high"], ["advise"], ["probe", "status"]):
        assert_fails(
            driftscope(*words, "notes.txt", cwd=tmp_path), 5, "notes.txt", "no run and no document"
        )


def test_files_of_two_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec(k=2, conditional=(0.5, 0.5)))
    write_rows(run, "worker0-9", rows(Spec(k=4, requests=1)))
    assert_fails(driftscope("analyze", run, cwd=tmp_path), 1, "worker0-9", "folder of their own")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["nowhere"], 1, "nowhere: no such directory"),
        (["damaged"], 1, "manifest.json"),
        (["RUN", "RUN", "--label", "a"], 2, "--label: give one for each of the runs (2)"),
        (["RUN", "RUN", "--label", "a", "--label", "a"], 2, "same label"),
        (["RUN", "-o", "-", "--json"], 2, "both print to stdout"),
        (["RUN", "-o", "nope/report.html"], 2, "nope is no folder"),
        (["RUN", "-o", "file/report.html"], 2, "file"),
        (["RUN", "-o", "damaged"], 1, "is a directory"),
    ],
)
def test_what_cannot_be_analysed(
    runs: list[Path], tmp_path: Path, options: list[str], code: int, words: str
) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    (tmp_path / "file").touch()
    given = [str(runs[0]) if word == "RUN" else word for word in options]
    assert_fails(driftscope("analyze", *given, cwd=tmp_path), code, words)
    assert len(list(tmp_path.iterdir())) == 2


def test_no_data(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec(requests=1, rounds=0))
    assert_fails(driftscope("analyze", run, cwd=tmp_path), 4, "no round")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ({"kind": "report", "schema_version": 1}, 2, "give the run directories"),
        ({"backend": "vllm", "num_prompts": 40}, 5, "` reads logs, metrics pages"),
        ([], 5, "` reads logs, metrics pages"),
    ],
)
def test_a_file_that_is_no_run_names_the_command_that_reads_it(
    tmp_path: Path, content: object, code: int, words: str
) -> None:
    (tmp_path / "file.json").write_text(json.dumps(content))
    assert_fails(driftscope("analyze", "file.json", cwd=tmp_path), code, words)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line(runs: list[Path], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "analyze", str(runs[0]), "--json", "-q"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


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
    assert "over 60 requests" in first and "with this one as its --baseline" in first
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
def test_what_is_about_a_drafter_has_no_data(folder: Path, name: str) -> None:
    run = folder / name
    for command, words in (
        (("check", run, "--fail-on", "high"), ", of which no rule"),
        (("advise", run), ", of which no K is known"),
        (("export", run, "--format", "sps-table", "-o", "x"), ""),
    ):
        assert_fails(run_command(*command), 4, f"a run without speculation{words}")


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
    assert re.search(r"\(none\).*60 sent", shown)
    monkeypatch.setenv("COLUMNS", "200")
    watched = run_command("watch", plain, "--once").stdout
    assert "no speculation  close" in watched and "60 requests" in watched
    assert "acceptance" not in watched
    timed = run_command("compare", plain, folder / "spec")
    assert timed.returncode == 0 and "time per output token" in timed.stdout


def test_a_drafter_that_drafts_nothing_is_no_run_without_speculation(tmp_path: Path) -> None:
    """Its steps were to draft: why they did not is in the server's log."""
    broken = write_run(tmp_path / "broken", Spec(rounds=0, undrafted=("no_draft",)))
    assert_fails(run_command("analyze", broken), 4, "no round in it", "see its log")

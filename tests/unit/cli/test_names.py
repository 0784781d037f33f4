"""Names that commands take and complete, the catalogue, errors, and packages that are missing."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import assert_fails, run_command, run_python

from driftscope import distributions
from driftscope.cli import options
from driftscope.cli.options import lab_folder, named_target
from driftscope.distributions import half_missing, needs, needs_analysis
from driftscope.errors import MAX_MESSAGE, UsageError
from driftscope.findings.catalogue import CATALOGUE, REPLAYS
from driftscope_lab.smollm2 import drafters_folder
from driftscope_lab.trio import trio_path


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("trio", trio_path() / "target"),
        ("eagle3", trio_path() / "eagle3"),
        ("smollm2-eagle31", drafters_folder() / "eagle31"),
    ],
)
def test_shipped_models_are_known_by_name(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab_folder(name) == str(folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert lab_folder(name) == name, "a folder here comes first"
    assert lab_folder("org/model") == "org/model"


def test_a_shipped_drafter_is_inspected_by_its_name() -> None:
    done = run_command("inspect", "eagle31", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["drafter"] == str(trio_path() / "eagle31")


def test_a_server_needs_no_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_target("localhost:8000") == "http://localhost:8000"
    assert named_target("https://host/v1") == "https://host/v1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--port", "8000", "trio"), "MODEL comes before the engine's options"),
        (("serve", "trio-typo"), "did you mean trio?"),
        (("findings", "sink_loss"), "did you mean sink_lost?"),
        (("doctor", "m", "--speculative-config", "{'method': 'eagle3'}"), "is not JSON"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], words: str) -> None:
    assert_fails(run_command(*arguments), 2, words)


def test_the_list_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_command("findings").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*CATALOGUE, *REPLAYS]
    assert set(json.loads(run_command("findings", "--json").stdout)) == {*CATALOGUE, *REPLAYS}
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80


def test_one_finding_is_explained_with_its_thresholds_and_their_sources() -> None:
    text = " ".join(run_command("findings", "sink_lost").stdout.split())
    entry = CATALOGUE["sink_lost"]
    assert entry.meaning in text and entry.need.words in text
    for threshold in entry.thresholds:
        assert f"Threshold {threshold.value:g}: {threshold.means}" in text
        assert threshold.source in text
    assert list(json.loads(run_command("findings", "sink_lost", "--json").stdout)) == ["sink_lost"]


PROGRAM = """
import atexit, threading, time
from driftscope.cli.app import end_process
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("command")
end_process(3)
"""


@pytest.mark.process
def test_output_threads_and_exit_functions_come_first() -> None:
    done = run_python("-c", PROGRAM)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.split("\n") == ["command", "thread", "exit function", ""]


@pytest.mark.process
def test_output_that_nobody_reads_is_an_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("(3)", "(0)")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 1


def test_a_missing_package() -> None:
    """A module of ours that is missing is a bug, and said as one."""
    words = r"nowhere is not installed: pip install 'driftscope\[x\]'"
    with pytest.raises(UsageError, match=words), needs("x"):
        importlib.import_module("nowhere")
    with pytest.raises(ModuleNotFoundError), needs("x"):
        importlib.import_module("driftscope.nowhere")


HEAVY = {"pyarrow", "numpy", "pandas", "duckdb", "ibis", "plotly", "scipy", "torch", "vllm"}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one", "two"):
        run = tmp_path / "driftscope-runs" / name
        run.mkdir(parents=True)
        (run / "manifest.json").touch()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_and_latest(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(begin: str) -> list[str]:
        return [word for word, _ in options.runs(begin)]

    assert offered("")[:3] == ["latest", "driftscope-runs/one", "driftscope-runs/two"]
    assert offered("driftscope-runs/t")[0] == "driftscope-runs/two"
    assert offered("oth") == ["other/"] and offered("nothing/like/this") == []
    monkeypatch.chdir(runs / "other")
    assert options.runs("") == [], "latest is offered only if there is a run"


LINE = "driftscope analyze driftscope-runs/o"


@pytest.mark.process
@pytest.mark.parametrize(
    ("shell", "environ"),
    [
        ("bash", {"COMP_WORDS": LINE, "COMP_CWORD": "2"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": LINE}),
        ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": LINE}),
    ],
)
def test_each_shell_is_answered_without_a_heavy_import(
    runs: Path, shell: str, environ: dict[str, str]
) -> None:
    code = (
        "import json, sys\n"
        "from driftscope.cli.app import main\n"
        "try:\n main()\n"
        "except SystemExit:\n pass\n"
        f"print(json.dumps(sorted({HEAVY!r} & set(sys.modules))), file=sys.stderr)"
    )
    environ["_DRIFTSCOPE_COMPLETE"] = f"complete_{shell}"
    done = run_python("-c", code, cwd=runs, **environ)
    assert "driftscope-runs/one" in done.stdout and "two" not in done.stdout
    assert json.loads(done.stderr) == []


MISSING = ModuleNotFoundError(name="duckdb")


def test_a_missing_module_is_a_defect_where_all_is_installed() -> None:
    assert half_missing(MISSING) is None
    with pytest.raises(ModuleNotFoundError), needs_analysis():
        raise MISSING


def test_without_the_analysis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "REPORTS", "nowhere_at_all")
    assert "pip install" in (half_missing(MISSING) or "")
    with pytest.raises(UsageError, match="pip install"), needs_analysis():
        raise MISSING
    for name in ("driftscope.nowhere", "", None):  # a module of ours is a defect
        assert half_missing(ModuleNotFoundError(name=name)) is None


def test_a_message_that_quotes_a_long_input_keeps_its_begin_and_end() -> None:
    message = str(UsageError(f"--where: {'x' * 100_000} is no column; see docs/conditions.md"))
    assert message.startswith("--where: xxx")
    assert message.endswith("is no column; see docs/conditions.md")
    assert len(message) < MAX_MESSAGE + 50

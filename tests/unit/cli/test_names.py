"""Names that commands take, the catalogue, the end of a process, packages that are missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import assert_fails, run_command

from driftscope.cli.options import lab_folder, named_target
from driftscope.distributions import needs
from driftscope.errors import UsageError
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
        (("doctor", "m", "--speculative-config", "{'method': 'eagle3'}"), "is not JSON"),
        (("serve", "m", "--speculative-config", "eagle3"), "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_server_s_options_is_said(
    arguments: tuple[str, ...], words: str
) -> None:
    assert_fails(run_command(*arguments), 2, words)


def test_a_completion_that_no_shell_asks_for_is_no_bug() -> None:
    done = run_command(_DRIFTSCOPE_COMPLETE="complete_bash")
    assert done.returncode == 2
    assert "is for a shell's completion" in done.stderr and "bug" not in done.stderr


def test_the_list_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_command("findings").stdout.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == [*CATALOGUE, *REPLAYS]
    assert set(json.loads(run_command("findings", "--json").stdout)) == {*CATALOGUE, *REPLAYS}
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80


def test_one_finding_is_explained_with_its_thresholds_and_their_sources() -> None:
    text = " ".join(run_command("findings", "sink_lost").stdout.split())
    entry = CATALOGUE["sink_lost"]
    assert entry.meaning in text
    assert entry.need.words in text
    for threshold in entry.thresholds:
        assert f"Threshold {threshold.value:g}: {threshold.means}" in text
        assert threshold.source in text
    assert list(json.loads(run_command("findings", "sink_lost", "--json").stdout)) == ["sink_lost"]


def test_a_name_that_is_no_finding_is_answered_with_the_nearest() -> None:
    done = run_command("findings", "sink_loss")
    assert done.returncode == 2
    assert "did you mean sink_lost?" in done.stderr


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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
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
    with (
        pytest.raises(UsageError, match=r"nowhere is not installed: pip install 'driftscope\[x\]'"),
        needs("x"),
    ):
        import nowhere  # type: ignore[import-not-found]  # noqa: F401


def test_a_module_of_ours_that_is_missing_is_a_bug_and_said_as_one() -> None:
    with pytest.raises(ModuleNotFoundError), needs("x"):
        import driftscope.nowhere  # type: ignore[import-not-found]  # noqa: F401

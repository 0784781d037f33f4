"""Names that commands take: shipped models, servers without a scheme, and typing errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import assert_fails, run_command

from driftscope.cli.options import named_target, shipped_model
from driftscope_lab.trio import trio_path


@pytest.mark.parametrize(
    ("name", "folder"), [("trio", "target"), ("eagle3", "eagle3"), ("eagle31", "eagle31")]
)
def test_shipped_models_are_known_by_name(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipped_model(name) == str(trio_path() / folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert shipped_model(name) == name, "a folder here comes first"
    assert shipped_model("org/model") == "org/model"


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

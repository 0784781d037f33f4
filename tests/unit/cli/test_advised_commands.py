"""Every command that a conclusion tells its reader to run works when it is pasted.

Those that start servers or need models of a size that takes minutes: tests/engines/test_advised.py.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main
from support.command import run_command
from support.simulate import Truth, simulate
from support.stub_server import stub_server

from driftscope.cli.app import app
from driftscope.cli.pays import contenders_of, speculations_in
from driftscope.findings.catalogue import Analysis
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.manifest import MANIFEST, read_manifest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
GALLERY = ROOT / "reports" / "gallery" / "traces"
SCREENS = ROOT / "tests" / "unit" / "findings" / "data" / "screens.json"
_COMMAND = re.compile(r"`(driftscope \S+ [^`]+)`")
_CONCLUDED = ("drifting", "healthy", "server", "long-context", "sglang")
_SERVED_AT = re.compile(r"http://localhost:(8000|30000)\b")


def _concluded(analysis: Analysis) -> Iterator[str]:
    """Yield the sentences of all conclusions."""
    for found in (*analysis.findings, *analysis.answers, *analysis.notes):
        yield from (found.statement, found.advice, *(cause.check for cause in found.causes))
    for case in analysis.cases:
        yield from (found.settle for found in case.comparability.differences)


def _texts() -> Iterator[str]:
    """Yield the sentences of the golden screens, and every conclusion on the gallery's runs."""
    for sentences in json.loads(SCREENS.read_text()).values():
        yield from sentences
    for names in (*((name,) for name in _CONCLUDED), ("drifting", "healthy")):
        runs = [GALLERY / name for name in names]
        yield from _concluded(analyze(Inputs(sources=runs, labels=names)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a server without a drafter."""
    run = tmp_path_factory.mktemp("runs") / "plain"
    simulate(run, Truth(requests=60, rounds=20, k_zero_above=0))
    manifest = replace(read_manifest(run), drafter=None, method="", k=0)
    (run / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return run


@pytest.fixture(scope="module")
def commands(plain: Path) -> list[str]:
    lines = map(str.strip, run_command("analyze", plain, cwd=plain.parent).stdout.splitlines())
    printed = {line for line in lines if line.startswith("driftscope ")}
    found = sorted(printed.union(*map(_COMMAND.findall, _texts())))
    for name in ("pays", "replay", "ablate"):
        assert any(f" {name} " in command for command in found)
    return found


def _parsed(command: str) -> tuple[str, Any]:
    """Return the name of a subcommand and its context; raises what the command line raises."""
    words = shlex.split(command)[1:]
    group = typer.main.get_command(app)
    with group.make_context("driftscope", list(words)) as outer:
        name, subcommand, rest = group.resolve_command(outer, words)  # type: ignore[attr-defined]
        return name, subcommand.make_context(name, rest, parent=outer)


def test_every_advised_command_is_parsed(commands: list[str]) -> None:
    for command in commands:
        assert not re.search(r"\b(RUN|MODEL|URL|FILE|PLAIN|DRAFTER|TARGET)\b", command), command
        _parsed(command)


def test_the_command_that_settles_whether_it_pays_serves_the_drafter_of_the_run(
    commands: list[str],
) -> None:
    settling = [command for command in commands if " pays " in command]
    started = [command for command in settling if "http://" not in command]
    for command in started:
        _, context = _parsed(command)
        server, options = context.params["server"], context.args
        plain, *drafting = contenders_of(server, [], [], options)
        configs, _ = speculations_in(options)
        assert plain.speculation is None and [one.speculation for one in drafting] == configs
        for config in configs:
            assert set(config) == {"method", "model", "num_speculative_tokens"}
    assert set(settling) - set(started) == {
        "driftscope pays http://localhost:8000",
        "driftscope pays http://localhost:30000",
    }


def test_commands_that_ask_a_running_server_run_as_they_are_printed(
    commands: list[str], tmp_path: Path
) -> None:
    asking = [command for command in commands if _SERVED_AT.search(command)]
    assert asking
    with stub_server(launched={"speculative_algorithm": None}) as server:
        for command in asking:
            words = shlex.split(_SERVED_AT.sub(server.url, command))[1:]
            done = run_command(*words, cwd=tmp_path)
            wanted = 4 if words[0] == "pays" else 0  # pays waits for the other half
            assert done.returncode == wanted, (command, done.stderr)

"""Every command that a conclusion tells its reader to run works when it is pasted."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from driftscope.cli.app import app
from driftscope.cli.pays import contenders_of, speculations_in
from driftscope.pipeline import Inputs, analyze

ROOT = Path(__file__).parents[3]
GALLERY = ROOT / "reports" / "gallery" / "traces"
SCREENS = ROOT / "tests" / "unit" / "findings" / "data" / "screens.json"
_COMMAND = re.compile(r"`(driftscope \S+ [^`]+)`")
_CONCLUDED = ("drifting", "healthy", "server", "long-context", "sglang")


def _texts() -> Iterator[str]:
    """Yield the sentences of the golden screens, and every conclusion on the gallery's runs."""
    for sentences in json.loads(SCREENS.read_text()).values():
        yield from sentences
    for names in (*((name,) for name in _CONCLUDED), ("drifting", "healthy")):
        analysis = analyze(Inputs(sources=[GALLERY / name for name in names], labels=names))
        for found in (*analysis.findings, *analysis.answers, *analysis.notes):
            yield from (found.statement, found.advice, *(c.check for c in found.causes))


def _commands() -> list[str]:
    return sorted({command for text in _texts() for command in _COMMAND.findall(text)})


@pytest.fixture(scope="module")
def commands() -> list[str]:
    found = _commands()
    for name in ("pays", "replay"):
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
        assert not re.search(r"\b(RUN|MODEL|URL|FILE|PLAIN)\b", command), command
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
    assert {"driftscope pays http://localhost:30000"} >= set(settling) - set(started)

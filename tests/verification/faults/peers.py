"""Hostile servers and telemetry receivers, and the commands that contact them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from support.hostile.server import METRICS, OPENAI

from driftscope.telemetry import watch as follow
from driftscope.workloads.client import replay, server
from verification.faults.command import Outcome, outcome_of

DEADLINE_S = 1.0
"""Time for a whole answer, in seconds, instead of the longer time that a real server gets."""
KEY_VARIABLE, KEY = "FAULTS_API_KEY", "sk-0123456789abcdefghij"
SUITE = "{prompts: chat, baseline: as asked, conditions: {as asked: []}, settings: {max_tokens: 4}}"
SERVERS = {"watch": sorted(METRICS), "replay": sorted(OPENAI)}
"""Behaviours of a server, by the command that contacts it."""
_url = ""


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Run the hostile server in a separate process, for this process and those forked from it."""
    global _url  # forked processes find it there
    with subprocess.Popen(
        [sys.executable, "-m", "support.hostile.server"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        _url = process.stdout.readline().strip()
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def _short_deadlines() -> Iterator[None]:
    modules: Sequence[Any] = (follow, server, replay)
    before = [module.LIMITS for module in modules]
    for module in modules:
        module.LIMITS = replace(module.LIMITS, seconds=DEADLINE_S)
    try:
        yield
    finally:
        for module, limits in zip(modules, before, strict=True):
            module.LIMITS = limits


def ask_server(command: str, random: Random, _: Path, folder: Path) -> None:
    """Run `command` against one behaviour of a hostile server."""
    behaviour = random.choice(SERVERS[command])
    key = ["--api-key-env", KEY_VARIABLE]
    if command == "watch":
        arguments = ["watch", _url + behaviour, "--once"]
    else:
        (folder / "suite.yaml").write_text(SUITE)
        arguments = ["replay", f"{_url}{behaviour}/v1", "--suite", str(folder / "suite.yaml")]
        arguments += ["-o", str(folder / "run"), "--limit", "2", "--warmup", "0", *key]
        arguments += ["--timeout", f"{DEADLINE_S}", "--retries", "0"]
    with _short_deadlines():
        found = outcome_of(arguments, {KEY_VARIABLE: KEY})
    _check(command, behaviour, found, folder)


def _check(command: str, behaviour: str, found: Outcome, folder: Path) -> None:
    if found.code and command == "watch":  # a single request: a fault is one line
        lines = found.err.splitlines()
        assert len(lines) == 1, f"{behaviour}: {len(lines)} lines: {found.err[:300]!a}"
        assert lines[0].startswith("driftscope: error: "), f"{behaviour}: {lines[0][:200]!a}"
        assert len(lines[0]) < 1000, f"{behaviour}: a line of {len(lines[0])} characters"
    assert found.code == 0 or found.err, f"{behaviour}: nothing was printed"
    secret = KEY[2:-2]
    assert secret not in found.out + found.err, f"{behaviour}: the API key was printed"
    for path in folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), f"{behaviour}: the key is in a file"

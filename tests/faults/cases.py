"""One case of the campaign: a sound run, a mutation, a command, and what may come of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from driftscope.boundary.terminal_text import shown
from driftscope.cli.app import main
from driftscope.errors import DriftscopeError
from driftscope.trace.format.batch_digest import has_digest
from driftscope.trace.read.reader import read_trace
from faults.mutations import KEEPS_FIGURES, MUTATIONS

READ = "read"
"""Reading alone, which most mutations are tried on: it takes milliseconds, a command a second."""
Arguments = Callable[[Path, Path, Path], Sequence[object]]
COMMANDS: Mapping[str, Arguments] = {
    "analyze": lambda run, _, out: ["analyze", run, "-q", "-o", out / "r.html", "--json", "-"],
    "check": lambda run, sound, _: ["check", run, "--baseline", sound, "--fail-on", "high"],
    "compare": lambda run, sound, _: ["compare", sound, run, "--json"],
    "advise": lambda run, _, __: ["advise", run, "--json"],
    "export": lambda run, _, out: ["export", run, "--prometheus", out / "metrics.txt"],
    "watch": lambda run, _, __: ["watch", run, "--once"],
    "probe status": lambda run, _, __: ["probe", "status", run],
}
CODES = frozenset({0, 1, 2, 3, 4})
COMMAND_SHARE = 0.03
"""Share of the cases that go through a whole command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything of a case follows from its number and the sound runs."""

    number: int
    sound: Path
    mutation: str
    command: str

    @property
    def name(self) -> str:
        """What it does, in words."""
        return f"{self.number}: {self.sound.name}, {self.mutation}, {self.command}"


def case_of(number: int, sound: Sequence[Path]) -> Case:
    """Return the case of this number; the same one each time."""
    random = Random(number)
    command = random.choice(sorted(COMMANDS)) if random.random() < COMMAND_SHARE else READ
    mutation = random.choice(sorted(MUTATIONS))
    return Case(number=number, sound=random.choice(sound), mutation=mutation, command=command)


def run_case(case: Case, folder: Path, known: Mapping[Path, Any]) -> None:
    """Damage a copy of the sound run in `folder` and look at it.

    `known`: what `figures_of` says of the sound runs. Raises AssertionError, or whatever the
    code under test raises that it must not.
    """
    run = folder / "run"
    shutil.copytree(case.sound, run)
    run = MUTATIONS[case.mutation](run, Random(case.number + 1))
    if case.command == READ:
        _read(case, run, known)
    else:
        _command(case, run, folder)


def figures_of(run: Path) -> tuple[Any, ...]:
    """Return what a sound run holds, for comparison: its rows, and what is said to be missing."""
    trace = read_trace(run)
    records = (trace.draft, trace.verify, trace.step, trace.request)
    return tuple(map(_bytes_of, records)), trace.problems


def _bytes_of(table: pa.Table) -> bytes:
    """The rows as bytes: a number that is none would not equal itself."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sha256(sink.getvalue()).digest()


def _read(case: Case, run: Path, known: Mapping[Path, Any]) -> None:
    try:
        found = figures_of(run)
    except DriftscopeError as error:
        text = str(error)
        assert "\n" not in text, f"an error of several lines: {text!r}"
        shown(text).encode()
        return
    if case.mutation in KEEPS_FIGURES and _has_checksums(case, run):
        rows, problems = known[case.sound]
        assert found[0] == rows or found[1] != problems, "figures changed without a word"


def _has_checksums(case: Case, run: Path) -> bool:
    """Whether what was damaged has a checksum: a manifest, a status and the stream of an older
    version have none."""
    for path in case.sound.iterdir():
        if path.read_bytes() != (run / path.name).read_bytes():
            stream = path.suffix == ".arrows" and has_digest(path.read_bytes())
            return path.suffix == ".parquet" or stream
    return True


def _command(case: Case, run: Path, folder: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    arguments = ["driftscope", *map(str, COMMANDS[case.command](run, case.sound, folder))]
    before, sys.argv = sys.argv, arguments
    os.environ["DRIFTSCOPE_DEBUG"] = "1"  # the last resort counts as a failure here
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    assert code in CODES, f"exit code {code}"
    said = out.getvalue() + err.getvalue()
    said.encode()
    raw = [each for each in said if (each < " " and each not in "\n\t") or each == "\u202e"]
    assert not raw, f"control characters were printed raw: {raw[:5]!r}"
    if code == 0 and "--json" in arguments:
        json.loads(out.getvalue(), parse_constant=_no_json)


def _no_json(constant: str) -> None:
    raise AssertionError(f"{constant} in JSON")

"""One case of the campaign: a damaged or hostile input, a command, and the outcomes that are
allowed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from driftscope.boundary.text import shown
from driftscope.errors import EXIT_OK, DriftscopeError
from driftscope.trace.reader import read_trace
from verification.faults import attempts, disk
from verification.faults.command import check_files, outcome_of
from verification.faults.mutations import KEEPS_FIGURES, MUTATIONS

READ = "read"
"""Command that only reads, with which most mutations are tested: it takes milliseconds, a whole
command a second."""
USUAL = "one-request"
"""The small run used by cases that damage no run."""
Arguments = Callable[[Path, Path, Path], Sequence[object]]
COMMANDS: Mapping[str, Arguments] = {
    "analyze": lambda run, _, out: ["analyze", run, "-q", "-o", out / "r.html", "--json"],
    "table": lambda run, _, out: ["analyze", run, "--format", "markdown", "-o", out / "r.md"],
    "check": lambda run, sound, _: ["check", run, "--baseline", sound, "--fail-on", "high"],
    "compare": lambda run, sound, _: ["compare", sound, run, "--json"],
    "advise": lambda run, _, __: ["advise", run, "--json"],
    "export": lambda run, _, out: [
        *("export", run, "--format", "speculation-profile", "-o", out / "profile.json")
    ],
    "watch": lambda run, _, __: ["watch", run, "--once"],
    "probe status": lambda run, _, __: ["probe", "status", run],
}
COMMAND_SHARE = 0.03
"""Share of the damaged runs that go through a whole command."""
Attempt = Callable[[Random, Path, Path], None]
OTHERS: Mapping[tuple[str, str], tuple[float, Attempt]] = {
    ("other files", READ): (0.1, attempts.read_file),
    ("tools' files", "ingest"): (0.05, attempts.ingest),
    ("odd runs", "ls"): (0.002, attempts.list_runs),
    ("options", "any"): (0.01, attempts.say_option),
    ("full disk", "write"): (0.02, disk.write_on_a_full_disk),
}
"""Cases other than damaged runs, by name and command, each with its share of all cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case, which follows entirely from its number and the sound runs."""

    number: int
    sound: Path
    mutation: str
    """One of MUTATIONS, or a name of OTHERS."""
    command: str

    @property
    def name(self) -> str:
        """Description of the case."""
        return f"{self.number}: {self.sound.name}, {self.mutation}, {self.command}"


def case_of(number: int, sound: Sequence[Path]) -> Case:
    """Return the case of this number, identical on every call."""
    random = Random(number)
    at = random.random()
    for (name, command), (share, _) in OTHERS.items():
        at -= share
        if at < 0:
            usual = next((run for run in sound if run.name == USUAL), sound[0])
            return Case(number=number, sound=usual, mutation=name, command=command)
    command = random.choice(sorted(COMMANDS)) if random.random() < COMMAND_SHARE else READ
    mutation = random.choice(sorted(MUTATIONS))
    return Case(number=number, sound=random.choice(sound), mutation=mutation, command=command)


def run_case(case: Case, folder: Path, known: Mapping[Path, Any]) -> None:
    """Damage a copy of the sound run in `folder` and read it.

    `known`: the result of `figures_of` for each sound run. Raises AssertionError, or any forbidden
    error that the code under test raises.
    """
    if (case.mutation, case.command) in OTHERS:
        OTHERS[case.mutation, case.command][1](Random(case.number + 1), case.sound, folder)
        return
    run = folder / "run"
    shutil.copytree(case.sound, run)
    run = MUTATIONS[case.mutation](run, Random(case.number + 1))
    if case.command == READ:
        _read(case, run, known)
    else:
        _command(case, run, folder)


def figures_of(run: Path) -> tuple[Any, ...]:
    """Return the content of a sound run for comparison: its rows, and the reported problems."""
    trace = read_trace(run)
    records = (trace.draft, trace.verify, trace.step, trace.request)
    return tuple(map(_bytes_of, records)), trace.problems


def _bytes_of(table: pa.Table) -> bytes:
    """Return the rows as bytes, because NaN does not equal itself."""
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
    """Return whether the damaged file has a checksum: a manifest and a status have none."""
    for path in case.sound.iterdir():
        if path.read_bytes() != (run / path.name).read_bytes():
            return path.suffix in (".parquet", ".arrows")
    return True


def _command(case: Case, run: Path, folder: Path) -> None:
    out = folder / "out"
    out.mkdir()
    found = outcome_of(COMMANDS[case.command](run, case.sound, out))
    if found.code == EXIT_OK:
        check_files(out)

"""One case of the campaign: a damaged or hostile input, a command, and the outcomes that are
allowed."""

from __future__ import annotations

import json
import shutil
import subprocess
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow as pa
from support.command import run_command
from support.odd_runs import ROOT

from driftscope.analysis.gate import read_rules
from driftscope.boundary.text import shown
from driftscope.cli.app import DEBUG
from driftscope.errors import (
    EXIT_ERROR,
    EXIT_GATE_FAILED,
    EXIT_NO_DATA,
    EXIT_OK,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    ControlError,
    DriftscopeError,
)
from driftscope.ingest.catalogue import READERS
from driftscope.trace.control import CONTROL, ControlValueError, read_control
from driftscope.trace.reader import read_trace
from driftscope.workloads.suites.prompts import read_prompts
from driftscope.workloads.suites.suite import load_suite
from verification.faults.disk import write_on_a_full_disk
from verification.faults.mutations import (
    KEEPS_FIGURES,
    MUTATIONS,
    argument_of,
    damaged,
    exchange_json_value,
    file_name_of,
    text_of,
)

CODES = frozenset({EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_UNKNOWN})
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
SCRIPTS = ("<script>alert(", "<img src=x onerror")
"""Beginnings of text that a browser would run if it were not escaped."""


def outcome_of(
    *arguments: object, warned: Literal["error", "ignore"] = "ignore"
) -> subprocess.CompletedProcess[str]:
    """Run a command with the last resort for unforeseen errors switched off.

    Raises AssertionError for an exit code that is not documented, for output that steers a terminal
    or is no JSON, and for several error lines; UnicodeEncodeError for output that no terminal
    takes.
    """
    done = run_command(*arguments, warned=warned, **{DEBUG: "1"})
    assert done.returncode in CODES, f"exit code {done.returncode}"
    raw = {c for c in done.stdout + done.stderr if c not in "\n\t" and _steers(c)}
    assert not raw, f"control characters were printed raw: {sorted(raw)[:5]!a}"
    errors = [line for line in done.stderr.splitlines() if line.startswith("driftscope: error: ")]
    assert len(errors) <= 1, f"several error lines: {done.stderr[:300]!a}"
    if done.returncode == EXIT_OK and "--json" in arguments and "-o" not in arguments:
        strict(done.stdout)
    return done


def _steers(character: str) -> bool:
    return unicodedata.category(character) == "Cc" or character in BIDI


def strict(text: str) -> Any:
    """Return the value of JSON that has neither NaN nor Infinity."""

    def no_json(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    return json.loads(text, parse_constant=no_json)


def check_files(folder: Path) -> None:
    """Raise for a report or page of metrics in `folder` that could not be used as it is."""
    for path in folder.iterdir():
        if not path.is_file() or path.is_symlink():
            continue
        if path.suffix in (".html", ".md"):
            text = path.read_text(encoding="utf-8")
            assert not any(script in text for script in SCRIPTS), f"a script in {path.suffix}"
        elif path.suffix == ".json":
            strict(path.read_text(encoding="utf-8"))


COMMANDS = {
    "analyze": "analyze {run} -q -o {out}/r.html --json",
    "table": "analyze {run} --format markdown -o {out}/r.md",
    "check": "check {run} --baseline {sound} --fail-on high",
    "compare": "compare {sound} {run} --json",
    "advise": "advise {run} --json",
    "export": "export {run} --format speculation-profile -o {out}/profile.json",
    "watch": "watch {run} --once",
    "probe status": "probe status {run}",
}
REPLAY = "replay http://127.0.0.1:9 -o {out}/replay"
OPTIONS = {
    "--label": "analyze {run} -o {out}/r.html --json --label {text}",
    "--by": "analyze {run} -o {out}/r.html --json --by {text}",
    "--since": "analyze {run} -o {out}/r.html --json --since {text}",
    "--format": "analyze {run} -o {out}/r.html --json --format {text}",
    "-o": "analyze {run} -q -o {out}/{name}",
    "-o of export": "export {run} --format speculation-profile -o {out}/{name}",
    "--fail-on": "check {run} --fail-on {text}",
    "--rules": "check {run} --rules {text}",
    "RUN": "analyze {text}",
    "RUN of compare": "compare {run} {text}",
    "TARGET of watch": "watch {text} --once",
    "RUN of probe": "probe status {text}",
    "--api-key-env": f"{REPLAY} --api-key-env {{text}}",
    "--suite": f"{REPLAY} --suite {{text}}",
    "URL of replay": "replay {text} -o {out}/replay",
    "command": "{text}",
}
"""Options and arguments that accept text."""


def _run_line(line: str, folder: Path, **parts: object) -> None:
    """Run a command line whose words name these parts, and check the files that it writes."""
    out = folder / "out"
    out.mkdir()
    if not outcome_of(*(word.format(out=out, **parts) for word in line.split())).returncode:
        check_files(out)


def say_option(random: Random, run: Path, folder: Path) -> None:
    """Pass a hostile text as an option's value."""
    option, text = random.choice(sorted(OPTIONS)), argument_of(text_of(random))
    try:
        _run_line(OPTIONS[option], folder, run=run, text=text, name=file_name_of(text))
    except AssertionError as error:
        raise AssertionError(f"{option}: {error}") from error


def list_runs(random: Random, sound: Path, folder: Path) -> None:
    """`ls` lists every run, whatever is wrong with some of them."""
    runs = folder / "runs"
    for number in range(4):
        run = Path(shutil.copytree(sound, runs / f"{number}" / "run"))
        if number:
            MUTATIONS[random.choice(("bits", "json values", "columns", "files"))](run, random)
    done = outcome_of("ls", runs, "--json", warned="error")
    assert done.returncode == EXIT_OK
    assert any("/0/run" in entry["path"] for entry in json.loads(done.stdout)["runs"])


SAMPLES = sorted((ROOT / "tests/unit/ingest/samples").iterdir())
PAGES = [path for path in SAMPLES if path.match("prometheus-*.txt")]


def ingest(random: Random, _: Path, folder: Path) -> None:
    """A damaged file of another tool is refused in one line, or gives figures; a run written from
    one is analysed, checked and compared without an unforeseen error."""
    sample = random.choice(SAMPLES)
    path = folder / sample.name
    path.write_bytes(sample.read_bytes())
    if sample.suffix == ".json" and random.random() < 0.5:
        exchange_json_value(path, random)
    else:
        path.write_bytes(damaged(sample.read_bytes(), random))
    named = ("--format", random.choice(sorted(READERS)))
    pages = random.sample((path, random.choice(PAGES)), 2)
    how = random.choice(([path], [path, *named], ["--window", *pages], None))
    if how:
        outcome_of("ingest", *how, "--json")
        return
    run = folder / "ingested"
    if outcome_of("ingest", path, "-o", run).returncode != EXIT_OK:
        assert not run.exists(), "a run that was refused was begun"
        return
    (out := folder / "out").mkdir()
    done = outcome_of("analyze", run, "-q", "-o", out / "r.html", "--json")
    assert done.returncode == EXIT_OK, f"an ingested run is not analysed: {done.stderr[:200]!a}"
    check_files(out)
    outcome_of("check", run, "--fail-on", "cells[0].mean_length < 2", "--json")
    outcome_of("compare", run, run, "--json")


def _read_control(path: Path) -> object:
    """Return the request in a control file; the writer of a run counts invalid ones."""
    try:
        return read_control(path.parent)
    except ControlValueError as error:
        raise ControlError(str(error)) from error


SEEDS: Mapping[str, tuple[str, Callable[[Path], object]]] = {
    "rules.toml": (
        """fail_on = ["high", "acceptance.mean_length < 2"]
[[rule]]
name = "slow"
fail_on = "tpot.p50 > 1.1 * baseline.tpot.p50"
""",
        read_rules,
    ),
    "prompts.jsonl": (
        """{"prompt": "a", "label": "b"}
{"turns": ["a", "b"], "category": "c"}
{"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
""",
        read_prompts,
    ),
    "prompts.json": (
        '[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]',
        read_prompts,
    ),
    "results.json": ('{"input_lens": [3, 4], "output_lens": [5, 6]}', read_prompts),
    "suite.yaml": (
        """{about: x, prompts: chat, settings: {max_tokens: 4}, baseline: a, concurrency: [1, 4],
conditions: {a: [], b: [{reworded: {}}]}}""",
        lambda path: load_suite(str(path)),
    ),
    CONTROL: (
        """{"revision": 1, "every": 4, "labels": ["a"], "recording": false}""",
        _read_control,
    ),
}
"""Files from users, by name: sound content and its reader."""


def read_file(random: Random, _: Path, folder: Path) -> None:
    """A damaged or hostile file is refused in one line, or read."""
    name = random.choice(sorted(SEEDS))
    content, read = SEEDS[name]
    path = folder / name
    path.write_bytes(damaged(content.encode(), random))
    try:
        read(path)
    except DriftscopeError as error:
        _check_line(error)


def _check_line(error: DriftscopeError) -> None:
    line = str(error)
    assert "\n" not in line, f"an error of several lines: {line[:200]!a}"
    assert len(line) < 5000, f"an error of {len(line)} characters: {line[:200]!a}"
    shown(line).encode()


READ = "read"
"""Command that only reads, with which most mutations are tested: it takes milliseconds, a whole
command a second."""
USUAL = "one-request"
"""The small run used by cases that damage no run."""
COMMAND_SHARE = 0.03
"""Share of the damaged runs that go through a whole command."""
OTHERS: Mapping[tuple[str, str], tuple[float, Callable[[Random, Path, Path], None]]] = {
    ("other files", READ): (0.1, read_file),
    ("tools' files", "ingest"): (0.05, ingest),
    ("odd runs", "ls"): (0.002, list_runs),
    ("options", "any"): (0.01, say_option),
    ("full disk", "write"): (0.02, write_on_a_full_disk),
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
    random = Random(case.number + 1)
    if (case.mutation, case.command) in OTHERS:
        OTHERS[case.mutation, case.command][1](random, case.sound, folder)
        return
    run = MUTATIONS[case.mutation](Path(shutil.copytree(case.sound, folder / "run")), random)
    if case.command != READ:
        _run_line(COMMANDS[case.command], folder, run=run, sound=case.sound)
        return
    try:
        found = figures_of(run)
    except DriftscopeError as error:
        _check_line(error)
        return
    if case.mutation in KEEPS_FIGURES and _has_checksums(case, run):
        rows, problems = known[case.sound]
        assert found[0] == rows or found[1] != problems, "figures changed without a word"


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


def _has_checksums(case: Case, run: Path) -> bool:
    """Return whether the damaged file has a checksum: a manifest and a status have none."""
    for path in case.sound.iterdir():
        if path.read_bytes() != (run / path.name).read_bytes():
            return path.suffix in (".parquet", ".arrows")
    return True

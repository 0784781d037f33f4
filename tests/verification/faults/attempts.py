"""Cases beyond damaged runs: files of tools and of users, odd runs, texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from support.odd_runs import ROOT

from driftscope.analysis.gate import read_rules
from driftscope.boundary.text import shown
from driftscope.errors import EXIT_OK, ControlError, DriftscopeError
from driftscope.ingest.catalogue import READERS
from driftscope.trace.control import CONTROL, ControlValueError, read_control
from driftscope.workloads.suites.prompts import read_prompts
from driftscope.workloads.suites.suite import load_suite
from verification.faults.command import (
    argument_of,
    check_files,
    damaged,
    file_name_of,
    outcome_of,
    text_of,
)
from verification.faults.mutations import MUTATIONS


def list_runs(random: Random, sound: Path, folder: Path) -> None:
    """`ls` lists every run, whatever is wrong with some of them."""
    runs = folder / "runs"
    for number in range(4):
        run = Path(shutil.copytree(sound, runs / f"{number}" / "run"))
        if number:
            MUTATIONS[random.choice(("bits", "json values", "columns", "files"))](run, random)
    done = outcome_of(["ls", runs, "--json"])
    assert done.code == EXIT_OK and "Warning" not in done.err
    assert any("/0/run" in entry["path"] for entry in json.loads(done.out)["runs"])


SAMPLES = ROOT / "tests/unit/ingest/samples"


def ingest(random: Random, _: Path, folder: Path) -> None:
    """A damaged file of another tool is refused in one line, or gives figures; a run written from
    one is analysed, checked and compared without an unforeseen error."""
    path = _damaged_sample(random, folder)
    how = random.randrange(4)
    if how == 0:
        outcome_of(["ingest", path, "--json"])
    elif how == 1:
        outcome_of(["ingest", path, "--format", random.choice(sorted(READERS)), "--json"])
    elif how == 2:
        pages = [path, random.choice(sorted(SAMPLES.glob("prometheus-*.txt")))]
        random.shuffle(pages)
        outcome_of(["ingest", "--window", *pages, "--json"])
    else:
        _use(path, folder)


def _damaged_sample(random: Random, folder: Path) -> Path:
    sample = random.choice(sorted(SAMPLES.iterdir()))
    path = folder / sample.name
    path.write_bytes(damaged(sample.read_bytes(), random))
    return path


def _use(path: Path, folder: Path) -> None:
    """Write a run from a file, and give it to the commands that take one."""
    run, out = folder / "ingested", folder / "out"
    out.mkdir()
    if outcome_of(["ingest", path, "-o", run]).code != EXIT_OK:
        assert not run.exists(), "a run that was refused was begun"
        return
    done = outcome_of(["analyze", run, "-q", "-o", out / "r.html", "--json"])
    assert done.code == EXIT_OK, f"an ingested run is not analysed: {done.err[:200]!a}"
    check_files(out)
    outcome_of(["check", run, "--fail-on", "cells[0].mean_length < 2", "--json"])
    outcome_of(["compare", run, run, "--json"])


def _check_line(error: DriftscopeError) -> None:
    line = str(error)
    assert "\n" not in line, f"an error of several lines: {line[:200]!a}"
    assert len(line) < 5000, f"an error of {len(line)} characters: {line[:200]!a}"
    shown(line).encode()


Reader = Callable[[Path], object]


def _read_control(path: Path) -> object:
    """Return the request in a control file; the writer of a run counts invalid ones."""
    try:
        return read_control(path.parent)
    except ControlValueError as error:
        raise ControlError(str(error)) from error


SEEDS: Mapping[str, tuple[str, Reader]] = {
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
        """about: x
prompts: chat
settings: {max_tokens: 4}
baseline: a
conditions:
  a: []
  b:
    - reworded: {}
concurrency: [1, 4]
""",
        lambda path: load_suite(str(path)),
    ),
    CONTROL: (
        """{"revision": 1, "every": 4, "labels": ["a"], "recording": false}""",
        _read_control,
    ),
}
"""Files from users, by name: sound content and its reader."""


def read_file(random: Random, run: Path, folder: Path) -> None:
    """A damaged or hostile file is refused in one line, or read."""
    name = random.choice(sorted(SEEDS))
    content, read = SEEDS[name]
    path = folder / name
    path.write_bytes(damaged(content.encode(), random))
    try:
        read(path)
    except DriftscopeError as error:
        _check_line(error)


Line = Callable[[str, Path, Path], Sequence[object]]


OPTIONS: Mapping[str, Line] = {
    "--label": lambda text, run, out: _analyze(run, out, "--label", text),
    "--by": lambda text, run, out: _analyze(run, out, "--by", text),
    "--since": lambda text, run, out: _analyze(run, out, "--since", text),
    "--format": lambda text, run, out: _analyze(run, out, "--format", text),
    "-o": lambda text, run, out: ["analyze", run, "-q", "-o", out / file_name_of(text)],
    "-o of export": lambda text, run, out: [
        *("export", run, "--format", "speculation-profile", "-o", out / file_name_of(text))
    ],
    "--fail-on": lambda text, run, _: ["check", run, "--fail-on", text],
    "--rules": lambda text, run, _: ["check", run, "--rules", text],
    "RUN": lambda text, _, __: ["analyze", text],
    "RUN of compare": lambda text, run, __: ["compare", run, text],
    "TARGET of watch": lambda text, _, __: ["watch", text, "--once"],
    "RUN of probe": lambda text, _, __: ["probe", "status", text],
    "--api-key-env": lambda text, _, out: [
        *("replay", "http://127.0.0.1:9", "-o", out / "replay", "--api-key-env", text)
    ],
    "--suite": lambda text, _, __: ["replay", "http://127.0.0.1:9", "--suite", text, "-o", "run"],
    "URL of replay": lambda text, _, out: ["replay", text, "-o", out / "replay"],
    "command": lambda text, _, __: [text],
}
"""Options and arguments that accept text."""


def _analyze(run: Path, out: Path, *more: str) -> list[object]:
    return ["analyze", run, "-o", out / "r.html", "--json", *more]


def say_option(random: Random, run: Path, folder: Path) -> None:
    """Pass a hostile text as an option's value."""
    option, text = random.choice(sorted(OPTIONS)), argument_of(text_of(random))
    out = folder / "out"
    out.mkdir()
    try:
        found = outcome_of(OPTIONS[option](text, run, out))
        if found.code == 0:
            check_files(out)
    except AssertionError as error:
        raise AssertionError(f"{option}: {error}") from error

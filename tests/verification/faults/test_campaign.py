"""A minute of the campaign, and cases that once failed."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest
import support.command
from support.odd_runs import RECORDED, ROOT

import verification.faults.campaign as under_test
from verification.faults.campaign import campaign, table
from verification.faults.cases import Case, figures_of, outcome_of, run_case
from verification.faults.mutations import MUTATIONS

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS, CASES = 40, 100
"""Time and number of cases after which the campaign ends."""


def test_a_minute_of_the_campaign() -> None:
    """Run fixed cases; `make faults` tries others."""
    # Other tests take the machine meanwhile.
    found = campaign(SECONDS, processes=1, limit_s=60, most=CASES)
    assert not found.failures, "\n".join(table(found))
    assert 20 < found.cases.total() <= CASES
    assert found.sound > 30


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_every_mutation_changes_something(mutation: str, tmp_path: Path) -> None:
    """Try ten times on a run, because a mutation may replace a value with itself."""
    changed = 0
    for n in range(10):
        run = tmp_path / str(n) / "run"
        run.mkdir(parents=True)
        for path in (ROOT / "tests/unit/trace/data/run-sealed").iterdir():
            (run / path.name).write_bytes(path.read_bytes())
        before = _content(run)
        after = MUTATIONS[mutation](run, Random(n))
        changed += after != run or _content(after) != before
    assert changed >= 5


def _content(run: Path) -> dict[bytes, object]:
    """Return, by name, a regular file's bytes, and the file mode of anything else."""
    return {
        os.fsencode(path.name): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else oct(path.lstat().st_mode)
        for path in run.iterdir()
    }


def test_a_crash_a_hang_and_an_error_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the campaign itself: cases that must fail do fail."""

    def hostile(case: Case, folder: Path, known: object) -> None:
        if case.number == 3:
            os.abort()
        if case.number == 5:
            raise KeyError("what")
        while case.number == 7:
            pass

    monkeypatch.setattr(under_test, "run_case", hostile)
    monkeypatch.setattr(under_test, "sound_runs", lambda _: [ROOT / RECORDED[0]])
    found = campaign(60.0, processes=1, limit_s=1, most=9)
    failed = {what.partition(" at ")[0]: cases[0][0] for what, cases in found.failures.items()}
    assert failed == {"ended with -6": "3", "KeyError": "5", "took more than 1 s": "7"}
    assert found.cases.total() == 9


ONCE_FAILED = {
    "a process of a rank beyond any": ("tests/unit/trace/data/run-killed", "file names", 100595)
}
"""Cases that once failed: the recorded run, the mutation and its number."""


@pytest.mark.parametrize("name", sorted(ONCE_FAILED))
def test_what_once_failed(name: str, tmp_path: Path) -> None:
    sound, mutation, number = ONCE_FAILED[name]
    case = Case(number=number, sound=ROOT / sound, mutation=mutation, command="read")
    run_case(case, tmp_path, {case.sound: figures_of(case.sound)})


@pytest.mark.parametrize(
    ("stream", "text", "words"),
    [
        ("stderr", "driftscope: error: a\x1b[2J\n", "control characters"),
        ("stdout", "a \u202e\n", "control characters"),
        ("stderr", "driftscope: error: a\ndriftscope: error: b\n", "several error lines"),
        ("stdout", "a \ud800", "surrogates not allowed"),
        ("", "", "exit code 7"),
    ],
)
def test_a_command_may_neither_steer_a_terminal_nor_say_errors_twice(
    stream: str, text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test the checks themselves: outputs that must fail do fail."""
    main = partial(_write, stream, text) if stream else partial(sys.exit, 7)
    monkeypatch.setattr(support.command, "main", main)
    with pytest.raises((AssertionError, UnicodeEncodeError), match=words):
        outcome_of("watch")


def _write(stream: str, text: str) -> None:
    getattr(sys, stream).write(text)

"""`compare` and `check` read the same part of both runs: what differs elsewhere does not count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.simulate import Prompts, Truth, simulate
from typer.testing import CliRunner, Result

from driftscope.cli.app import app
from driftscope.errors import EXIT_GATE_FAILED, EXIT_OK, UsageError

BEFORE = Truth(
    k=3,
    requests=80,
    rounds=20,
    conditional=(0.8, 0.7, 0.6),
    prompts=(Prompts(label="kept", share=0.5), Prompts(label="lost", share=0.5)),
    rates=(1.0,),
)
AFTER = replace(
    BEFORE,
    seed=8,
    prompts=(Prompts(label="kept", share=0.5), Prompts(label="lost", share=0.5, shift=-2.0)),
)
RULE = "no_worse(acceptance.mean_length, 10%)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return simulate(folder / "before", BEFORE), simulate(folder / "after", AFTER)


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(("label", "differs"), [("kept", False), ("lost", True)])
def test_a_comparison_is_of_the_part_that_was_asked_for(
    runs: tuple[Path, Path], label: str, differs: bool
) -> None:
    done = _run("compare", *runs, "--where", f"label = '{label}'")
    assert done.exit_code == EXIT_OK, done.output
    assert done.output.startswith(f"Of both runs only --where label = '{label}'.")
    assert ("differs" in done.output) == differs
    document = json.loads(_run("compare", *runs, "--where", f"label = '{label}'", "--json").stdout)
    assert document["where"] == f"label = '{label}'"
    assert json.loads(_run("compare", *runs, "--json").stdout)["where"] is None


@pytest.mark.parametrize(("label", "code"), [("kept", EXIT_OK), ("lost", EXIT_GATE_FAILED)])
def test_a_gate_compares_with_the_same_part_of_the_baseline(
    runs: tuple[Path, Path], label: str, code: int
) -> None:
    before, after = runs
    where = f"label = '{label}'"
    done = _run("check", after, "--baseline", before, "--where", where, "--require", RULE)
    assert done.exit_code == code, done.output


def test_a_column_that_does_not_exist_is_a_usage_error(runs: tuple[Path, Path]) -> None:
    done = _run("compare", *runs, "--where", "labl = 'kept'")
    assert isinstance(done.exception, UsageError)


def test_a_run_without_speculation_has_no_rounds(runs: tuple[Path, Path], tmp_path: Path) -> None:
    plain = simulate(tmp_path / "plain", replace(BEFORE, k_zero_above=0))
    checked = ("check", runs[0], "--baseline", plain, "--require", "k == 3")
    for words in (checked, ("compare", runs[0], plain)):
        done = _run(*words, "--where", "label = 'kept'")
        assert isinstance(done.exception, UsageError)

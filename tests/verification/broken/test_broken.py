"""Findings about every broken drafter that the tests can build; `make broken` prints them.

Each healthy drafter of the shipped trio and each broken one is recorded on the reference engine, on
the same prompts, and analysed once; then the conclusions are drawn that a user would see:
`analyze` alone, and `check --baseline HEALTHY --fail-on runs_part`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from driftscope.analysis.gate import rule_of
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.cli.gate_run import judge_analysis, outcome
from driftscope.errors import EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK
from driftscope.findings.causes import NOTHING_BELOW
from driftscope.findings.finding import Finding, Severity, Trust
from driftscope.pipeline import BASELINE, Inputs, conclude, measure
from verification.broken.faults import EAGLE31, FAULTS, HEALTHY, record

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

DEAD = ("d2t shifted", "d2t zero", "head permuted", "other target")
LIKELIEST = {
    "norm_output off in the config": "norm flags",
    "norm_output not applied": "norm flags",
    "norm_output on in the config": "norm flags",
    "fc_norm missing": "norm flags",
    "captured layers one too low": "captured target layers are",
    "captured layers one too high": "captured target layers are",
    "captured layers one too high, eagle3": "captured target layers are",
    "d2t shifted": "d2t",
    "d2t zero": "d2t",
    "head permuted": "d2t",
    "own embedding": "the embedding",
    "other target": "another target",
}
"""Words of the most likely cause when the healthy run is the baseline."""
PROCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results for one drafter: of its run alone, and with the healthy run as the baseline."""

    run: RunSummary
    verdict: str
    """First sentence of the verdict on the run alone."""
    alone: tuple[Finding, ...]
    beside: tuple[Finding, ...]
    exit_code: int
    """Exit code of `check RUN --baseline HEALTHY --fail-on runs_part`."""

    def found(self, name: str, *, beside: bool = False) -> Finding | None:
        """Return the finding with this id; None if there is none."""
        return next((f for f in (self.beside if beside else self.alone) if f.id == name), None)

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of the table about the drafter."""
        yield f"\n{name}: acceptance by depth " + " ".join(
            f"{rate:.3f}" for rate in self.run.acceptance.marginal
        )
        yield f"  verdict:    {self.verdict}"
        for title, findings in (("alone:", self.alone), ("baseline:", self.beside)):
            said = (f"{f.id} ({f.severity}, confidence {f.confidence})" for f in findings)
            yield f"  {title:11} {', '.join(said) or 'nothing'}"
        likeliest = self.found("runs_part", beside=True)
        if likeliest and likeliest.causes:
            suspect = likeliest.causes[0]
            yield f"  likeliest:  {suspect.cause} [{suspect.observed or 'nothing recorded tells'}]"
        yield f"  check --baseline HEALTHY --fail-on runs_part: exit {self.exit_code}"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    folder: Path = tmp_path_factory.mktemp("broken")
    names = (*HEALTHY, *FAULTS)
    _record(folder, names)

    @functools.cache  # each healthy run stands beside several broken ones
    def measured(name: str) -> RunSummary:
        return measure(Inputs(sources=[folder / "runs" / _slug(name)], labels=[name])).runs[0]

    def row(name: str) -> Row:
        run = measured(name)
        healthy = FAULTS[name].of if name in FAULTS else name
        baseline = replace(measured(healthy), label=BASELINE)
        alone, beside = conclude([run]), conclude([run], (), baseline)
        return Row(
            run=run,
            verdict=alone.verdict[0],
            alone=alone.findings,
            beside=beside.findings,
            exit_code=outcome(judge_analysis([rule_of("runs_part")], beside, baseline)),
        )

    rows = {name: row(name) for name in names}
    for name in names:
        print(*rows[name].lines(name), sep="\n")
    return rows


def _record(folder: Path, names: Sequence[str]) -> None:
    places = [(folder / "runs" / _slug(n), n, folder / "models" / _slug(n)) for n in names]
    for _, _, models in places:
        models.mkdir(parents=True)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(record, *place) for place in places]:
            done.result()


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_drafter_asks_for_nothing(table: dict[str, Row], name: str) -> None:
    row = table[name]
    assert not {f.severity for f in row.alone} & {Severity.HIGH, Severity.MEDIUM}
    assert row.exit_code == EXIT_OK
    if name == EAGLE31:
        healthy = row.found("healthy")
        assert healthy is not None and healthy.severity is Severity.GOOD


@pytest.mark.parametrize("name", FAULTS)
def test_the_gate_fails_for_every_broken_drafter(table: dict[str, Row], name: str) -> None:
    row = table[name]
    other_target = name == "other target"  # then the baseline is of other weights: no gate decides
    assert row.exit_code == (EXIT_NO_DATA if other_target else EXIT_GATE_FAILED)
    parted = row.found("runs_part", beside=True)
    assert other_target or (parted is not None and parted.confidence is Trust.HIGH)
    assert row.found("healthy", beside=True) is None
    assert row.found("runs_alike", beside=True) is None


@pytest.mark.parametrize("name", FAULTS)
def test_a_dead_drafter_is_called_dead(table: dict[str, Row], name: str) -> None:
    row = table[name]
    assert (row.run.acceptance.marginal[0] < NOTHING_BELOW.value) is (name in DEAD)
    dead = row.found("nothing_accepted")
    assert (dead is not None) is (name in DEAD)
    if dead is not None:
        assert dead.confidence is Trust.HIGH
        assert row.alone[0] is dead
        assert "speculation costs time and gives nothing" in row.verdict
        assert dead.advice.startswith("Turn speculation off now")


@pytest.mark.parametrize("name", LIKELIEST)
def test_the_true_cause_stands_first(table: dict[str, Row], name: str) -> None:
    row = table[name]
    found = row.found("nothing_accepted", beside=True) or row.found("runs_part", beside=True)
    assert found is not None
    assert LIKELIEST[name] in found.causes[0].cause
    assert found.causes[0].supported
    assert LIKELIEST[name] not in " ".join(cause.cause for cause in found.ruled_out)


def test_a_flag_that_is_not_applied_needs_no_baseline(table: dict[str, Row]) -> None:
    falls = table["norm_output not applied"].found("acceptance_falls")
    assert falls is not None
    assert "does not apply the flag" in falls.causes[0].observed
    assert table["norm_output not applied"].run.manifest.norm_flags["norm_output"]

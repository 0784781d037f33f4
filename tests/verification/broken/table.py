"""Findings about broken drafters as a table: `make broken`.

Each healthy drafter of the shipped trio and each broken one is recorded on the reference engine, on
the same prompts, and analysed once; then the conclusions are drawn that a user would see:
`analyze` alone, and `check --baseline HEALTHY --fail-on runs_part`.
"""

from __future__ import annotations

import argparse
import functools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from driftscope.analysis.gate import rule_of
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.cli.gate_run import judge_analysis, outcome
from driftscope.findings.causes import NOTHING_BELOW
from driftscope.findings.finding import Finding, Severity
from driftscope.pipeline import BASELINE, Inputs, conclude, measure
from verification.broken.faults import FAULTS, HEALTHY, record

RULES = (
    "nothing_accepted",
    "acceptance_low",
    "acceptance_falls",
    "acceptance_dies",
    "runs_part",
    "runs_alike",
    "healthy",
)
"""Findings about acceptance and about differences between runs."""
PROCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results for one drafter."""

    name: str
    healthy: str
    """Name of the unbroken drafter with which it is compared; a healthy one's own name."""
    run: RunSummary
    verdict: str
    """First sentence of the verdict on the run alone."""
    verdict_beside: str
    """Verdict with the healthy drafter as the baseline."""
    alone: tuple[Finding, ...]
    """Findings of the run alone."""
    beside: tuple[Finding, ...]
    """Findings of the run with the healthy one as its baseline."""
    exit_code: int
    """Exit code of `check RUN --baseline HEALTHY --fail-on runs_part`."""

    @property
    def dead(self) -> bool:
        """Whether next to nothing is accepted."""
        return self.run.acceptance.marginal[0] < NOTHING_BELOW.value

    def found(self, name: str, *, beside: bool = False) -> Finding | None:
        """Return the finding with this id; None if there is none."""
        return next((f for f in (self.beside if beside else self.alone) if f.id == name), None)

    @property
    def asks(self) -> tuple[Finding, ...]:
        """Findings on the run alone that ask for action."""
        return tuple(f for f in self.alone if f.severity in (Severity.HIGH, Severity.MEDIUM))


def rows(folder: Path, names: Sequence[str] = (*HEALTHY, *FAULTS)) -> tuple[Row, ...]:
    """Record and judge the drafters of these names, a healthy one before those compared with it."""
    of = {name: FAULTS[name].of if name in FAULTS else name for name in names}
    wanted = sorted({*names, *of.values()})
    _record(folder, wanted)
    return tuple(_row(folder, name, of[name]) for name in names)


def _record(folder: Path, names: Sequence[str]) -> None:
    places = [(_place(folder, name), name, folder / "models" / _slug(name)) for name in names]
    for _, _, models in places:
        models.mkdir(parents=True)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(record, *place) for place in places]:
            done.result()


def _row(folder: Path, name: str, healthy: str) -> Row:
    run, same = (_measured(folder, kind) for kind in (name, healthy))
    baseline = replace(same, label=BASELINE)
    alone, beside = conclude([run]), conclude([run], (), baseline)
    judged = judge_analysis([rule_of("runs_part")], beside, baseline)
    return Row(
        name=name,
        healthy=healthy,
        run=run,
        verdict=alone.verdict[0],
        verdict_beside=beside.verdict[0],
        alone=alone.findings,
        beside=beside.findings,
        exit_code=outcome(judged),
    )


@functools.cache  # each healthy run stands beside several broken ones
def _measured(folder: Path, name: str) -> RunSummary:
    """Return the summary of a run, as `check` reads it."""
    return measure(Inputs(sources=[_place(folder, name)], labels=[name])).runs[0]


def _place(folder: Path, name: str) -> Path:
    return folder / "runs" / _slug(name)


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)


Say = Callable[[str], None]


def show(table: Sequence[Row], say: Say = print) -> None:
    """Print a block for each drafter."""
    for row in table:
        rates = " ".join(f"{rate:.3f}" for rate in row.run.acceptance.marginal)
        say(f"\n{row.name}: acceptance by depth {rates}")
        say(f"  verdict:    {row.verdict}")
        if row.verdict_beside != row.verdict:
            say(f"  baseline:   {row.verdict_beside}")
        for line in (*_findings("alone", row.alone), *_findings("baseline", row.beside)):
            say(line)
        first = next(iter(row.asks), None)
        if first:
            say(f"  advice:     {first.advice.partition('. ')[0]}.")
        likeliest = row.found("runs_part", beside=True)
        if likeliest and likeliest.causes:
            suspect = likeliest.causes[0]
            say(f"  likeliest:  {suspect.cause} [{suspect.observed or 'nothing recorded tells'}]")
        if row.name != row.healthy:
            say(f"  check --baseline '{row.healthy}' --fail-on runs_part: exit {row.exit_code}")


def _findings(title: str, findings: Sequence[Finding]) -> Iterator[str]:
    asks = (Severity.HIGH, Severity.MEDIUM)
    said = [
        f"{f.id} ({f.severity}, confidence {f.confidence})"
        for f in findings
        if f.id in RULES or f.severity in asks
    ]
    yield f"  {f'{title}:':11} {', '.join(said) or 'nothing'}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="drafters; default: all")
    wanted = parser.parse_args(argv).names or (*HEALTHY, *FAULTS)
    with tempfile.TemporaryDirectory(prefix="driftscope-broken-") as folder:
        show(rows(Path(folder), wanted))


if __name__ == "__main__":
    main()

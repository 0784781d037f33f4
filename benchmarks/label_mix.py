"""Measure how often two runs with other mixes of labels, and other prompts, are called different.

One label is easier than the other. Wanted: at most 6.8 % of 400 pairs of one drafter differ,
however their mixes do (5 %, and 1.64 standard errors), and a drafter that is worse on both labels
is found in at least 90 %. For comparison the same pairs are judged as they were served.

    PYTHONPATH=.:tests python -m benchmarks.label_mix [--trials 400]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from support.simulate import Prompts, Truth
from support.simulate.sums import side

from driftscope.analysis.compare.run_comparison import comparison
from driftscope.analysis.figures.measure import acceptance
from driftscope.analysis.figures.side import UNPAIRED, Pairing, Side
from driftscope.analysis.gate.baseline_relation import at_one_mix
from driftscope.analysis.gate.evaluate import Facts
from driftscope.analysis.gate.judge import Outcome, judge
from driftscope.analysis.gate.rule import rule_of

EASY, HARD = 0.6, -0.6
"""Logit shifts of the two labels."""
WORSE = -0.5
"""Logit shift of a worse drafter."""
MIXES = {"50 % and 50 %": (0.5, 0.5), "35 % and 65 %": (0.35, 0.65), "10 % and 90 %": (0.1, 0.9)}
"""Share of the easy label in each of two runs."""
GATE = "acceptance.mean_length < baseline.acceptance.mean_length"
"""Rule that a run breaks if it accepts less than its baseline, surely."""
TRUTH = Truth(requests=200, rounds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMix:
    """Shares of the pairs of runs that are called different."""

    mix: str
    called: float
    """Share of the pairs of one drafter."""
    as_served: float
    """Share of the pairs of one drafter, without a common mix of labels."""
    found: float
    """Share of the pairs of a drafter and a worse one, which serves more of the easy label."""
    gate: float
    """Share of the pairs of one drafter that break GATE."""
    gate_found: float
    """Share of the pairs of a drafter and a worse one that break it."""


def other_mixes(trials: int) -> Iterator[OtherMix]:
    """Yield the rates of every mix."""
    for name, (first, second) in MIXES.items():
        equal = [(_run(2 * t, first), _run(2 * t + 1, second)) for t in range(trials)]
        worse = [(a, _run(2 * t + 1, second, WORSE)) for t, (a, _) in enumerate(equal)]
        yield OtherMix(
            mix=name,
            called=_share(equal),
            as_served=_share([(_unlabelled(a), _unlabelled(b)) for a, b in equal]),
            found=_share(worse),
            gate=_broken(equal),
            gate_found=_broken(worse),
        )


def _run(seed: int, easy: float, shift: float = 0.0) -> Side:
    kinds = (
        Prompts(label="easy", share=easy, shift=EASY + shift),
        Prompts(label="hard", share=1 - easy, shift=HARD + shift),
    )
    return side(replace(TRUTH, prompts=kinds, seed=seed, prompts_seed=100_000 + seed))


def _unlabelled(run: Side) -> Side:
    return replace(run, labels=("",) * len(run.labels))


def _share(pairs: list[tuple[Side, Side]]) -> float:
    none = np.zeros(0, dtype=np.int64)
    how = Pairing(how=UNPAIRED, first=none, second=none, alone=0)
    found = [comparison(a, b, ("a", "b"), how) for a, b in pairs]
    return sum(any(each.differs for each in one.differences) for one in found) / len(found)


def _broken(pairs: list[tuple[Side, Side]]) -> float:
    """Return the share of the pairs whose second run breaks GATE with the first as baseline."""
    rule, broken = rule_of(GATE), 0
    for baseline, run in pairs:
        facts = Facts(
            run=_figures(run),
            baseline=_figures(baseline),
            has_finding=lambda _: None,
            relation=at_one_mix(run, baseline),
        )
        broken += judge([rule], [("run", facts)])[0].outcome is Outcome.BROKEN
    return broken / len(pairs)


def _figures(run: Side) -> dict[str, Any]:
    """Return the acceptance length in the form of the JSON report."""
    found = acceptance(run.rounds, spread=True)
    ends = found.mean_length_interval
    spread = None if ends is None else {"low": ends.low, "high": ends.high}
    length = {"mean_length": found.mean_length, "mean_length_interval": spread}
    return {"acceptance": length}


def show(rows: list[OtherMix]) -> None:
    """Print the rates."""
    head = f"{'called':>8}{'as served':>11}{'worse found':>13}{'gate':>8}{'gate, worse':>13}"
    print(f"\n{'share of the easy label':<26}{head}")
    for row in rows:
        print(
            f"{row.mix:<26}{row.called:>8.3f}{row.as_served:>11.3f}{row.found:>13.3f}"
            f"{row.gate:>8.3f}{row.gate_found:>13.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    show(list(other_mixes(parser.parse_args().trials)))


if __name__ == "__main__":
    main()

"""Analyses of simulated runs."""

from __future__ import annotations

from pathlib import Path

from support.replays import client_row, write_replay
from support.runs import Spec, write_run

from driftscope.pipeline import Analysis, Inputs, analyze
from driftscope.trace.reader import read_trace
from driftscope.trace.texts import TEXTS, TextFile

PAIR = {
    "eagle3": Spec(
        labels=("in distribution", "plain-text roles"),
        undrafted=("k_zero", "no_draft"),
        chunked=2,
        runner="v1",
        dropped={"queue_full": 3},
    ),
    "eagle3.1": Spec(
        conditional=(0.8, 0.65, 0.6, 0.6),
        growth=0.95,
        norm_output=True,
        drafter="tiny-eagle31",
        seed=8,
    ),
}
"""Runs like the shipped trio: one drafter drifts, the other does not, and the target has no
sink."""


def pair(folder: Path) -> Analysis:
    """Return the analysis of PAIR, recorded under `folder`."""
    return analysis_of(folder, PAIR)


def with_texts(folder: Path, *answer: str, prompt: str = "Why?") -> Inputs:
    """Return a simulated run, and a replay of its requests that kept this prompt and answer, whose
    pieces are rounds, of each."""
    run = write_run(folder / "run", Spec(requests=6))
    names = [f"req-{n}" for n in range(6)]
    rows = [client_row(n, response=name) for n, name in enumerate(names)]
    asked = write_replay(folder / "asked", rows, **{TEXTS: True})
    file = TextFile(asked)
    for name in names:
        file.put({"response": name, "prompt": prompt, "answer": answer, "by_round": True})
    file.close()
    return Inputs(sources=[asked, run], labels=["asked", "run"])


def analysis_of(folder: Path, specs: dict[str, Spec]) -> Analysis:
    """Return the analysis of simulated runs by label."""
    traces = [read_trace(write_run(folder / str(i), s)) for i, s in enumerate(specs.values())]
    return analyze(Inputs(sources=traces, labels=list(specs)))

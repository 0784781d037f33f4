"""Write the small traces of the gallery: `python -m support.gallery` from the folder tests.

They are committed, so that `make gallery` shows the same runs however the simulator changes.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from support.simulate.truth import Prompts, Truth
from support.simulate.write import simulate

TRACES = Path(__file__).parents[2] / "reports" / "gallery" / "traces"
HEALTHY = Truth(
    requests=48,
    rounds=16,
    growth=0.98,
    norm_output=True,
    self_last=0.2,
    sink=(0.3, 0.27),
    conditional=(0.86, 0.84, 0.82, 0.8, 0.79, 0.78, 0.77),
    batches=(4,),
    aux_norm=(1.0, 1.0, 1.0),
    target="target-8b",
    drafter="eagle3.1-8b",
)
DRIFTING = Truth(
    requests=48,
    rounds=16,
    batches=(4,),
    target="target-8b",
    drafter="eagle3-8b",
    prompts=(Prompts(label="chat", shift=0.3), Prompts(label="no template", shift=-0.9)),
)
WITHOUT = replace(DRIFTING, k_zero_above=0)
"""The server and prompts of DRIFTING, without speculation."""
LONG_CONTEXT = Truth(
    requests=48,
    rounds=16,
    batches=(2,),
    context=-0.7,
    growth=1.6,
    target="target-8b",
    drafter="eagle3-8b",
    prompts=(Prompts(label="documents", tokens=(200, 30000)),),
)
SERVER = Truth(
    requests=96,
    rounds=14,
    change=(0.6, -1.2),
    batches=(1, 4, 12, 24),
    k_zero_above=16,
    growth=1.1,
    norm_output=True,
    self_last=0.25,
    gap_s=0.4,
    target="target-8b",
    drafter="eagle3.1-8b",
    undrafted={"structured_output": 0.05, "preempted": 0.01, "token_budget": 0.02},
    prompts=(
        Prompts(label="chat", temperature=0.7),
        Prompts(label="json", shift=0.4),
        Prompts(label="agent", shift=-0.3, temperature=0.2),
    ),
)
RUNS = {
    "healthy": HEALTHY,
    "drifting": DRIFTING,
    "without": WITHOUT,
    "long-context": LONG_CONTEXT,
    "server": SERVER,
}


def write(folder: Path = TRACES) -> None:
    """Rewrite every run."""
    for name, truth in RUNS.items():
        shutil.rmtree(folder / name, ignore_errors=True)
        simulate(folder / name, truth)


if __name__ == "__main__":
    write()

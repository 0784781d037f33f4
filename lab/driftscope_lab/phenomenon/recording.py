"""The conditions under which SmolLM2's drafters are measured, and their runs in live vLLM."""

from __future__ import annotations

from pathlib import Path

from driftscope.distributions import SMOLLM2
from driftscope.errors import DriftscopeError
from driftscope.workloads.client.replay import Order, label_of
from driftscope.workloads.contenders import SERVER_FOLDER, Contender, ask_in_turn
from driftscope.workloads.suites.plan import Level
from driftscope.workloads.suites.prompts import prompts_of
from driftscope.workloads.suites.suite import load_suite

SUITE = load_suite(str(Path(__file__).parent / "suite.yaml"))
AS_TRAINED = "as trained"
CONTEXT = " tokens of context"
"""End of the names of the conditions with a longer context; the others are forms of the
template."""
FORMS = tuple(name for name in SUITE.conditions if not name.endswith(CONTEXT))
PERTURBED = tuple(form for form in FORMS if form != AS_TRAINED)
DRAFTERS = {"EAGLE-3": "eagle3", "EAGLE-3.1": "eagle31"}
"""Name of each drafter -> its folder."""
SINK = "0,"
"""The sink set of every run: the first token's slot."""
K = 8
AT_ONCE = 4


def label(condition: str) -> str:
    """Return the label of a condition's requests in a run."""
    return label_of(SUITE.name, condition)


def record(weights: Path, out: Path, prompts: int | None) -> dict[str, Path]:
    """Record both drafters in `weights` on the first `prompts` prompts, or all, in every condition;
    return the run of each. Whole runs in `out` are kept.

    Raises DriftscopeError if a drafter is not there or a server fails.
    """
    for folder in DRAFTERS.values():
        if not (weights / folder / "config.json").is_file():
            raise DriftscopeError(
                f"{weights}: no folder with the drafters eagle3 and eagle31 in it"
            )
    return {name: _recorded(weights / at, out / at, prompts) for name, at in DRAFTERS.items()}


def _recorded(drafter: Path, place: Path, prompts: int | None) -> Path:
    whole = place.with_suffix(".finished")
    if not whole.is_file():
        order = Order(
            url="",
            suite=SUITE,
            run=place,
            levels=[Level(concurrency=AT_ONCE)],
            limit=prompts,
            prompts=prompts_of(SMOLLM2),
        )
        server = Contender(
            label=drafter.name,
            model=SMOLLM2,
            speculation={
                "method": "eagle3",
                "model": str(drafter.absolute()),
                "num_speculative_tokens": K,
            },
            environ={
                "DRIFTSCOPE_STRICT": "1",
                "DRIFTSCOPE_EVERY": "1",
                "DRIFTSCOPE_DISTANCE_EVERY": "1",
                "DRIFTSCOPE_SINK_TOKENS": SINK,
            },
        )
        ((_, done),) = ask_in_turn([server], order, place.parent)
        if not done.whole:
            raise DriftscopeError(f"{done.run}: not every request was answered")
        whole.touch()
    return place / SERVER_FOLDER

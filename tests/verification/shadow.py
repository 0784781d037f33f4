"""Compare chains that a live engine drafted under an intervention with the float64 reference.

`python -m verification.shadow` (`make shadow`) runs the engines and prints the table.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.engine_process.job import Job, K, Outcome, prompts, run_jobs

from driftscope.ablate.ablated_draft import Prefix, ablated_draft
from driftscope.ablate.intervention import INTERVENTIONS
from driftscope.inspect.trial.passages import Passage
from driftscope.pipeline import summarise
from driftscope.trace.read.reader import read_trace
from driftscope.vocabulary import LIVE_INTERVENTIONS
from verification.truth import V2, WITHOUT_AOT, continue_greedily, models

SHADOW = {"SHADOW": "pin-size,hide-chain", "TOKEN_IDS": "1"}
ALWAYS = {**SHADOW, "SHADOW_EVERY": "1", "EVERY": "2"}
BOTH_SIZES: dict[str, Any] = {"sizes": (8, 1), "requests": 12}
COMPILED: dict[str, Any] = {
    "drafter": "eagle31",
    "compiled": True,
    "env": WITHOUT_AOT,
    "requests": 12,
}
JOBS = {
    "shadow eagle3": Job(drafter="eagle3", probe=ALWAYS, **BOTH_SIZES),
    "off eagle31": Job(drafter="eagle31", **BOTH_SIZES),
    "shadow eagle31": Job(drafter="eagle31", probe=ALWAYS, **BOTH_SIZES, processes=True),
    "off compiled": Job(**COMPILED),
    "shadow compiled": Job(**COMPILED, probe=ALWAYS),
    "off v2": Job(drafter="eagle31", **V2),
    "shadow v2": Job(drafter="eagle3", probe=ALWAYS, **V2),
}
WITHOUT = {
    "shadow eagle3": "off eagle31",
    "shadow eagle31": "off eagle31",
    "shadow compiled": "off compiled",
    "shadow v2": "off v2",
}
"""Engine with shadow rounds -> one without the probe that serves the same tokens, which do not
depend on the drafter."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Agreement of one engine's shadow chains with the reference, for one intervention."""

    chains: int
    tokens_equal: int
    """Number of chains whose K tokens all equal the reference's."""
    whole: int
    """Number of chains for which the target produced K tokens."""
    agreed_equal: int
    """Number of these whose agreement with the target equals the reference's."""
    served_equal: int
    """Number of these whose served chain's agreement equals the reference's."""
    changed: int
    """Number of chains that differ from the served one in the reference."""


def compare(outcome: Outcome) -> Mapping[str, Compared]:
    """Repeat every shadow chain of the outcome's first batch in float64, by intervention."""
    rows = read_trace(outcome.run).shadow.to_pylist()
    pairs: defaultdict[str, list[tuple[dict[str, Any], Any, Any, int]]] = defaultdict(list)
    asked = prompts(outcome.job.requests)
    for index, (ids, output) in enumerate(zip(asked, outcome.tokens(), strict=True)):
        mine = [row for row in rows if row["request"].partition("-")[0] == str(index)]
        for name in LIVE_INTERVENTIONS:
            chosen = [row for row in mine if row["intervention"] == name]
            pairs[name] += _pairs(outcome.job, [*ids, *output], len(ids), name, chosen)
    return {name: _compared(each) for name, each in pairs.items() if each}


def _pairs(
    job: Job, tokens: list[int], prompt_tokens: int, name: str, rows: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], Any, Any, int]]:
    """Return (recorded, reference's chain, its chain as served, index) for each row. A last round
    may start past the end of the answer."""
    rows = [row for row in rows if row["position"] <= len(tokens) - 2]
    if not rows:
        return []
    target, drafter = models(job)
    ids = torch.tensor(continue_greedily(target, tuple(tokens), K + 1))
    with torch.no_grad():
        layers = drafter.config.aux_layers
        states = target(ids[None, :-1], aux_layers=layers).aux
    passage = Passage(
        key="", ids=ids, prompt_tokens=prompt_tokens, states=dict(zip(layers, states, strict=True))
    )
    anchors = torch.tensor([row["position"] for row in rows])
    prefix = Prefix.of(drafter, target, passage)
    under, served = (
        ablated_draft(prefix, K, INTERVENTIONS[each], anchors) for each in (name, "as-served")
    )
    return [(row, under, served, at) for at, row in enumerate(rows)]


def _compared(pairs: list[tuple[dict[str, Any], Any, Any, int]]) -> Compared:
    whole = [pair for pair in pairs if pair[0]["known"] == K]
    return Compared(
        chains=len(pairs),
        tokens_equal=sum(row["token_ids"] == ref.tokens[at].tolist() for row, ref, _, at in pairs),
        whole=len(whole),
        agreed_equal=sum(row["agreed"] == _agreed(ref, at) for row, ref, _, at in whole),
        served_equal=sum(row["served_agreed"] == _agreed(ref, at) for row, _, ref, at in whole),
        changed=sum(
            ref.tokens[at].tolist() != served.tokens[at].tolist() for _, ref, served, at in pairs
        ),
    )


def _agreed(drafted: Any, at: int) -> int:
    return int(drafted.matches[at].int().cumprod(0).sum())


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="driftscope-shadow-") as folder:
        outcomes = run_jobs(JOBS, Path(folder))
        print(
            f"{'engine':16} {'same output':>12} {'intervention':12} {'chains':>7} {'tokens':>7} "
            f"{'whole':>6} {'agreed':>7} {'served':>7} {'changed':>8} {'errors':>7}"
        )
        words: list[str] = []
        for name, without in WITHOUT.items():
            on, off = outcomes[name], outcomes[without]
            batches = range(len(on.job.sizes))
            same = sum(on.tokens(batch) == off.tokens(batch) for batch in batches)
            words += [f"{name}: {each.words}" for each in summarise(on.run, name).live_shadow]
            errors = sum(sum(each.errors.values()) for each in read_trace(on.run).statuses)
            for intervention, found in compare(on).items():
                print(
                    f"{name:16} {same:6}/{len(batches):<5} {intervention:12} {found.chains:7} "
                    f"{found.tokens_equal:7} {found.whole:6} {found.agreed_equal:7} "
                    f"{found.served_equal:7} {found.changed:8} {errors:7}"
                )
        print("", *words, sep="\n")


if __name__ == "__main__":
    main()

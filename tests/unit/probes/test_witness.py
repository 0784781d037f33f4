"""The start-up witness where the chain that it watches is another run of the recorded one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from driftscope_probes.buffers import Layout
from driftscope_probes.drafter import Kind
from driftscope_probes.engine import DraftStep
from driftscope_probes.witness import StartWitness, Verdict

K = 3
LAYOUT = Layout(depths=K, layers=0, aux=0)
LOGITS = [torch.tensor([[0.0, float(depth)]]) for depth in range(K)]


class Model:
    def __init__(self) -> None:
        self._logits = iter(LOGITS)

    def __call__(self) -> torch.Tensor:
        return torch.ones(1, 2)

    def compute_logits(self, _: torch.Tensor) -> torch.Tensor:
        return next(self._logits)


def verdict_of(off: list[float], served: list[int], *, of_other_run: bool) -> Verdict:
    """Watch a chain of the tokens 1, 2, 3, and judge one whose top-1 is `off` by so much."""
    model: Any = Model()
    kind = Kind(name="own", methods=(), fed=False)
    drafter: Any = SimpleNamespace(model=model, kind=kind, k=K, compiled=True)
    holder = SimpleNamespace(model=model)
    witness = StartWitness(drafter, {}, holder, of_other_run=of_other_run)
    at: Any = SimpleNamespace(rows=torch.tensor([0]), position=torch.tensor([5]))
    witness.choose(DraftStep(("a",), bytes(1), K), at)
    witness.watch()
    for _ in range(K):
        holder.model.compute_logits(holder.model())
    witness.end()
    if of_other_run:
        witness.drafted(torch.tensor([[1, 2, 3]]))
    values = torch.full((1, LAYOUT.width), torch.nan)
    first = LAYOUT.column("top1")
    right = torch.cat(LOGITS).softmax(-1).amax(-1)
    values[0, first : first + K] = right + torch.tensor(off)
    return witness.judge(values, LAYOUT, {}, None, torch.tensor([served]))


@pytest.mark.parametrize(
    ("off", "served", "of_other_run", "agrees"),
    [
        ([0.0, 0.0, 0.0], [1, 2, 3], False, True),
        ([0.0, 0.01, 0.0], [1, 2, 3], False, False),
        ([0.0, 0.04, 0.0], [1, 2, 3], True, True),
        ([0.0, 0.3, 0.0], [1, 2, 3], True, False),
        ([0.0, 0.3, 0.3], [9, 2, 3], True, True),
        ([0.3, 0.3, 0.3], [9, 2, 3], True, False),
        ([0.0, 0.3, 0.3], [1, 9, 3], True, False),
    ],
    ids=["same", "off", "rounded", "wrong", "other chain", "wrong before", "wrong until"],
)
def test_depths_are_compared_until_the_tokens_differ(
    off: list[float], served: list[int], of_other_run: bool, agrees: bool
) -> None:
    verdict = verdict_of(off, served, of_other_run=of_other_run)
    assert (verdict.fault is None) is agrees, verdict.fault

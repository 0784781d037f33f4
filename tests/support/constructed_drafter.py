"""A drafter built by hand, whose chains fail for one known reason, and its ablation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from driftscope.ablate.intervention import FACTORIAL, INTERVENTIONS
from driftscope.ablate.result import Ablation, Decomposition, decompose
from driftscope.ablate.run import MeasuredPrompt, PromptMeter, ablation_from
from driftscope.inspect.reference.drafter import ChainKeys, StepOutput
from driftscope.inspect.trial.target import Passage

VOCABULARY, K = 20, 4
PROMPT, ANSWER, PASSAGES = 8, 16, 24
CHAINS = [INTERVENTIONS[name] for name in FACTORIAL]
CAUSES = ("healthy", "noisy head", "tokens", "states", "positions")
PART_OF = {"tokens": "tokens", "states": "states", "positions": "rest"}
"""Part that each cause makes; the others make none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Share of drafts, or of fed states, that the cause spoils."""

    head: float = 0.0
    """Share of drafts that are random, at every depth alike."""
    token: bool = False
    """Whether a draft is random after a token that is not the target's."""
    state: float = 0.0
    """Share of the states that are random when they are fed to the next depth."""
    late: float = 0.0
    """Share of drafts that are random at the end of the answer; none are at its start."""


KNOWN = {
    "healthy": Cause(),
    "noisy head": Cause(head=0.3),
    "tokens": Cause(head=0.2, token=True),
    "states": Cause(head=0.1, state=0.15),
    "positions": Cause(late=1.0),
}


class ConstructedDrafter:
    """Has the methods of `driftscope.inspect.reference.drafter.Drafter` that a chain calls."""

    def __init__(self, cause: Cause, seed: int) -> None:
        self._cause = cause
        self._random = torch.Generator().manual_seed(seed)
        layer = SimpleNamespace(vocab_size=VOCABULARY)
        self.config = SimpleNamespace(
            aux_layers=(1,), layer=layer, norm_output=False, draft_vocab_size=None
        )

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        return states[0]

    def context(self, _embedding: Tensor, fused: Tensor) -> Any:
        return SimpleNamespace(slots=fused.shape[1])

    def embed(self, ids: Tensor, _target: Any) -> Tensor:
        return functional.one_hot(ids, VOCABULARY).float()

    def step(
        self,
        *,
        embedding: Tensor,
        hidden: Tensor,
        depth: int,
        anchors: Tensor,
        context: Any,
        **_: Any,
    ) -> StepOutput:
        blocks = hidden.view(1, len(anchors), -1, VOCABULARY)
        last = PROMPT + ANSWER
        late = ((anchors + depth - PROMPT) / (last - PROMPT)).clamp(0, 1) * self._cause.late
        spoilt = self._one_in(late + self._cause.head)
        if self._cause.token:
            spoilt |= (embedding[0] * blocks[0, :, 0]).sum(-1) < 0.5
        noise = torch.rand((len(anchors), VOCABULARY), generator=self._random)
        drafted = torch.where(spoilt[:, None], noise, blocks[0, :, 1])
        moved = torch.cat([blocks[:, :, 1:], torch.zeros_like(blocks[:, :, :1])], 2).flatten(2)
        lost = self._one_in(torch.full((len(anchors),), self._cause.state))
        other = torch.rand(moved.shape, generator=self._random)
        fed = torch.where(lost[None, :, None], other, moved)
        return StepOutput(
            prenorm=fed,
            postnorm=drafted[None],
            fed=fed,
            attention=(torch.full((1, 1, len(anchors), context.slots + depth - 1), 0.01),),
            chain_keys=ChainKeys(),
        )

    def lm_head(self, postnorm: Tensor) -> Tensor:
        return postnorm

    def target_ids(self, ids: Tensor) -> Tensor:
        return ids

    def _one_in(self, share: Tensor) -> Tensor:
        return torch.rand(share.shape, generator=self._random) < share


def passages(seed: int) -> list[Passage]:
    """Return random answers of a target, with the states that hold what follows each token."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(PASSAGES):
        ids = torch.from_numpy(random.integers(0, VOCABULARY, PROMPT + ANSWER))
        ahead = [functional.one_hot(ids[1:].roll(-n), VOCABULARY).float() for n in range(K + 2)]
        for n, block in enumerate(ahead):
            block[len(block) - n :] = 0.0
        states = {1: torch.cat(ahead, -1)[None]}
        made.append(Passage(key=str(number), ids=ids, prompt_tokens=PROMPT, states=states))
    return made


@functools.cache
def _measured(cause: str, seed: int) -> list[MeasuredPrompt]:
    drafter: Any = ConstructedDrafter(KNOWN[cause], seed)
    meter = PromptMeter(drafter=drafter, target=drafter, k=K, positions=20)
    return [meter.measured(passage, CHAINS) for passage in passages(seed)]


def decomposition_of(cause: str, seed: int) -> Decomposition:
    """Return the decomposition of a drafter with a known cause."""
    measured = _measured(cause, seed)
    found = decompose(
        {name: [one.drafts[name].matches.numpy() for one in measured] for name in FACTORIAL}
    )
    assert found is not None
    return found


def constructed_ablation(cause: str = "states", seed: int = 0, *, lacking: int = 2) -> Ablation:
    """Return the ablation of a drafter with a known cause: the factors. `lacking`: tokens of 8 that
    are lacking."""
    vocabulary = {"prose": (8, lacking), "code": (8, 0)}
    return ablation_from(
        [replace(one, vocabulary=vocabulary) for one in _measured(cause, seed)],
        CHAINS,
        names=("models/constructed", "models/target"),
        not_applicable={"served-dtype": "no config names a dtype"},
    )

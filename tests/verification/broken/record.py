"""Runs of healthy and broken drafters on the reference engine, on the same prompts."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from driftscope.inspect.reference.chain import Chain, replay
from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.reference.drafter import Drafter, Target, load_target
from driftscope.inspect.reference.engine import Generation, ReferenceRun, Round, leading_matches
from driftscope_lab.trio import encode, load_prompts
from verification.broken.faults import FAULTS, Fault, healthy_models, models
from verification.truth import continue_greedily


@torch.no_grad()
def batched_rounds(
    target: Target,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    greedy: Sequence[int],
    max_tokens: int,
    k: int,
    on_round: Callable[[Round], None],
    eos_token_id: int,
) -> Generation:
    """Return what `driftscope.inspect.reference.engine.generate` returns.

    `greedy` are the target's next `max_tokens + k + 1` tokens, past an end token too. A chain is
    drafted at each position of the answer, whether or not a round starts there: thirty chains of a
    batch take little longer than one. Every round has its share of the time.
    """
    start = time.perf_counter()
    tokens, first = [*prompt_ids, *greedy], len(prompt_ids) - 1
    output = _until_end(greedy[:max_tokens], eos_token_id)
    anchors = range(first, first + len(output) - 1)
    chains = replay(target, drafter, tokens[: anchors.stop + 1], len(prompt_ids), anchors, k)
    starts = _starts(chains, greedy)
    share_s = (time.perf_counter() - start) / max(1, len(starts))
    rounds = []
    for at, accepted in starts:
        rounds.append(
            Round(
                chain=chains[at],
                drafted=k,
                accepted=accepted,
                emitted=min(accepted + 1, len(output) - at - 1),
                draft_s=share_s,
                step_s=share_s,
            )
        )
        on_round(rounds[-1])
    return Generation(
        token_ids=tuple(output),
        rounds=tuple(rounds),
        ttft_s=share_s,
        duration_s=share_s * (1 + len(rounds)),
        finish_reason="stop" if output[-1] == eos_token_id else "length",
    )


def _until_end(ids: Sequence[int], end: int) -> list[int]:
    """Return the tokens up to the first end token, which is included."""
    ids = list(ids)
    return ids[: ids.index(end) + 1] if end in ids else ids


def _starts(chains: Sequence[Chain], greedy: Sequence[int]) -> list[tuple[int, int]]:
    """Return index and accepted tokens of the chains at which a round starts."""
    found, at = [], 0
    while at < len(chains):
        accepted = leading_matches(chains[at].token_ids, greedy[at + 1 :])
        found.append((at, accepted))
        at += accepted + 1
    return found


K, REQUESTS, MAX_TOKENS = 4, 36, 24
"""Size of the runs: enough rounds to identify a dead drafter with certainty, and to show the
mildest fault."""


class FaultyRun(ReferenceRun):
    """A run whose engine may deviate from its manifest.

    The target answers identically with every drafter, so that each answer is computed once.
    """

    def __init__(self, run: Path, target: Path, drafter: Path, *, fault: Fault | None) -> None:
        super().__init__(run, target, drafter, k=K)
        self._answering = _loaded(target)
        if fault and fault.engine:
            fault.engine(self._drafter)

    def _generated(
        self, prompt_ids: Sequence[int], max_tokens: int, on_round: Callable[[Round], None]
    ) -> Generation:
        answer = continue_greedily(self._answering, tuple(prompt_ids), max_tokens + K + 1)
        greedy = answer[len(prompt_ids) :]
        return batched_rounds(
            self._target, self._drafter, prompt_ids, greedy, max_tokens, K, on_round, EOS_ID
        )


@functools.cache
def _loaded(target: Path) -> Target:
    return load_target(target, torch.float32)


def record(run: Path, name: str, folder: Path) -> Path:
    """Record the healthy drafter or the fault of that name into `run`; models go to `folder`."""
    torch.set_num_threads(1)
    fault = FAULTS.get(name)
    target, drafter = models(folder, fault) if fault else healthy_models(folder, name)
    prompts = [encode(prompt.in_distribution) for prompt in load_prompts()[:REQUESTS]]
    with torch.inference_mode(), FaultyRun(run, target, drafter, fault=fault) as engine:
        for ids in prompts:
            engine.generate(ids, max_tokens=MAX_TOKENS, label="in distribution")
    return run

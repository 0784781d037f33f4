"""Rounds of a request whose answer is known, drafted in one batch instead of one after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from driftscope.inspect.reference.chain import Chain, replay
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.reference.engine import Generation, Round, leading_matches
from driftscope.inspect.reference.layers import Target


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

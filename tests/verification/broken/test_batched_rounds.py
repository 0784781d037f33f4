"""Rounds drafted in one batch are those of the engine that drafts one after another."""

from __future__ import annotations

import pytest
import torch
from support.reference_engine import Round, generate

from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.reference.drafter import load_drafter, load_target
from driftscope_lab.trio import encode, load_prompts, trio_path
from verification.broken.faults import batched_rounds
from verification.truth import continue_greedily

K = 4


@pytest.mark.parametrize("drafter", ["eagle3", "eagle31"])
@pytest.mark.parametrize(
    ("max_tokens", "end_at", "reason"), [(24, 0, "length"), (1, 0, "length"), (24, 13, "stop")]
)
def test_they_are_those_of_the_engine(
    drafter: str, max_tokens: int, end_at: int, reason: str
) -> None:
    """`end_at`: index of the answer's token that is taken for the end token; 0: the real one."""
    pair = load_target(trio_path() / "target"), load_drafter(trio_path() / drafter)
    ids = encode(load_prompts()[0].in_distribution)
    greedy = continue_greedily(pair[0], tuple(ids), max_tokens + K + 1)[len(ids) :]
    end = greedy[end_at] if end_at else EOS_ID
    told: list[Round] = []
    mine = batched_rounds(*pair, ids, greedy, max_tokens, K, told.append, end)
    theirs = generate(*pair, ids, max_tokens, K, eos_token_id=end)
    assert (mine.token_ids, mine.finish_reason) == (theirs.token_ids, theirs.finish_reason)
    assert mine.finish_reason == reason
    assert told == list(mine.rounds)
    assert [_counts(chain) for chain in mine.rounds] == [_counts(chain) for chain in theirs.rounds]
    for one, other in zip(mine.rounds, theirs.rounds, strict=True):
        for name in ("self_mass", "prompt_mass", "distance_mass", "fed_rms", "top1", "entropy"):
            wanted = torch.tensor(getattr(other.chain, name))
            torch.testing.assert_close(
                torch.tensor(getattr(one.chain, name)), wanted, atol=1e-5, rtol=1e-4
            )


def _counts(round_: Round) -> tuple[object, ...]:
    chain = round_.chain
    return chain.position, chain.token_ids, round_.drafted, round_.accepted, round_.emitted

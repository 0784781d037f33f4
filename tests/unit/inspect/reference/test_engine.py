import itertools

import pytest
import torch

from driftscope.inspect.reference.chain import MASSES, PER_DEPTH
from driftscope.inspect.reference.drafter import Drafter, Target
from driftscope.inspect.reference.engine import Round, generate, leading_matches, replay

Pair = tuple[Target, Drafter]
PROMPT = [7, 3, 9, 21, 4, 4, 17]
OUTPUT_TOKENS = 60
K = 4


@torch.no_grad()
def plain_greedy(target: Target, prompt: list[int], count: int) -> tuple[int, ...]:
    """One token at a time, no cache."""
    ids = torch.tensor([prompt])
    for _ in range(count):
        newest = target.logits(target(ids).hidden[:, -1:]).argmax(-1)
        ids = torch.cat([ids, newest], 1)
    return tuple(ids[0, len(prompt) :].tolist())


def test_the_output_is_that_of_plain_greedy_decoding(pair: Pair) -> None:
    result = generate(*pair, PROMPT, OUTPUT_TOKENS, K)
    assert result.token_ids == plain_greedy(pair[0], PROMPT, OUTPUT_TOKENS)
    assert result.finish_reason == "length"


def test_rounds_account_for_every_token_after_the_first(pair: Pair) -> None:
    result = generate(*pair, PROMPT, OUTPUT_TOKENS, K)
    assert 1 + sum(one.emitted for one in result.rounds) == OUTPUT_TOKENS
    positions = [one.chain.position for one in result.rounds]
    assert positions[0] == len(PROMPT) - 1
    steps = [one.accepted + 1 for one in result.rounds[:-1]]
    assert [b - a for a, b in itertools.pairwise(positions)] == steps
    assert {one.drafted for one in result.rounds} == {K}


def test_accepted_are_the_drafted_tokens_that_came_out(pair: Pair) -> None:
    result = generate(*pair, PROMPT, OUTPUT_TOKENS, K)
    text = [*PROMPT, *result.token_ids]
    for one in result.rounds[:-2]:
        start = one.chain.position + 2
        assert one.accepted == leading_matches(one.chain.token_ids, text[start : start + K])


def test_a_generated_chain_replays_to_the_same_figures(pair: Pair) -> None:
    result = generate(*pair, PROMPT, OUTPUT_TOKENS, K, n_sink=2)
    anchors = [one.chain.position for one in result.rounds]
    text = [*PROMPT, *result.token_ids]
    for one, again in zip(
        result.rounds, replay(*pair, text, len(PROMPT), anchors, K, 2), strict=True
    ):
        assert again.token_ids == one.chain.token_ids
        assert again.prompt_tokens == one.chain.prompt_tokens == len(PROMPT)
        for name in (*MASSES, *PER_DEPTH, "aux_rms"):
            expected = getattr(one.chain, name)
            assert getattr(again, name) == pytest.approx(expected, abs=1e-10), name


def test_it_stops_at_the_end_token(pair: Pair) -> None:
    full = generate(*pair, PROMPT, OUTPUT_TOKENS, K).token_ids
    end = full[20]
    result = generate(*pair, PROMPT, OUTPUT_TOKENS, K, eos_token_id=end)
    assert result.finish_reason == "stop"
    assert result.token_ids == full[: full.index(end) + 1]


def test_times_come_from_the_clock_given(pair: Pair) -> None:
    ticks = itertools.count()
    seen: list[Round] = []
    result = generate(*pair, PROMPT, 10, K, on_round=seen.append, clock=lambda: float(next(ticks)))
    assert tuple(seen) == result.rounds
    assert result.ttft_s == 1.0
    assert {(one.draft_s, one.step_s) for one in seen} == {(1.0, 2.0)}
    assert result.duration_s == 1 + 3 * len(seen) + 1


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "k"), [([], 5, 2), ([1], 0, 2), ([1], 5, 0), ([1] * 100, 50, 4)]
)
def test_impossible_requests_are_refused(
    pair: Pair, prompt: list[int], max_tokens: int, k: int
) -> None:
    with pytest.raises(ValueError, match="positions"):
        generate(*pair, prompt, max_tokens, k)

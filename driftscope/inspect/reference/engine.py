"""A minimal speculative decoding engine: one request, greedy, one chain per round.

It generates what greedy decoding of the target alone would, and records each round as a probe in a
serving engine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from driftscope.inspect.reference.chain import Chain, draft_chains
from driftscope.inspect.reference.drafter import Context
from driftscope.inspect.reference.model import Drafter, Target
from driftscope.inspect.reference.replay import DEFAULT_N_SINK, replay
from driftscope.inspect.reference.target import KVCache

__all__ = ["Generation", "Round", "generate", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One draft and its verification.

    `drafted` is K, `accepted` the number of leading drafted tokens equal to the target's greedy
    ones, and `emitted` the number of tokens that the request got: accepted + 1, unless it ended
    first. `draft_s` and `step_s` are the durations of drafting and of the whole round, in seconds.
    """

    chain: Chain
    drafted: int
    accepted: int
    emitted: int
    draft_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One request. `token_ids` is the output, whose first token came with the prefill.

    `ttft_s` is the time to that token, `duration_s` the time to the last one, in seconds.
    `finish_reason` is `stop` if the output ends with the end token, else `length`.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    ttft_s: float
    duration_s: float
    finish_reason: Literal["stop", "length"]


@torch.no_grad()
def generate(
    target: Target,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    max_tokens: int,
    k: int,
    n_sink: int = DEFAULT_N_SINK,
    *,
    eos_token_id: int | None = None,
    on_round: Callable[[Round], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generation:
    """Generate up to `max_tokens` tokens, K drafts per round; pass rounds to `on_round`.

    Raises ValueError if the positions do not suffice for prompt, output and a last chain.
    """
    request = _Request(target, drafter, prompt_ids, max_tokens, k, n_sink, eos_token_id, clock)
    start = clock()
    request.prefill()
    ttft_s = clock() - start
    rounds = []
    while not request.finished:
        rounds.append(request.round())
        if on_round is not None:
            on_round(rounds[-1])
    return Generation(
        token_ids=tuple(request.output),
        rounds=tuple(rounds),
        ttft_s=ttft_s,
        duration_s=clock() - start,
        finish_reason="stop" if request.output[-1] == eos_token_id else "length",
    )


class _Request:
    """The state of a request between rounds.

    `_ids` are all known tokens; the target has not yet run on the last one. `_unseen_aux` are the
    captured states of the slots that the drafter's context does not contain yet.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        prompt_ids: Sequence[int],
        max_tokens: int,
        k: int,
        n_sink: int,
        eos_token_id: int | None,
        clock: Callable[[], float],
    ) -> None:
        capacity = len(prompt_ids) + max_tokens + k + 1
        limit = target.config.max_position_embeddings
        if not prompt_ids or max_tokens < 1 or k < 1 or capacity > limit:
            raise ValueError(
                f"{len(prompt_ids)} prompt + {max_tokens} output tokens with K = {k} need at least "
                f"one each and at most {limit} positions"
            )
        self._target, self._drafter, self._clock = target, drafter, clock
        self._ids = list(prompt_ids)
        self._prompt_tokens, self._max_tokens = len(prompt_ids), max_tokens
        self._k, self._n_sink, self._eos_token_id = k, n_sink, eos_token_id
        self._cache = KVCache(capacity)
        self._context: Context | None = None
        self._unseen_aux: tuple[Tensor, ...] = ()

    @property
    def output(self) -> list[int]:
        return self._ids[self._prompt_tokens :]

    @property
    def finished(self) -> bool:
        return len(self.output) >= self._max_tokens or self._ids[-1] == self._eos_token_id

    def prefill(self) -> None:
        """Run the target over the prompt and take its first token."""
        greedy, self._unseen_aux = self._run_target(self._ids)
        self._ids.append(greedy[-1])

    def round(self) -> Round:
        """Draft a chain after the last verified slot, verify it, keep what was accepted."""
        start = self._clock()
        chain = self._draft()
        draft_s = self._clock() - start
        greedy, aux = self._run_target([self._ids[-1], *chain.token_ids])
        accepted = leading_matches(chain.token_ids, greedy)
        verified = accepted + 1
        # Keep what was verified; the newest token has no keys yet, and the next round runs it.
        self._cache.truncate(len(self._ids) + accepted)
        self._unseen_aux = tuple(layer[:, :verified] for layer in aux)
        emitted = self._emit([*chain.token_ids[:accepted], greedy[accepted]])
        return Round(
            chain=chain,
            drafted=len(chain.token_ids),
            accepted=accepted,
            emitted=emitted,
            draft_s=draft_s,
            step_s=self._clock() - start,
        )

    def _draft(self) -> Chain:
        last = len(self._ids) - 2
        self._extend_context()
        assert self._context is not None  # noqa: S101 it was just extended
        (chain,) = draft_chains(
            self._target,
            self._drafter,
            anchors=torch.tensor([last]),
            next_ids=torch.tensor(self._ids[-1:]),
            aux=tuple(layer[:, -1:] for layer in self._unseen_aux),
            context=self._context,
            prompt_tokens=self._prompt_tokens,
            k=self._k,
            n_sink=self._n_sink,
        )
        return chain

    def _extend_context(self) -> None:
        """Add the newly verified slots, each with the embedding of the token after it."""
        count = self._unseen_aux[0].shape[1]
        embedding = self._drafter.embed(torch.tensor([self._ids[-count:]]), self._target)
        fused = self._drafter.fuse(self._unseen_aux)
        self._context = self._drafter.context(embedding, fused, self._context)

    def _run_target(self, ids: list[int]) -> tuple[list[int], tuple[Tensor, ...]]:
        """Return the greedy token after each of `ids`, and the captured states at each."""
        output = self._target(
            torch.tensor([ids]), aux_layers=self._drafter.config.aux_layers, cache=self._cache
        )
        greedy: list[int] = self._target.logits(output.hidden[0]).argmax(-1).tolist()
        return greedy, output.aux

    def _emit(self, ids: list[int]) -> int:
        """Append `ids` up to the end token or the token limit; return how many were appended."""
        for count, token in enumerate(ids, start=1):
            self._ids.append(token)
            if self.finished:
                return count
        return len(ids)


def leading_matches(drafted: Sequence[int], greedy: Sequence[int]) -> int:
    """Return how many tokens of `drafted` equal those of `greedy` before the first difference."""
    for count, (left, right) in enumerate(zip(drafted, greedy, strict=False)):
        if left != right:
            return count
    return len(drafted)

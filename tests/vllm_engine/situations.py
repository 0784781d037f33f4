"""What a served engine meets beyond plain decoding, packed into as few engines as will do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from vllm_engine.job import Job, K, prompts
from vllm_engine.truth import RECORD

MAX_MODEL_LEN = 384
BATCHED_TOKENS = 128
"""A longer prompt comes in chunks."""
BLOCK, BLOCKS = 32, 20
"""640 tokens of KV cache: not enough for six requests of 200."""
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 40}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request. `at_step`: engine step from which it is there."""

    name: str
    prompt: list[int]
    sampling: dict[str, Any] = field(default_factory=lambda: dict(GREEDY))
    at_step: int = 0
    abort_after: int | None = None
    """Output tokens at which the caller aborts it."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Requests that meet in one engine; situations of an engine run one after another."""

    name: str
    asks: tuple[Ask, ...]


def _prompt(index: int, length: int | None = None) -> list[int]:
    """Held-out text; a longer one goes on with those of the prompts that follow."""
    known = prompts(64)
    if length is None:
        return known[index]
    ids: list[int] = []
    while len(ids) < length:
        ids += known[index % len(known)]
        index += 1
    return ids[:length]


def _greedy(**changes: Any) -> dict[str, Any]:
    return {**GREEDY, **changes}


def tight() -> tuple[Situation, ...]:
    """Little KV cache, few tokens per step, prefix caching."""
    shared, twice = _prompt(50, 120), _prompt(55, 200)
    return (
        Situation(
            name="mixed",
            asks=tuple(
                Ask(name=f"mixed{i}", prompt=_prompt(i, 100), at_step=3 * i) for i in range(4)
            ),
        ),
        Situation(
            name="chunked",
            asks=(
                Ask(name="chunked0", prompt=_prompt(10, 300)),
                Ask(name="chunked1", prompt=_prompt(14, 200), at_step=4),
            ),
        ),
        Situation(
            name="prefix",
            asks=(
                Ask(name="prefix0", prompt=[*shared, *_prompt(20, 20)]),
                Ask(name="prefix1", prompt=[*shared, *_prompt(21, 60)], at_step=12),
                Ask(name="prefix2", prompt=[*twice, *_prompt(22, 80)], at_step=24),
                Ask(name="prefix3", prompt=[*twice, *_prompt(23, 20)], at_step=36),
            ),
        ),
        Situation(
            name="preempted",
            asks=tuple(
                Ask(
                    name=f"preempted{i}",
                    prompt=_prompt(30 + i, 110),
                    sampling=_greedy(max_tokens=100),
                    at_step=2 * i,
                )
                for i in range(6)
            ),
        ),
        Situation(
            name="context",
            asks=(
                Ask(
                    name="context0",
                    prompt=_prompt(40, MAX_MODEL_LEN - 44),
                    sampling=_greedy(max_tokens=100),
                ),
                Ask(
                    name="context1",
                    prompt=_prompt(45, 60),
                    sampling=_greedy(max_tokens=80),
                    at_step=12,
                ),
            ),
        ),
    )


def tight_engine() -> dict[str, Any]:
    return {
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 6,
        "max_num_batched_tokens": BATCHED_TOKENS,
        "block_size": BLOCK,
        "num_gpu_blocks_override": BLOCKS,
        "enable_prefix_caching": True,
        "per_request_spec_decode_metrics": "detailed",
    }


IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

_TIGHT = Job(
    drafter="eagle31",
    main="situations_main.py",
    situations=tight(),
    llm=tight_engine(),
    env=IN_PROCESS,
)
SITUATION_JOBS = {
    "tight v1 off": _TIGHT,
    "tight v1": replace(_TIGHT, probe=RECORD),
    "tight v2": replace(_TIGHT, runner="v2", probe=RECORD),
}

"""Situations of a served engine beyond plain decoding, packed into as few engines as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.engine_process.job import Job, K, prompts

from driftscope_lab.trio import trio_path
from verification.truth import RECORD
from verification.versions import older_job, runners, version

MAX_MODEL_LEN = 384
SEQUENCES = 6
BATCHED_TOKENS = 128
CHUNK = BATCHED_TOKENS - (K + 1) - 1
"""Longest prompt that is not chunked; with a chunk and one decode, there is room for one more
token."""
BLOCK, BLOCKS = 32, 20
"""KV cache of 640 tokens: not enough for six requests of 200."""
K_BY_BATCH = [[1, 2, K], [3, 3, 3], [4, 6, 0]]
"""K for each range of batch sizes."""
WORDS = "([A-Z][0-9]{2} ){6}"
STOP_TOKEN = 36
"""Token id at which a request stops: the tenth that the target generates for it."""
WARM = {"temperature": 0.8, "seed": 3}
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 40}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request. `at_step`: engine step at which it arrives."""

    name: str
    prompt: list[int]
    sampling: dict[str, Any] = field(default_factory=lambda: dict(GREEDY))
    at_step: int = 0
    abort_after: int | None = None
    """Number of output tokens at which the caller aborts it."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Requests that run together in one engine; situations of an engine run one after another."""

    name: str
    asks: tuple[Ask, ...]
    lose_drafts: tuple[int, ...] = ()
    """Engine steps whose drafts do not reach the scheduler (synchronous scheduling only)."""
    k_changes: tuple[tuple[int, int], ...] = ()
    """Engine steps from which K differs at each batch size. No vLLM up to 0.32 has a call for that:
    the scheduler's own table of K by batch size is replaced while requests run."""


def _prompt(index: int, length: int | None = None) -> list[int]:
    """Return held-out text; a longer one continues with the texts of the following prompts."""
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
    """Return situations with little KV cache, few tokens per step and prefix caching."""
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
            name="budget",
            asks=(
                Ask(name="budget0", prompt=_prompt(20, 5)),
                Ask(name="budget1", prompt=_prompt(26, 2 * CHUNK)),
                Ask(name="budget2", prompt=_prompt(24, 5)),
            ),
        ),
        Situation(
            name="context",
            asks=(
                Ask(
                    name="context0",
                    prompt=_prompt(41, MAX_MODEL_LEN - 44),
                    sampling=_greedy(max_tokens=100),
                ),
                Ask(
                    name="context1",
                    prompt=_prompt(45, 50),
                    sampling=_greedy(max_tokens=80),
                    at_step=3,
                ),
            ),
        ),
    )


def structured() -> Situation:
    """Return a request with a grammar that the drafter does not know, together with one without."""
    return Situation(
        name="structured",
        asks=(
            Ask(
                name="structured0",
                prompt=_prompt(0, 90),
                sampling=_greedy(regex=WORDS, ignore_eos=False),
            ),
            Ask(name="structured1", prompt=_prompt(3, 70)),
        ),
    )


def flows() -> tuple[Situation, ...]:
    """Return situations with K by batch size, and with requests that end in every way."""
    return (
        Situation(
            name="k",
            asks=tuple(
                Ask(
                    name=f"k{i}",
                    prompt=_prompt(4 + i, 50),
                    sampling=_greedy(max_tokens=60 - 4 * i),
                    at_step=3 * i,
                )
                for i in range(6)
            ),
        ),
        Situation(
            name="cut",
            asks=tuple(
                Ask(name=f"cut{n}", prompt=_prompt(0, 100), sampling=_greedy(max_tokens=n))
                for n in (1, 2)
            ),
        ),
        Situation(
            name="cut",
            asks=tuple(
                Ask(name=f"cut{n}", prompt=_prompt(0, 100), sampling=_greedy(max_tokens=n))
                for n in (4, 13)
            ),
        ),
        Situation(
            name="ends",
            asks=(
                Ask(name="ends0", prompt=_prompt(6, 90), sampling=_greedy(stop=[":"])),
                Ask(name="ends1", prompt=_prompt(8, 90), abort_after=12),
            ),
        ),
        Situation(
            name="ends",
            asks=(
                Ask(
                    name="ends2",
                    prompt=_prompt(6, 90),
                    sampling=_greedy(stop_token_ids=[STOP_TOKEN]),
                ),
                Ask(name="ends3", prompt=_prompt(9, 60), abort_after=1),
            ),
        ),
    )


CHANGED_K = (2, 6, K, 0, 5)
"""Values of K, one after the other, while requests run."""
CHANGED = Situation(
    name="changed",
    asks=tuple(
        Ask(
            name=f"changed{i}",
            prompt=_prompt(20 + i, 50),
            sampling=_greedy(max_tokens=60),
            at_step=4 * i,
        )
        for i in range(3)
    ),
    k_changes=tuple((5 * n, k) for n, k in enumerate(CHANGED_K)),
)
LOST = Situation(
    name="lost",
    asks=(Ask(name="lost0", prompt=_prompt(12, 70)), Ask(name="lost1", prompt=_prompt(13, 70))),
    lose_drafts=(3, 5),
)
SAMPLED = Situation(
    name="sampled",
    asks=(
        Ask(name="sampled0", prompt=_prompt(16, 60), sampling=_greedy(**WARM, n=2)),
        Ask(name="sampled1", prompt=_prompt(17, 60), sampling=_greedy(**WARM)),
    ),
)
ASYNC = {"async_scheduling": True}
"""Asynchronous scheduling, as on a GPU: see situations_main.keep_async_scheduling."""
TIGHT_ENGINE = {
    **ASYNC,
    "max_model_len": MAX_MODEL_LEN,
    "max_num_seqs": SEQUENCES,
    "max_num_batched_tokens": BATCHED_TOKENS,
    "long_prefill_token_threshold": CHUNK,
    "block_size": BLOCK,
    "num_gpu_blocks_override": BLOCKS,
    "enable_prefix_caching": True,
    "skip_tokenizer_init": False,
    "per_request_spec_decode_metrics": "detailed",
}
FLOWS_ENGINE = {
    "max_model_len": MAX_MODEL_LEN,
    "max_num_seqs": 6,
    "skip_tokenizer_init": False,
    "per_request_spec_decode_metrics": "detailed",
    "speculative_config": {
        "method": "eagle3",
        "model": str(trio_path() / "eagle31"),
        "num_speculative_tokens": K,
        "num_speculative_tokens_per_batch_size": K_BY_BATCH,
    },
}
_COMMON = Job(drafter="eagle31", main="situations_main.py")
_TIGHT = replace(_COMMON, llm=TIGHT_ENGINE, situations=(*tight(), structured()))
_TIGHT_V2 = replace(_TIGHT, runner="v2", situations=tight())
_FLOWS = replace(
    _COMMON,
    llm={**FLOWS_ENGINE, "async_scheduling": False},
    situations=(*flows(), structured(), LOST, CHANGED),
)
_FLOWS_V2 = replace(
    _COMMON, runner="v2", llm={**FLOWS_ENGINE, **ASYNC}, situations=(*flows(), SAMPLED, CHANGED)
)
SITUATION_JOBS = {
    "tight v1 off": _TIGHT,
    "tight v1": replace(_TIGHT, probe=RECORD),
    "tight v2": replace(_TIGHT_V2, probe=RECORD),
    "flows v1 off": _FLOWS,
    "flows v1": replace(_FLOWS, probe=RECORD),
    "flows v2": replace(_FLOWS_V2, probe=RECORD),
}
"""Jobs by name. Tight engines and flows on V2 schedule asynchronously, flows on V1 do not.
Structured output is not tested on V2: Triton's interpreter cannot run its kernel. Temperature is
not tested on V1: without Triton, vLLM's rejection sampler reads uninitialised temperatures on
CPU."""
AT_NIGHT = ("flows v1 off",)
"""Jobs that `make test` leaves to `make nightly`: there, tight engines show that the probe changes
nothing and that V2 serves V1's tokens."""


def k_jobs(older: Sequence[Path]) -> dict[str, Job]:
    """Return jobs with K by batch size, and with K changed while requests run, for older
    versions."""
    by_batch = {name: value for name, value in FLOWS_ENGINE.items() if name in _K_ENGINE}
    return {
        f"k {runner} {version(folder)}": replace(
            older_job(folder, runner, "eagle31"),
            main="situations_main.py",
            llm=by_batch,
            situations=(flows()[0], CHANGED),
        )
        for folder in older
        for runner in runners(folder)
    }


_K_ENGINE = ("max_model_len", "max_num_seqs", "speculative_config")


def asks_of(job: Job) -> dict[str, Ask]:
    """Return every request of a job by its name."""
    return {ask.name: ask for situation in job.situations for ask in situation.asks}

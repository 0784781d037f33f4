"""Situations of a served engine beyond plain decoding, packed into as few engines as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.engine_process.job import Job, K, prompts

from driftscope_lab.trio import trio_path
from verification.truth import RECORD, older_job, runners, version

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


@dataclass(frozen=True)
class Ask:
    """One request. `at_step`: engine step at which it arrives."""

    name: str
    prompt: list[int]
    at_step: int
    sampling: dict[str, Any]
    abort_after: int | None
    """Number of output tokens at which the caller aborts it."""


@dataclass(frozen=True)
class Situation:
    """Requests that run together in one engine; situations of an engine run one after another."""

    name: str
    asks: tuple[Ask, ...]
    lose_drafts: tuple[int, ...] = ()
    """Engine steps whose drafts do not reach the scheduler (synchronous scheduling only)."""
    k_changes: tuple[tuple[int, int], ...] = ()
    """Engine steps from which K differs at each batch size. No vLLM up to 0.32 has a call for that:
    the scheduler's own table of K by batch size is replaced while requests run."""


def _prompt(index: int, length: int) -> list[int]:
    """Return held-out text; a longer one continues with the texts of the following prompts."""
    known = prompts(64)
    ids: list[int] = []
    while len(ids) < length:
        ids += known[index % len(known)]
        index += 1
    return ids[:length]


def _ask(
    name: str,
    prompt: tuple[int, int] | list[int],
    at_step: int = 0,
    abort_after: int | None = None,
    **sampling: Any,
) -> Ask:
    """Return a request; `prompt`: its ids, or the number and length of a held-out text."""
    ids = _prompt(*prompt) if isinstance(prompt, tuple) else prompt
    return Ask(name, ids, at_step, {**GREEDY, **sampling}, abort_after)


def _asks(count: int, ask: Callable[[int], Ask]) -> tuple[Ask, ...]:
    return tuple(map(ask, range(count)))


def tight() -> tuple[Situation, ...]:
    """Return situations with little KV cache, few tokens per step and prefix caching."""
    shared, twice = _prompt(50, 120), _prompt(55, 200)
    mixed = _asks(4, lambda i: _ask(f"mixed{i}", (i, 100), 3 * i))
    chunked = (_ask("chunked0", (10, 300)), _ask("chunked1", (14, 200), 4))
    prefix = (
        _ask("prefix0", [*shared, *_prompt(20, 20)]),
        _ask("prefix1", [*shared, *_prompt(21, 60)], 12),
        _ask("prefix2", [*twice, *_prompt(22, 80)], 24),
        _ask("prefix3", [*twice, *_prompt(23, 20)], 36),
    )
    preempted = _asks(6, lambda i: _ask(f"preempted{i}", (30 + i, 110), 2 * i, max_tokens=100))
    budget = (
        _ask("budget0", (20, 5)),
        _ask("budget1", (26, 2 * CHUNK)),
        _ask("budget2", (24, 5)),
    )
    context = (
        _ask("context0", (41, MAX_MODEL_LEN - 44), max_tokens=100),
        _ask("context1", (45, 50), 3, max_tokens=80),
    )
    return (
        Situation("mixed", mixed),
        Situation("chunked", chunked),
        Situation("prefix", prefix),
        Situation("preempted", preempted),
        Situation("budget", budget),
        Situation("context", context),
    )


def structured() -> Situation:
    """Return a request with a grammar that the drafter does not know, together with one without."""
    guided = _ask("structured0", (0, 90), regex=WORDS, ignore_eos=False)
    return Situation("structured", (guided, _ask("structured1", (3, 70))))


def flows() -> tuple[Situation, ...]:
    """Return situations with K by batch size, and with requests that end in every way."""
    by_k = _asks(6, lambda i: _ask(f"k{i}", (4 + i, 50), 3 * i, max_tokens=60 - 4 * i))
    cut = [_ask(f"cut{n}", (0, 100), max_tokens=n) for n in (1, 2, 4, 13)]
    stop = _ask("ends0", (6, 90), stop=[":"])
    stop_token = _ask("ends2", (6, 90), stop_token_ids=[STOP_TOKEN])
    return (
        Situation("k", by_k),
        Situation("cut", tuple(cut[:2])),
        Situation("cut", tuple(cut[2:])),
        Situation("ends", (stop, _ask("ends1", (8, 90), abort_after=12))),
        Situation("ends", (stop_token, _ask("ends3", (9, 60), abort_after=1))),
    )


CHANGED_K = (2, 6, K, 0, 5)
"""Values of K, one after the other, while requests run."""
CHANGED = Situation(
    "changed",
    _asks(3, lambda i: _ask(f"changed{i}", (20 + i, 50), 4 * i, max_tokens=60)),
    k_changes=tuple((5 * n, k) for n, k in enumerate(CHANGED_K)),
)
LOST = Situation("lost", (_ask("lost0", (12, 70)), _ask("lost1", (13, 70))), lose_drafts=(3, 5))
SAMPLED = Situation(
    "sampled",
    (_ask("sampled0", (16, 60), **WARM, n=2), _ask("sampled1", (17, 60), **WARM)),
)
ASYNC = {"async_scheduling": True}
"""Asynchronous scheduling, as on a GPU: see engine_main.keep_async_scheduling."""
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
_TIGHT = Job(drafter="eagle31", llm=TIGHT_ENGINE, situations=(*tight(), structured()))
_FLOWS = Job(
    drafter="eagle31",
    llm={**FLOWS_ENGINE, "async_scheduling": False},
    situations=(*flows(), structured(), LOST, CHANGED),
)
_FLOWS_V2 = Job(
    drafter="eagle31",
    runner="v2",
    probe=RECORD,
    llm={**FLOWS_ENGINE, **ASYNC},
    situations=(*flows(), SAMPLED, CHANGED),
)
SITUATION_JOBS = {
    "tight v1 off": _TIGHT,
    "tight v1": replace(_TIGHT, probe=RECORD),
    "tight v2": replace(_TIGHT, probe=RECORD, runner="v2", situations=tight()),
    "flows v1 off": _FLOWS,
    "flows v1": replace(_FLOWS, probe=RECORD),
    "flows v2": _FLOWS_V2,
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

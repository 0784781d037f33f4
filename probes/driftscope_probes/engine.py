"""The interface of an engine: what its folder of the probe gives the shared parts.

A runner module hands on a view of each draft step (`DraftCall`), which is all that the recorder
sees of a runner. No class has to inherit from these protocols. `docs/extending/add-an-engine.md`
explains each part, and how vLLM and SGLang provide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from driftscope.boundary.bounds import MAX_LABEL_CHARS
from driftscope.boundary.files import encodable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceStep:
    """Data that the taps need about a recorded step, most of it on the engine's device."""

    rows: torch.Tensor
    """[B] int64: row of each request's first query, its last verified slot, in the depth-1 forward;
    for a block drafter [B * K], with all rows of a request together."""
    position: torch.Tensor
    """[B] int64: position p of that slot."""
    block_tables: Mapping[str, torch.Tensor]
    """Attention layer -> [>= B, blocks] int."""
    prompt_tokens: npt.NDArray[np.int64]
    """[B] prompt lengths in tokens, on the host."""
    max_context: int
    """Upper bound of the requests' context lengths before the chain."""


class DraftStep(NamedTuple):
    """A recorded call of the drafter for a batch of B requests, with the data known on the host.

    It stays in the writer's queue for up to a second. No field may keep a tensor alive, because
    vLLM considers that memory free.
    """

    requests: tuple[str, ...]
    """Engine-internal request ids, B of them."""
    prefilling: bytes
    """[B] bytes: 1 if the request's prompt is not complete yet, so that its drafts do not count."""
    k: int
    """Number of depths that will be drafted."""


class Verification(NamedTuple):
    """The target's decision about the drafts of B requests, which it has just made."""

    requests: Sequence[str]
    first_rows: Sequence[int]
    """[B]: row of `logits` that verifies each request's first draft token; those of its others, and
    of the token after them, follow."""
    drafted: Sequence[int]
    """[B]: number of draft tokens that were verified."""
    logits: torch.Tensor
    """[rows, vocabulary]: the target's logits."""
    sampled: torch.Tensor
    """[B, most tokens of a request]: the accepted draft tokens and the target's own after them."""
    accepted: torch.Tensor
    """[B]: number of draft tokens that were accepted; negative for a request that got no token."""
    sampling: tuple[torch.Tensor | None, ...]
    """[B] each: temperature, top-k and top-p; None: no request of the step has one."""


class DraftCall(Protocol):
    """One call of the drafter, which has not run yet.

    Every step creates one and reads its k. Everything else is computed for recorded steps only,
    because NumPy's functions take ten times as long between two forwards as they do in a loop.
    """

    @property
    def k(self) -> Any:
        """Number of depths that will be drafted; an int unless vLLM has changed."""

    def step(self) -> DraftStep:
        """Return the batch as known on the host."""

    def on_device(self) -> DeviceStep:
        """Return the batch as the taps need it; call this before the drafter runs."""

    def serve(self) -> Any:
        """Run the engine's own call; return [B, K] int tokens."""

    def without_graphs(self) -> Any:
        """Run the same drafts eagerly; keep the engine's inputs, so that `serve` can follow."""


class DraftCallBase(NamedTuple):
    """A call of `original`, a drafting method of `owner`: base of every runner's DraftCall."""

    k: Any
    runner: Any
    owner: Any
    original: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def serve(self) -> Any:
        """See DraftCall."""
        return self.original(self.owner, *self.args, **self.kwargs)


_Call = TypeVar("_Call", bound=DraftCallBase)


make_draft_call: Callable[[type[_Call], tuple[Any, ...]], _Call] = tuple.__new__
"""Builds an instance from its fields without running any Python function."""


NOBODY: frozenset[str] = frozenset()
NO_LENGTHS: Mapping[str, int] = MappingProxyType({})


class PromptProgress(Protocol):
    """Tracks which prompts are not complete yet, from an engine's schedules alone."""

    def step(self, scheduled: Any, lengths: Mapping[str, int]) -> frozenset[str]:
        """Return the requests whose prompt is incomplete after this step.

        Call it once per step, in order. `lengths`: `prompt_lengths` of the step's new requests.
        """


class CacheFaults(Protocol):
    """Tracks which requests an engine has left with a wrong drafter cache."""

    def step(self, scheduled: Any, *, drafted: bool, chunked: bool) -> tuple[str, ...]:
        """Return the requests whose drafter cache may be wrong from this step on.

        Call it once per step, in order. `drafted`: the drafter ran; `chunked`: it also ran for an
        unfinished prompt.
        """


class ScheduleReader(Protocol):
    """Reads one engine's schedules: opaque objects, one per step, in order.

    Methods that take a schedule are called while the step runs, before the engine changes it.
    """

    @property
    def new_requests(self) -> str:
        """Name of a schedule's attribute that is true if there are new requests; steps without new
        requests are skipped at no cost."""

    @property
    def prompts(self) -> PromptProgress:
        """Tracker of the engine's prompts."""

    @property
    def faults(self) -> CacheFaults | None:
        """Tracker of faults in the drafter's cache; None if the engine leaves none."""

    def prompt_lengths(self, scheduled: Any) -> Mapping[str, int]:
        """Return the number of tokens to compute for each new request."""

    def labels(self, scheduled: Any) -> Iterable[tuple[str, str]]:
        """Return (request, workload label) of the new requests that have a label."""

    def writes_free_blocks(self, scheduled: Any) -> bool:
        """Return whether the engine may write to free cache blocks before the drafter runs."""


LABEL = "driftscope_label"
"""Key of a request's workload label among the arguments that a client gives an engine: vLLM's
SamplingParams.extra_args (vllm_xargs over HTTP), SGLang's SamplingParams.custom_params."""
SESSION = "driftscope_session"
"""Key of a request's session, as LABEL."""
PAIR = "driftscope_pair"
"""Key of the question that a replay asks, as LABEL."""


def given_name(arguments: Any, key: str) -> str | None:
    """Return the first MAX_LABEL_CHARS characters of the name under `key` in a client's arguments,
    if there is one. Any client may choose it, and it is stored with every row."""
    return shortened(arguments.get(key)) if isinstance(arguments, Mapping) else None


def shortened(name: object) -> str | None:
    """Return the first MAX_LABEL_CHARS characters of a name, if there is one, as UTF-8 has them."""
    return None if name is None else encodable(str(name)[:MAX_LABEL_CHARS])

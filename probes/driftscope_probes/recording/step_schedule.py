"""What the recording needs of an engine's schedules, which it passes on without looking inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

NOBODY: frozenset[str] = frozenset()
NO_LENGTHS: Mapping[str, int] = MappingProxyType({})


class PromptProgress(Protocol):
    """Knows whose prompt is not complete yet, from an engine's schedules alone."""

    def step(self, scheduled: Any, lengths: Mapping[str, int]) -> frozenset[str]:
        """Return the requests whose prompt is incomplete after this step.

        Call it once per step, in order. `lengths`: `prompt_lengths` of the step's new requests.
        """


class CacheFaults(Protocol):
    """Knows which requests an engine has left with a wrong drafter cache."""

    def step(self, scheduled: Any, *, drafted: bool, chunked: bool) -> tuple[str, ...]:
        """Return the requests that come into doubt with this step.

        Call it once per step, in order. `drafted`: the drafter ran; `chunked`: for an unfinished
        prompt too.
        """


class ScheduleReader(Protocol):
    """Reads one engine's schedules: opaque objects, one per step, in order.

    Methods that take a schedule are called while the step runs, before the engine changes it.
    """

    @property
    def new_requests(self) -> str:
        """Attribute of a schedule whose truth says that there are new requests: steps without any
        are passed over at no cost."""

    @property
    def prompts(self) -> PromptProgress:
        """Follows the engine's prompts."""

    @property
    def faults(self) -> CacheFaults | None:
        """None for an engine that leaves no fault in the drafter's cache."""

    def prompt_lengths(self, scheduled: Any) -> Mapping[str, int]:
        """Return the tokens that each new request needs computed."""

    def labels(self, scheduled: Any) -> Iterable[tuple[str, str]]:
        """Return (request, workload label) of the new requests that have a label."""

    def writes_free_blocks(self, scheduled: Any) -> bool:
        """Whether the engine may write to free cache blocks before the drafter runs."""

"""Interfaces to an engine's schedules, which the recording passes on without looking inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

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

"""The requests of a replay, in the order in which they are sent."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from driftscope.trace.records import ClientRow
from driftscope.vocabulary import Ended
from driftscope.workloads.suites.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLevel:
    """One load: a closed loop of `concurrency` requests, or an open one of `rate` per second."""

    concurrency: int | None = None
    """Requests kept running at once; with `rate`, the most that may run at once."""
    rate: float | None = None

    def words(self) -> str:
        """Return the level in words."""
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return f"concurrency {self.concurrency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One planned request."""

    order: int
    prompt: Prompt
    condition: str
    repeat: int
    level: LoadLevel
    warmup: bool = False
    due_s: float | None = None
    """Seconds after the start of its phase of its level (see `phases`), in an open loop."""


def plan(
    conditions: Mapping[str, Sequence[Prompt]],
    levels: Sequence[LoadLevel],
    *,
    repeat: int = 1,
    warmup: int = 0,
    seed: int = 0,
) -> list[Shot]:
    """Return every prompt in every condition, `repeat` times at every level.

    The order is random and fixed by the seed. All conditions of a prompt follow each other in a
    random order, so that slow changes over time (a clock, a cache) affect all conditions equally.
    Each level begins with `warmup` requests, drawn from the plan, that figures leave out.
    """
    shots: list[Shot] = []
    for level in levels:
        of_level = list(_pass(conditions, level, repeat, random.Random(f"{seed} {level.words()}")))
        first = [replace(shot, warmup=True) for shot in of_level[:warmup]]
        due = [
            when
            for phase in (first, of_level)
            for when in _arrivals(level, len(phase), random.Random(f"{seed} arrivals"))
        ]
        shots += [
            replace(shot, order=len(shots) + n, due_s=when)
            for n, (shot, when) in enumerate(zip([*first, *of_level], due, strict=True))
        ]
    return shots


def phases(shots: Sequence[Shot]) -> list[list[Shot]]:
    """Return the shots of each level, in order: first its warm-up, then the measured part.

    One phase ends before the next begins, so that no figure contains the load of another phase.
    """
    by_phase: dict[tuple[LoadLevel, bool], list[Shot]] = {}
    for shot in shots:
        by_phase.setdefault((shot.level, shot.warmup), []).append(shot)
    return list(by_phase.values())


def _pass(
    conditions: Mapping[str, Sequence[Prompt]], level: LoadLevel, repeat: int, source: random.Random
) -> Iterator[Shot]:
    of_prompt: dict[str, list[tuple[str, Prompt]]] = {}
    for condition, prompts in conditions.items():
        for prompt in prompts:
            of_prompt.setdefault(prompt.key, []).append((condition, prompt))
    for number in range(repeat):
        keys = list(of_prompt)
        source.shuffle(keys)
        for key in keys:
            group = list(of_prompt[key])
            source.shuffle(group)
            for condition, prompt in group:
                yield Shot(order=0, prompt=prompt, condition=condition, repeat=number, level=level)


def _arrivals(level: LoadLevel, count: int, source: random.Random) -> list[float | None]:
    """Return arrival times of a Poisson process, as independent users make it; None in a closed
    loop."""
    if level.rate is None:
        return [None] * count
    now, out = 0.0, list[float | None]()
    for _ in range(count):
        out.append(now)
        now += source.expovariate(level.rate)
    return out


GONE_AFTER = 16
"""Number of consecutive requests without a connection after which the server counts as gone; the
remaining requests are not sent."""

Fire = Callable[[Shot, float | None], Awaitable[ClientRow]]
"""Callable that sends a shot, given the Unix time at which it was due (None in a closed loop); it
records and returns the shot's row."""


class LoadGenerator:
    """Fires every shot of a plan, phase after phase, until stopped or until the server is gone."""

    def __init__(self, fire: Fire) -> None:
        self._fire = fire
        self._unreached = 0
        self._before = 0
        """Number of shots started when the current series of unreached requests began."""
        self.fired: set[int] = set()
        """Orders of the shots that were started."""

    @property
    def is_unreachable(self) -> bool:
        """Whether the server can no longer be reached."""
        return self._unreached >= GONE_AFTER

    async def run(self, shots: Sequence[Shot]) -> None:
        """Fire all shots. On cancellation the running ones are cancelled and recorded."""
        for phase in phases(shots):
            async with asyncio.TaskGroup() as group:
                if phase[0].level.rate is None:
                    self._closed(group, phase)
                else:
                    await self._open(group, phase)

    def _closed(self, group: asyncio.TaskGroup, shots: Sequence[Shot]) -> None:
        waiting = iter(shots)
        for _ in range(min(shots[0].level.concurrency or 1, len(shots))):
            group.create_task(self._worker(waiting))

    async def _worker(self, waiting: Iterator[Shot]) -> None:
        for shot in waiting:
            if self.is_unreachable:
                return
            await self._one(shot, None)

    async def _open(self, group: asyncio.TaskGroup, shots: Sequence[Shot]) -> None:
        room = asyncio.Semaphore(shots[0].level.concurrency or len(shots))
        begun, begun_unix_s = time.perf_counter(), time.time()
        for shot in shots:
            due = shot.due_s or 0.0
            await asyncio.sleep(begun + due - time.perf_counter())
            await room.acquire()
            if self.is_unreachable:
                return
            task = group.create_task(self._one(shot, begun_unix_s + due))
            task.add_done_callback(lambda _: room.release())

    async def _one(self, shot: Shot, due_unix_s: float | None) -> None:
        number = len(self.fired)
        self.fired.add(shot.order)
        row = await self._fire(shot, due_unix_s)
        if row.ended == Ended.UNREACHED:
            self._before = self._before if self._unreached else len(self.fired)
            self._unreached += 1
        elif number >= self._before:  # earlier answers say nothing about the server now
            self._unreached = 0

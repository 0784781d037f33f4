"""Whose slots in the drafter's cache are in doubt on vLLM's V1 runner."""

from __future__ import annotations

from typing import Any

from support.schedules import schedule

from driftscope_probes.vllm.schedule import KEPT_STEPS, CacheFaultTracker


def _step(
    *,
    new: dict[str, int] | None = None,
    going_on: dict[str, int] | None = None,
    resumed: tuple[str, ...] = (),
) -> Any:
    """Requests with the tokens that they have computed when the step begins."""
    return schedule(
        new={name: (1, computed) for name, computed in (new or {}).items()},
        going_on=going_on,
        resumed=dict.fromkeys(resumed, 0),
    )


def _drafted(cache: CacheFaultTracker, scheduled: Any, *, chunked: bool = False) -> set[str]:
    return set(cache.step(scheduled, drafted=True, chunked=chunked))


def test_a_hit_is_in_no_doubt_while_nothing_is_wrong() -> None:
    cache = CacheFaultTracker()
    assert _drafted(cache, _step(new={"a": 0, "b": 64})) == set()
    assert _drafted(cache, _step(going_on={"a": 64}, resumed=("a",))) == set()


def test_after_a_chunk_every_hit_is_in_doubt() -> None:
    cache = CacheFaultTracker()
    assert _drafted(cache, _step(new={"a": 0}), chunked=True) == set()
    assert _drafted(cache, _step(new={"b": 64, "c": 0}, going_on={"a": 90})) == {"b"}
    resumed = _step(going_on={"a": 32, "b": 0, "c": 70}, resumed=("a", "b"))
    assert _drafted(cache, resumed) == {"a"}, "b begins from nothing"
    assert _drafted(cache, _step(going_on={"a": 40, "c": 71})) == set(), "said once"


def test_a_hit_beside_the_chunk_is_in_doubt() -> None:
    assert _drafted(CacheFaultTracker(), _step(new={"a": 0, "b": 64}), chunked=True) == {"b"}


def test_whoever_ran_without_the_drafter_has_holes() -> None:
    cache = CacheFaultTracker()
    assert _drafted(cache, _step(new={"a": 0, "b": 64})) == set()
    assert cache.step(_step(going_on={"a": 60, "b": 90}), drafted=False, chunked=False) == ()
    assert _drafted(cache, _step(going_on={"b": 91}, new={"c": 0, "d": 64})) == {"a", "b", "d"}


def test_a_step_of_nobody_leaves_no_hole() -> None:
    cache = CacheFaultTracker()
    cache.step(_step(), drafted=False, chunked=False)
    assert _drafted(cache, _step(new={"a": 64})) == set()


def test_memory_is_bounded_where_the_drafter_never_runs() -> None:
    cache = CacheFaultTracker()
    for number in range(KEPT_STEPS + 9):
        cache.step(_step(going_on={str(number): 1}), drafted=False, chunked=False)
    assert len(_drafted(cache, _step())) == KEPT_STEPS - 1

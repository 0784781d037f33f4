"""Ctrl-C ends a trial, and what was measured before it is kept."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.checkpoints import TARGET, changed

from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.result import STOPPED, T, Trial, TrialListener, best_repair
from driftscope.inspect.trial.trial import LEAST_PASSAGES, Bench, run_trial
from driftscope_lab.trio import encode, load_prompts, trio_path

pytestmark = pytest.mark.slow
K = 5


@functools.cache
def _bench() -> Bench:
    prompts = {each.id: encode(each.in_distribution) for each in load_prompts()[:8]}
    return Bench(open_target(str(TARGET)), lambda _: prompts)


class Stopping(TrialListener):
    """Presses Ctrl-C after some items of one part of the trial."""

    def __init__(self, part: str, after: int) -> None:
        self._part, self._after = part, after

    def each(self, items: Iterable[T], _what: str, _total: int) -> Iterator[T]:
        """Yield the items before Ctrl-C."""
        for at, item in enumerate(items):
            if _what == self._part and at == self._after:
                raise KeyboardInterrupt
            yield item


def _trial(drafter: Path, listener: TrialListener) -> Trial:
    return run_trial(open_drafter(str(drafter)), 4, _bench, K, listener=listener)


def test_repairs_before_it_are_kept_and_the_others_are_named(tmp_path: Path) -> None:
    broken = changed(tmp_path / "a", config=lambda fields: fields.update(norm_output=False))
    whole, cut = _trial(broken, TrialListener()), _trial(broken, Stopping("Trying repairs", 3))
    assert not whole.stopped and cut.stopped
    assert cut.acceptance == whole.acceptance and cut.figures == whole.figures
    assert len(cut.tried) == 3
    by_id = {each.repair.id: each for each in whole.tried}
    assert all(each.gain == by_id[each.repair.id].gain for each in cut.tried)
    left_out = {each.id for each in cut.not_applicable if each.reason == STOPPED}
    ways = {each.rendering.id for each in whole.renderings}
    assert left_out == by_id.keys() - {each.repair.id for each in cut.tried} | ways
    best = best_repair(cut)
    assert best is not None and best in cut.tried


def test_prompts_before_it_are_kept_if_there_are_enough() -> None:
    part = "Running the drafter as it is"
    found = _trial(trio_path() / "eagle31", Stopping(part, LEAST_PASSAGES + 1))
    assert found.stopped and found.prompts == LEAST_PASSAGES + 1
    assert not found.tried and not found.renderings
    with pytest.raises(KeyboardInterrupt):
        _trial(trio_path() / "eagle31", Stopping(part, LEAST_PASSAGES - 1))


def test_nothing_is_left_of_the_answers_alone() -> None:
    _bench()._passages = ()
    with pytest.raises(KeyboardInterrupt):
        _trial(trio_path() / "eagle31", Stopping("Answering prompts", 7))

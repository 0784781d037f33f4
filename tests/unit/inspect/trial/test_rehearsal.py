"""The parts of a trial are timed by running them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import pytest
from support.checkpoints import TARGET

from driftscope.inspect.files.drafter_files import open_drafter
from driftscope.inspect.files.target_files import open_target
from driftscope.inspect.trial.passages import TIMED_TOKENS
from driftscope.inspect.trial.rehearsal import rehearse
from driftscope.inspect.trial.trial import Bench
from driftscope.inspect.trial.variant import as_served
from driftscope_lab.trio import encode, load_prompts, trio_path

pytestmark = pytest.mark.slow
K = 4
DELAY_S = 0.2
"""Time that is added to each forward of the target: far more than one takes."""


@functools.cache
def _bench() -> Bench:
    prompts = {each.id: encode(each.in_distribution) for each in load_prompts()[:6]}
    return Bench(open_target(str(TARGET)), lambda _: prompts)


@pytest.fixture
def slow_target() -> Iterator[Bench]:
    """Delay each forward of the target."""
    bench = _bench()
    hook = bench.teacher.model.register_forward_hook(lambda *_: time.sleep(DELAY_S))
    yield bench
    hook.remove()


def test_one_duration_for_each_token() -> None:
    bench = _bench()
    batch = sorted(bench.prompts.items())
    assert len(bench.teacher.token_durations(batch)) == TIMED_TOKENS
    assert all(each > 0 for each in bench.teacher.token_durations(batch, 2))


def test_a_slow_target_is_noticed_in_its_parts_alone(slow_target: Bench) -> None:
    base = as_served(open_drafter(str(trio_path() / "eagle31")), slow_target.facts.layers)
    found = rehearse(slow_target.teacher, base, slow_target.prompts, K)
    assert min(found.prompt_s, found.token_s, found.states_s) > DELAY_S
    assert 0 < found.draft_s < found.token_s
    assert 0 < found.build_s < found.token_s


def test_the_estimate_of_a_trial_holds_its_answers(slow_target: Bench) -> None:
    base = as_served(open_drafter(str(trio_path() / "eagle31")), slow_target.facts.layers)
    found = slow_target.expected(base, K, repairs=3, screened=4, renderings=1)
    # 64 tokens and six states along answers, both ways.
    assert found.most_s > found.least_s > 2 * (64 + 6) * DELAY_S

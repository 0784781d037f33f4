"""Two drafters are run from the same positions: a copy is equal, a broken one is worse."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from support.checkpoints import TARGET, changed

from driftscope.analysis.compare import LENGTH
from driftscope.errors import CheckpointError
from driftscope.inspect.files.drafter_files import open_drafter
from driftscope.inspect.files.target_files import open_target
from driftscope.inspect.trial.pair import run_pair
from driftscope.inspect.trial.paired_positions import PairTrial
from driftscope.inspect.trial.trial import Bench
from driftscope_lab.trio import encode, load_prompts, trio_path

pytestmark = pytest.mark.slow
K = 4


@functools.cache
def _bench() -> Bench:
    prompts = {each.id: encode(each.in_distribution) for each in load_prompts()[:16]}
    return Bench(open_target(str(TARGET)), lambda _: prompts)


def _pair(other: Path) -> PairTrial:
    files = open_drafter(str(trio_path() / "eagle31")), open_drafter(str(other))
    layers = open_target(str(TARGET)).layers
    return run_pair(files, ("shipped", "other"), layers, _bench, K)


def test_a_copy_drafts_the_same(tmp_path: Path) -> None:
    found = _pair(changed(tmp_path / "a"))
    assert found.prompts == 16
    assert found.as_served[0] == found.as_served[1]
    assert all(each.difference == 0 for each in found.comparison.differences)
    assert not any(each.differs for each in found.comparison.differences)


def test_a_drafter_with_a_wrong_flag_is_worse(tmp_path: Path) -> None:
    broken = changed(tmp_path / "a", config=lambda fields: fields.update(norm_output=False))
    found = _pair(broken)
    (length,) = found.comparison.at(LENGTH)
    assert length.differs and length.difference < -1
    assert found.as_served[1].length < found.as_served[0].length


def test_the_target_is_not_loaded_for_a_drafter_that_cannot_be_run(tmp_path: Path) -> None:
    other = changed(tmp_path / "a", config=lambda fields: fields.update(attention_bias=True))
    files = open_drafter(str(trio_path() / "eagle31")), open_drafter(str(other))
    with pytest.raises(CheckpointError, match="biases"):
        run_pair(files, ("a", "b"), 4, lambda: pytest.fail("loaded"), K)

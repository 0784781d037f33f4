"""An EAGLE-1 drafter is taken apart like any other, but for a norm that it does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import TARGET, eagle1_drafter, prompt_texts

from driftscope.ablate.intervention import AS_SERVED, FACTORIAL
from driftscope.ablate.result import Ablation
from driftscope.ablate.run import AblationOptions, run_ablation
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.trial import Bench
from driftscope_lab.trio import encode

pytestmark = pytest.mark.slow
K = 4
NORMED = "normalise"


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    drafter: Path = eagle1_drafter(tmp_path_factory.mktemp("eagle1"))
    target = open_target(str(TARGET))
    prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
    return run_ablation(
        open_drafter(str(drafter)),
        target,
        lambda: Bench(target, lambda _: prompts),
        AblationOptions(k=K, positions=10, wanted=(*FACTORIAL[1:], NORMED)),
        names=("eagle1", "target"),
    )


def test_the_loss_of_one_trained_at_the_first_depth_lies_in_its_own_states(
    ablation: Ablation,
) -> None:
    """The target's states make every depth a first depth, which this drafter learned by heart."""
    length = {each.intervention.id: each.acceptance.mean_length for each in ablation.effects}
    assert length["right-states"] == length["right-both"] == K + 1
    assert length["right-tokens"] == length[AS_SERVED] < K
    assert ablation.decomposition is not None


def test_a_norm_that_it_does_not_have_does_not_apply(ablation: Ablation) -> None:
    assert ablation.not_applicable == {NORMED: "an EAGLE-1 drafter has no final norm"}

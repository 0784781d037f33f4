"""Captured layers are searched one at a time, and a tie is reported."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.drafter_classes import AUX_LAYERS
from driftscope.inspect.trial.drafting import Variant, as_served
from driftscope.inspect.trial.repairs import TargetFacts, layers_needed, nearby_layers, repairs
from driftscope.inspect.trial.target import Passage
from driftscope.inspect.trial.trial import Bench, Runner
from driftscope.inspect.trial.verdict import best_repair, verdict
from driftscope_lab.trio import encode, load_prompts, trio_path

LAYERS = 8


@pytest.fixture(scope="module")
def base() -> Variant:
    return as_served(open_drafter(str(trio_path() / "eagle31")), LAYERS)


def _candidates(base: Variant, layers: Sequence[int]) -> list[tuple[int, ...]]:
    wrong = base.with_config(aux_layers=tuple(layers))
    facts = TargetFacts(
        layers=LAYERS,
        fields={},
        rope_theta=base.config.layer.rope_theta,
        embedding=base.state["fc.weight"],
        head=base.state["lm_head.weight"],
    )
    found = [repair.fields.get(AUX_LAYERS) for repair in repairs(wrong, facts)]
    return [tuple(layers) for layers in found if layers]


@pytest.mark.parametrize("wrong", [(1, 3, 5), (2, 3, 6), (2, 4, 5)])
def test_one_wrong_layer_is_among_the_repairs(base: Variant, wrong: tuple[int, ...]) -> None:
    found = _candidates(base, wrong)
    assert (2, 3, 5) in found and len(found) == len(set(found)) <= 9
    assert all(low < high for layers in found for low, high in pairwise(layers))
    assert min(map(min, found)) >= 0 and max(map(max, found)) <= LAYERS


def test_a_search_from_another_list_reaches_every_list_nearby(base: Variant) -> None:
    wrong = base.with_config(aux_layers=(1, 4, 6))
    seen: set[tuple[int, ...]] = {(1, 4, 6)}
    reached = [(1, 4, 6)]
    for layers in reached:
        for repair in nearby_layers(wrong, layers, {0, 1, 2, 3, 4, 5, 6, 7}, seen):
            assert "best of the layers tried" in repair.mistake and "[1, 4, 6]" in repair.mistake
            reached.append(repair.variant.config.aux_layers)
    assert (2, 3, 5) in reached and len(reached) == len(set(reached)) == len(seen)


@pytest.mark.slow
def test_three_wrong_layers_lead_to_those_of_training_and_ties_are_named(base: Variant) -> None:
    prompts = {str(at): encode(one.in_distribution) for at, one in enumerate(load_prompts()[:12])}
    bench = Bench(open_target(str(trio_path() / "target")), lambda _: prompts)
    wrong = base.with_config(aux_layers=(1, 4, 6)).with_shared_head(bench.facts.head)
    candidates = [one for one in repairs(wrong, bench.facts) if AUX_LAYERS in one.fields]
    layers = layers_needed(wrong, candidates)

    def answered(most: int) -> list[Passage]:
        return bench.passages(layers, 5, most=most)

    trial = Runner(bench.teacher, answered, 5).run(wrong, candidates)
    (result,) = verdict(trial)
    assert result.change == f'"{AUX_LAYERS}": [2, 3, 5]'
    assert "accept about as much" in result.there and "[1, 4, 5]" in result.there
    healthy = Runner(bench.teacher, answered, 5).run(
        base.with_shared_head(bench.facts.head), candidates
    )
    assert best_repair(healthy) is None

"""A trial accepts what the reference engine accepts, and names the repair of a planted mistake."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checkpoints import AUX, TARGET, Config, State, changed

from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.reference.drafter import load_drafter, load_target
from driftscope.inspect.reference.engine import generate
from driftscope.inspect.trial.repairs import write_config
from driftscope.inspect.trial.result import Trial, best_repair, verdict
from driftscope.inspect.trial.target import ANSWER_TOKENS, Teacher
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope_lab.trio import encode, load_prompts, trio_path

pytestmark = pytest.mark.slow
K = 5


def _prompts(_teacher: Teacher) -> dict[str, list[int]]:
    return {each.id: encode(each.in_distribution) for each in load_prompts()[:32]}


@functools.cache
def _bench() -> Bench:
    return Bench(open_target(str(TARGET)), _prompts)


def _trial(drafter: Path) -> Trial:
    return run_trial(open_drafter(str(drafter)), open_target(str(TARGET)).layers, _bench, K)


def test_acceptance_is_that_of_the_reference_engine() -> None:
    target, drafter = load_target(TARGET), load_drafter(trio_path() / "eagle31")
    tokens = rounds = 0
    for ids in _prompts(None).values():  # type: ignore[arg-type]
        made = generate(target, drafter, ids, ANSWER_TOKENS, K, eos_token_id=4)
        # The last rounds of an answer have no K tokens to be compared with.
        whole = [
            each
            for each in made.rounds
            if each.chain.position + 1 + K < len(ids) + len(made.token_ids)
        ]
        tokens += sum(each.accepted + 1 for each in whole)
        rounds += len(whole)
    found = _trial(trio_path() / "eagle31").acceptance
    assert found.rounds == pytest.approx(rounds, abs=2)
    assert found.mean_length == pytest.approx(tokens / rounds, abs=0.02)


def _layers(by: int) -> Callable[[Config], None]:
    def change(fields: Config) -> None:
        fields[AUX] = fields["eagle_config"][AUX] = [each + by for each in fields[AUX]]

    return change


def _exchanged_norms(state: State) -> None:
    names = "midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight"
    state[names[0]], state[names[1]] = state[names[1]], state[names[0]]


def test_a_healthy_drafter_gets_no_repair() -> None:
    trial = _trial(trio_path() / "eagle31")
    assert best_repair(trial) is None
    assert not list(verdict(trial))
    assert len(trial.tried) > 15


def test_a_wrong_flag_is_repaired_by_the_config_that_is_written(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", "eagle3", config=lambda fields: fields.update(norm_output=True))
    best = best_repair(_trial(path))
    assert best is not None and best.repair.id == "norm_output"
    write_config(open_drafter(str(path)), best.repair, tmp_path / "fixed.json")
    shipped = json.loads((trio_path() / "eagle3" / "config.json").read_text())
    assert json.loads((tmp_path / "fixed.json").read_text()) == shipped


def test_captured_layers_that_are_off_by_one_are_repaired_in_both_places(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", "eagle31", config=_layers(-1))
    best = best_repair(_trial(path))
    assert best is not None and best.repair.fields == {AUX: [2, 3, 5]}
    write_config(open_drafter(str(path)), best.repair, tmp_path / "fixed.json")
    fixed = json.loads((tmp_path / "fixed.json").read_text())
    assert fixed[AUX] == fixed["eagle_config"][AUX] == [2, 3, 5]


def test_a_mistake_in_the_weights_is_named(tmp_path: Path) -> None:
    def columns(state: State) -> None:
        first, second, third = state["fc.weight"].chunk(3, -1)
        state["fc.weight"] = torch.cat([third, second, first], -1)

    path = changed(tmp_path / "a", "eagle3", weights=columns)
    best = best_repair(_trial(path))
    assert best is not None and best.repair.id == "states_order_3_2_1"
    assert best.repair.weights


def test_a_drafter_that_no_repair_helps_is_named_as_such(tmp_path: Path) -> None:
    def other(state: State) -> None:
        source = torch.Generator().manual_seed(3)
        for name in ("fc.weight", "midlayer.mlp.down_proj.weight", "lm_head.weight"):
            state[name] = torch.randn(state[name].shape, generator=source) * 0.05

    trial = _trial(changed(tmp_path / "a", weights=other))
    assert best_repair(trial) is None, (
        trial.acceptance.marginal,
        trial.tried[0].acceptance.marginal,
    )
    assert [each.id for each in verdict(trial)] == ["nothing_accepted"]

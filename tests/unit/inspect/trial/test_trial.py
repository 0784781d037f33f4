"""Trials of a drafter: its drafts, its renderings, and a trial that is stopped."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from support.checkpoints import (
    AUX,
    TARGET,
    Config,
    State,
    as_speculators,
    changed,
    own_vocabulary,
    own_vocabulary_config,
    speculators_names,
)

from driftscope.cli.trial_run import TrialOptions, load_bench
from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import CheckResult
from driftscope.inspect.reference.drafter import load_drafter, load_target
from driftscope.inspect.reference.engine import generate
from driftscope.inspect.trial.drafting import Drafted, Variant, as_served, draft
from driftscope.inspect.trial.repairs import write_config
from driftscope.inspect.trial.result import STOPPED, Change, T, Trial, TrialListener
from driftscope.inspect.trial.target import ANSWER_TOKENS, Passage, Teacher
from driftscope.inspect.trial.trial import (
    LEAST_PASSAGES,
    Bench,
    Rendering,
    Runner,
    run_trial,
    try_renderings,
)
from driftscope.inspect.trial.verdict import best_repair, rendering_results, verdict
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
    assert [each.id for each in verdict(trial)] == ["accepts_little"]


@functools.cache
def _stopping_bench() -> Bench:
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


def _listened_trial(drafter: Path, listener: TrialListener) -> Trial:
    return run_trial(open_drafter(str(drafter)), 4, _stopping_bench, K, listener=listener)


def test_repairs_before_it_are_kept_and_the_others_are_named(tmp_path: Path) -> None:
    broken = changed(tmp_path / "a", config=lambda fields: fields.update(norm_output=False))
    whole, cut = (
        _listened_trial(broken, TrialListener()),
        _listened_trial(broken, Stopping("Trying repairs", 3)),
    )
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
    found = _listened_trial(trio_path() / "eagle31", Stopping(part, LEAST_PASSAGES + 1))
    assert found.stopped and found.prompts == LEAST_PASSAGES + 1
    assert not found.tried and not found.renderings
    with pytest.raises(KeyboardInterrupt):
        _listened_trial(trio_path() / "eagle31", Stopping(part, LEAST_PASSAGES - 1))


def test_nothing_is_left_of_the_answers_alone() -> None:
    _stopping_bench()._passages = ()
    with pytest.raises(KeyboardInterrupt):
        _listened_trial(trio_path() / "eagle31", Stopping("Answering prompts", 7))


SETTINGS = "tokenizer_config.json"


def _rendered_trial(drafter: Path, bench: Bench) -> Trial:
    return run_trial(open_drafter(str(drafter)), bench.facts.layers, lambda: bench, K)


def _found(trial: Trial) -> list[CheckResult]:
    return list(rendering_results(trial))


def _encoded(begin: int) -> Bench:
    prompts = {each.id: encode(each.in_distribution)[begin:] for each in load_prompts()[:32]}
    return Bench(open_target(str(TARGET)), lambda _: prompts)


def test_prompts_as_trained_give_nothing() -> None:
    trial = _rendered_trial(trio_path() / "eagle31", _encoded(0))
    assert [each.rendering.id for each in trial.renderings] == ["first_token_off"]
    assert not _found(trial)


def test_prompts_without_the_first_token_are_tried_with_it() -> None:
    trial = _rendered_trial(trio_path() / "eagle31", _encoded(1))
    assert [each.rendering.id for each in trial.renderings] == ["first_token_on"]


def test_a_target_with_another_template_than_the_drafter_is_named(tmp_path: Path) -> None:
    target, drafter = tmp_path / "target", changed(tmp_path / "drafter")
    shutil.copytree(TARGET, target)
    settings = json.loads((target / SETTINGS).read_text())
    (drafter / "chat_template.jinja").write_text(settings["chat_template"])
    settings["chat_template"] = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    (target / SETTINGS).write_text(json.dumps(settings))
    bench = load_bench(open_target(str(target)), TrialOptions(prompts="trio", k=K, most_prompts=32))
    trial = _rendered_trial(drafter, bench)
    assert "accepts_more_with.drafters_template" in [each.id for each in _found(trial)]
    assert not trial.not_applicable


def test_a_rendering_whose_answers_are_too_short_is_not_applicable() -> None:
    bench = _encoded(0)
    passages = bench.passages(set(open_drafter(str(trio_path() / "eagle31")).aux_layers or ()), K)
    base = as_served(open_drafter(str(trio_path() / "eagle31")), bench.facts.layers)
    change = Change(id="other", change="other prompts", mistake="none")
    few = dict(list(bench.prompts.items())[: LEAST_PASSAGES - 1])
    made = [Rendering(change=change, prompts=few)]
    runner = Runner(bench.teacher, lambda most: passages[:most], K)
    found = try_renderings(runner, base, made, runner.run(base, ()))
    assert not found.renderings
    assert [each.id for each in found.not_applicable] == ["other"]


LAYERS = 4


def _variant(path: Path) -> Variant:
    return as_served(open_drafter(str(path)), LAYERS)


def _equal(first: Variant, second: Path) -> bool:
    built, expected = first.build("cpu").state_dict(), load_drafter(second).state_dict()
    return built.keys() == expected.keys() and all(
        torch.equal(built[name], expected[name]) for name in built
    )


@pytest.mark.parametrize("name", ["eagle3", "eagle31"])
def test_a_shipped_drafter_is_the_reference_drafter(name: str) -> None:
    path = trio_path() / name
    assert _equal(_variant(path), path)
    assert _variant(path).config == load_drafter(path).config


def test_the_speculators_format_gives_the_same_drafter(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=as_speculators, weights=speculators_names)
    assert _equal(_variant(path), trio_path() / "eagle31")


def test_captured_layers_are_sorted_as_vllm_sorts_them(tmp_path: Path) -> None:
    def config(fields: Config) -> None:
        fields[AUX] = fields["eagle_config"][AUX] = [3, 1, 2]

    assert _variant(changed(tmp_path / "a", config=config)).config.aux_layers == (1, 2, 3)


def test_norms_that_are_missing_are_ones_as_an_engine_leaves_them(tmp_path: Path) -> None:
    def weights(state: State) -> None:
        for layer in range(3):
            del state[f"fc_norm.{layer}.weight"]

    built = _variant(changed(tmp_path / "a", weights=weights)).build("cpu")
    assert torch.equal(built.fc_norm[1].weight, torch.ones(256))


def test_an_embedding_of_its_own_is_used(tmp_path: Path) -> None:
    own = torch.rand(1024, 256)
    path = changed(tmp_path / "a", weights=lambda state: state.update({"embed_tokens.weight": own}))
    built = _variant(path).build("cpu")
    assert torch.equal(built.embed_tokens.weight, own)
    assert built.fc.weight.shape == (256, 768)


def test_scaled_positions_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = {"rope_type": "linear", "factor": 4.0}
    path = changed(tmp_path / "a", config=lambda fields: fields.update(rope_scaling=scaling))
    found = _variant(path).build("cpu").rotary
    config = LlamaConfig(hidden_size=256, num_attention_heads=8, rope_scaling=dict(scaling))
    positions = torch.arange(100)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    torch.testing.assert_close(found.cos[:100].float(), cos[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sin[:100].float(), sin[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_act": "gelu"}, "refuses its activation"),
        ({"partial_rotary_factor": 2.0}, "at most 1"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_what_the_reference_code_cannot_run_is_an_error(
    tmp_path: Path, fields: Config, words: str
) -> None:
    path = changed(tmp_path / "a", config=lambda config: config.update(fields))
    with pytest.raises(CheckpointError, match=words):
        _variant(path)


def test_biases_of_the_config_are_needed_and_run(tmp_path: Path) -> None:
    def biases(state: State) -> None:
        for name in [name for name in state if name.endswith("_proj.weight")]:
            state[name.replace("weight", "bias")] = torch.rand(len(state[name]))

    def config(fields: Config) -> None:
        fields.update(attention_bias=True, mlp_bias=True)

    with pytest.raises(CheckpointError, match="bias"):
        _variant(changed(tmp_path / "a", config=config)).check()
    variant = _variant(changed(tmp_path / "b", config=config, weights=biases))
    built = variant.build("cpu").state_dict()
    assert len([name for name in built if name.endswith(".bias")]) == 7


def test_of_a_head_only_the_rotated_share_turns(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=lambda fields: fields.update(partial_rotary_factor=0.5))
    rotary, heads = _variant(path).build("cpu").rotary, torch.rand(1, 1, 3, 32)
    turned = rotary(heads, torch.arange(3))
    assert torch.equal(turned[..., 16:], heads[..., 16:])
    assert not torch.allclose(turned[:, :, 1:, :16], heads[:, :, 1:, :16])


DRAFTED, VOCABULARY = 4, 1024


@functools.cache
def _passages() -> tuple[Teacher, list[Passage]]:
    teacher = Teacher(TARGET, "cpu")
    prompts = {each.id: encode(each.in_distribution) for each in load_prompts()[:2]}
    return teacher, list(teacher.passages(prompts, {2, 3, 5}))


def _drafted(drafter: Path) -> list[Drafted]:
    teacher, passages = _passages()
    built = as_served(open_drafter(str(drafter)), 4).build("cpu")
    return [draft(built, teacher, each, DRAFTED) for each in passages]


def _head(factor: float, state: State) -> None:
    state["lm_head.weight"] = state["lm_head.weight"] * factor


def test_a_drafter_that_is_always_certain_has_what_it_accepts(tmp_path: Path) -> None:
    sure = changed(tmp_path / "sure", weights=functools.partial(_head, 2.0**12))
    plain = _drafted(changed(tmp_path / "plain"))
    for one, other in zip(_drafted(sure), plain, strict=True):
        assert torch.equal(one.accepted, other.accepted)
        assert (one.probability - one.accepted).abs().mean() < 0.01
        assert (other.probability - other.accepted).abs().mean() > 0.1


def test_a_drafter_that_knows_nothing_gives_each_token_the_same(tmp_path: Path) -> None:
    blank = changed(tmp_path / "a", weights=functools.partial(_head, 0.0))
    for each in _drafted(blank):
        wrong = each.accepted == 0
        assert wrong.any()
        assert torch.allclose(each.probability[wrong], torch.tensor(1 / VOCABULARY))


def test_tokens_that_cannot_be_drafted_have_no_probability(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=own_vocabulary_config, weights=own_vocabulary)
    for each, passage in zip(_drafted(path), _passages()[1], strict=True):
        odd = passage.ids[passage.anchors(DRAFTED) + 2] % 2 == 1
        assert odd.any() and not odd.all()
        assert (each.probability[odd] == 0).all()
        assert (each.probability[~odd] > 0).all()

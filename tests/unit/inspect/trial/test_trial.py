"""Trials of a drafter: its drafts, its renderings, other kinds, and a trial that is stopped."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import (
    AUX,
    DOWN,
    TARGET,
    State,
    added,
    as_speculators,
    captured,
    changed,
    each,
    eagle1_drafter,
    fields,
    halves,
    interleaved,
    mtp_checkpoint,
    own_vocabulary,
    own_vocabulary_config,
    prompt_ids,
    speculators_names,
    without,
)
from support.reference_engine import generate
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.cli.trial_run import load_bench
from driftscope.errors import CheckpointError, UsageError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.drafting import Drafted, Variant, as_served, draft
from driftscope.inspect.trial.repairs import attention_repairs, write_config
from driftscope.inspect.trial.result import STOPPED, DrafterChange, T, Trial, TrialListener
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
from driftscope_lab.training.checkpoints import load_drafter, load_target
from driftscope_lab.trio import encode, load_prompts, trio_path

pytestmark = pytest.mark.slow
K, PROMPTS = 5, 16


def _prompts(count: int = PROMPTS) -> dict[str, list[int]]:
    return {prompt.id: encode(prompt.in_distribution) for prompt in load_prompts()[:count]}


@functools.cache
def _bench(prompts: int) -> Bench:
    return Bench(open_target(str(TARGET)), lambda _: _prompts(prompts))


@functools.cache
def _trial(drafter: Path, prompts: int = PROMPTS) -> Trial:
    bench = functools.partial(_bench, prompts)
    return run_trial(open_drafter(str(drafter)), open_target(str(TARGET)).layers, bench, K)


@pytest.mark.nightly
def test_acceptance_is_that_of_the_reference_engine() -> None:
    target, drafter = load_target(TARGET), load_drafter(trio_path() / "eagle31")
    lengths = []
    for ids in _prompts().values():
        made = generate(target, drafter, ids, ANSWER_TOKENS, K, eos_token_id=4)
        # The last rounds of an answer have no K tokens to be compared with.
        end = len(ids) + len(made.token_ids) - 1 - K
        lengths += [one.accepted + 1 for one in made.rounds if one.chain.position < end]
    found = _trial(trio_path() / "eagle31").acceptance
    assert found.rounds == pytest.approx(len(lengths), abs=2)
    assert found.mean_length == pytest.approx(sum(lengths) / len(lengths), abs=0.02)


def test_a_healthy_drafter_gets_no_repair() -> None:
    trial = _trial(trio_path() / "eagle31")
    assert best_repair(trial) is None
    assert not list(verdict(trial))
    assert len(trial.tried) > 15
    assert [rendering.change.id for rendering in trial.renderings] == ["first_token_off"]
    assert not [*rendering_results(trial)]


@pytest.mark.nightly
def test_captured_layers_that_are_off_by_one_are_repaired_in_both_places(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=captured(1, 2, 4))
    best = best_repair(_trial(path, 2 * PROMPTS))  # half of them are too few to be sure
    assert best is not None and best.change.fields == {AUX: [2, 3, 5]}
    write_config(open_drafter(str(path)), best.change, tmp_path / "fixed.json")
    fixed = json.loads((tmp_path / "fixed.json").read_text())
    assert fixed[AUX] == fixed["eagle_config"][AUX] == [2, 3, 5]


def test_a_mistake_in_the_weights_is_named(tmp_path: Path) -> None:
    reversed_states = each(functools.partial(halves, parts=3), "fc")
    best = best_repair(_trial(changed(tmp_path / "a", "eagle3", weights=reversed_states)))
    assert best is not None and best.change.id == "states_order_3_2_1" and best.change.weights


@pytest.mark.nightly
def test_a_drafter_that_no_repair_helps_is_named_as_such(tmp_path: Path) -> None:
    source = torch.Generator().manual_seed(3)
    other = each(lambda one: torch.randn(one.shape, generator=source) * 0.05, "fc", DOWN, "lm_head")
    trial = _trial(changed(tmp_path / "a", weights=other))
    assert best_repair(trial) is None
    assert [result.id for result in verdict(trial)] == ["accepts_little"]


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
    return run_trial(open_drafter(str(drafter)), 4, lambda: _bench(8), K, listener=listener)


@pytest.mark.nightly
def test_repairs_before_it_are_kept_and_the_others_are_named(tmp_path: Path) -> None:
    broken = changed(tmp_path / "a", config=fields(norm_output=False))
    whole = _listened_trial(broken, TrialListener())
    cut = _listened_trial(broken, Stopping("Trying repairs", 3))
    assert not whole.stopped and cut.stopped
    assert cut.acceptance == whole.acceptance and cut.figures == whole.figures
    assert len(cut.tried) == 3
    by_id = {tried.change.id: tried for tried in whole.tried}
    assert all(tried.gain == by_id[tried.change.id].gain for tried in cut.tried)
    left_out = {skipped.id for skipped in cut.not_applicable if skipped.reason == STOPPED}
    ways = {rendering.change.id for rendering in whole.renderings}
    assert left_out == by_id.keys() - {tried.change.id for tried in cut.tried} | ways
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
    _bench(8)._passages = ()
    with pytest.raises(KeyboardInterrupt):
        _listened_trial(trio_path() / "eagle31", Stopping("Answering prompts", 7))


SETTINGS = "tokenizer_config.json"


def _rendered_trial(drafter: Path, bench: Bench) -> Trial:
    return run_trial(open_drafter(str(drafter)), bench.facts.layers, lambda: bench, K)


@pytest.mark.nightly
def test_prompts_without_the_first_token_are_tried_with_it() -> None:
    prompts = {name: ids[1:] for name, ids in _prompts().items()}
    bench = Bench(open_target(str(TARGET)), lambda _: prompts)
    trial = _rendered_trial(trio_path() / "eagle31", bench)
    assert [rendering.change.id for rendering in trial.renderings] == ["first_token_on"]


def test_a_target_with_another_template_than_the_drafter_is_named(tmp_path: Path) -> None:
    target, drafter = changed(tmp_path / "target", TARGET), changed(tmp_path / "drafter")
    settings = json.loads((target / SETTINGS).read_text())
    (drafter / "chat_template.jinja").write_text(settings["chat_template"])
    settings["chat_template"] = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    (target / SETTINGS).write_text(json.dumps(settings))
    bench = load_bench(open_target(str(target)), "trio", PROMPTS)
    trial = _rendered_trial(drafter, bench)
    assert "accepts_more_with.drafters_template" in [
        result.id for result in rendering_results(trial)
    ]
    assert not trial.not_applicable


def test_a_rendering_whose_answers_are_too_short_is_not_applicable() -> None:
    bench, drafter = _bench(PROMPTS), open_drafter(str(trio_path() / "eagle31"))
    passages = bench.passages(set(drafter.aux_layers or ()), K)
    base = as_served(drafter, bench.facts.layers)
    change = DrafterChange(id="other", change="other prompts", mistake="none")
    few = dict(list(bench.prompts.items())[: LEAST_PASSAGES - 1])
    made = [Rendering(change=change, prompts=few)]
    runner = Runner(bench.teacher, lambda most: passages[:most], K)
    found = try_renderings(runner, base, made, runner.run(base, ()))
    assert not found.renderings
    assert [skipped.id for skipped in found.not_applicable] == ["other"]


LAYERS = 4


def _variant(path: Path, **changes: Any) -> Variant:
    """Return a drafter as it is served, or a changed copy of the shipped one, made at `path`."""
    return as_served(open_drafter(str(changed(path, **changes) if changes else path)), LAYERS)


def _equal(first: Variant, second: Path) -> bool:
    built, expected = first.build("cpu").state_dict(), load_drafter(second).state_dict()
    return built.keys() == expected.keys() and all(
        torch.equal(built[name], expected[name]) for name in built
    )


@pytest.mark.parametrize("name", ["eagle3", "eagle31"])
def test_a_shipped_drafter_is_the_reference_drafter(name: str, tmp_path: Path) -> None:
    path = trio_path() / name
    assert _equal(_variant(path), path)
    assert _variant(path).config == load_drafter(path).config
    speculators = {"config": as_speculators, "weights": speculators_names}
    if name == "eagle31":
        assert _equal(_variant(changed(tmp_path / "a", **speculators)), path)


def test_captured_layers_are_sorted_as_vllm_sorts_them(tmp_path: Path) -> None:
    assert _variant(tmp_path, config=captured(3, 1, 2)).config.aux_layers == (1, 2, 3)


def test_norms_that_are_missing_are_ones_as_an_engine_leaves_them(tmp_path: Path) -> None:
    built = _variant(tmp_path, weights=without("fc_norm.")).build("cpu")
    assert torch.equal(built.fc_norm[1].weight, torch.ones(256))


def test_an_embedding_of_its_own_is_used(tmp_path: Path) -> None:
    own = torch.rand(1024, 256)
    built = _variant(tmp_path, weights=added("embed_tokens.weight", own)).build("cpu")
    assert torch.equal(built.embed_tokens.weight, own)
    assert built.fc.weight.shape == (256, 768)


def test_scaled_positions_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = {"rope_type": "linear", "factor": 4.0}
    found = _variant(tmp_path, config=fields(rope_scaling=scaling)).build("cpu").rotary
    config = LlamaConfig(hidden_size=256, num_attention_heads=8, rope_scaling=dict(scaling))
    positions = torch.arange(100)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    torch.testing.assert_close(found.cos[:100].float(), cos[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sin[:100].float(), sin[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_act": "gelu"}, "refuses its activation"),
        ({"partial_rotary_factor": 2.0}, "at most 1"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_what_the_reference_code_cannot_run_is_an_error(
    tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        _variant(tmp_path, config=fields(**values))


def test_biases_of_the_config_are_needed_and_run(tmp_path: Path) -> None:
    def biases(state: State) -> None:
        for name in [name for name in state if name.endswith("_proj.weight")]:
            state[name.replace("weight", "bias")] = torch.rand(len(state[name]))

    config = fields(attention_bias=True, mlp_bias=True)
    with pytest.raises(CheckpointError, match="bias"):
        _variant(tmp_path / "a", config=config).check()
    built = _variant(tmp_path / "b", config=config, weights=biases).build("cpu").state_dict()
    assert sum(name.endswith(".bias") for name in built) == 7


def test_of_a_head_only_the_rotated_share_turns(tmp_path: Path) -> None:
    drafter = _variant(tmp_path, config=fields(partial_rotary_factor=0.5)).build("cpu")
    heads = torch.rand(1, 1, 3, 32)
    turned = drafter.rotary(heads, torch.arange(3))
    assert torch.equal(turned[..., 16:], heads[..., 16:])
    assert not torch.allclose(turned[:, :, 1:, :16], heads[:, :, 1:, :16])


DRAFTED, VOCABULARY = 4, 1024


@functools.cache
def _passages() -> tuple[Teacher, list[Passage]]:
    teacher = Teacher(TARGET, "cpu")
    prompts = {prompt.id: encode(prompt.in_distribution) for prompt in load_prompts()[:2]}
    return teacher, list(teacher.passages(prompts, {2, 3, 5}))


def _drafted(path: Path, **changes: Any) -> list[Drafted]:
    teacher, passages = _passages()
    built = _variant(path, **changes).build("cpu")
    return [draft(built, teacher, passage, DRAFTED) for passage in passages]


def test_a_drafter_that_is_always_certain_has_what_it_accepts(tmp_path: Path) -> None:
    sure = _drafted(tmp_path, weights=each(lambda head: head * 2.0**12, "lm_head"))
    for one, other in zip(sure, _drafted(trio_path() / "eagle31"), strict=True):
        assert torch.equal(one.accepted, other.accepted)
        assert (one.probability - one.accepted).abs().mean() < 0.01
        assert (other.probability - other.accepted).abs().mean() > 0.1


def test_a_drafter_that_knows_nothing_gives_each_token_the_same(tmp_path: Path) -> None:
    for chains in _drafted(tmp_path, weights=each(torch.zeros_like, "lm_head")):
        wrong = chains.accepted == 0
        assert wrong.any()
        assert torch.allclose(chains.probability[wrong], torch.tensor(1 / VOCABULARY))


def test_tokens_that_cannot_be_drafted_have_no_probability(tmp_path: Path) -> None:
    found = _drafted(tmp_path, config=own_vocabulary_config, weights=own_vocabulary)
    for chains, passage in zip(found, _passages()[1], strict=True):
        odd = passage.ids[passage.anchors(DRAFTED) + 2] % 2 == 1
        assert odd.any() and not odd.all()
        assert (chains.probability[odd] == 0).all()
        assert (chains.probability[~odd] > 0).all()


@dataclass(frozen=True)
class Kind:
    """A drafter of one kind, and its target with answers to the prompts."""

    drafter: Path
    bench: Bench

    @classmethod
    def of(cls, drafter: Path, target: Path) -> Kind:
        return cls(drafter, Bench(open_target(str(target)), lambda _: prompt_ids()))

    def trial(self, drafter: Path | None = None) -> Trial:
        """Return the trial of the drafter, or of another one of its target."""
        files = open_drafter(str(drafter or self.drafter))
        return run_trial(files, self.bench.facts.layers, lambda: self.bench, K)


@pytest.fixture(scope="module")
def eagle1(tmp_path_factory: pytest.TempPathFactory) -> Kind:
    return Kind.of(eagle1_drafter(tmp_path_factory.mktemp("eagle1")), TARGET)


@pytest.fixture(scope="module")
def mtp(tmp_path_factory: pytest.TempPathFactory) -> Kind:
    path = mtp_checkpoint(tmp_path_factory.mktemp("mtp") / "mimo", normed=False)
    return Kind.of(path, path)


@pytest.fixture(scope="module")
def untrained_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of MiMo whose head is random."""
    folder: Path = tmp_path_factory.mktemp("untrained")
    return mtp_checkpoint(folder / "mimo", normed=False, trained=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "repairs"),
    [
        ("eagle1", {"fc_halves", "rope_layout"}),
        ("mtp", {"fc_halves", "token_and_hidden_norm", "rope_layout", "normed_state"}),
    ],
)
def test_another_kind_that_is_healthy_gets_no_repair(
    request: pytest.FixtureRequest, name: str, repairs: set[str]
) -> None:
    trial = request.getfixturevalue(name).trial()
    assert trial.acceptance.mean_length > 2
    assert best_repair(trial) is None
    assert not list(verdict(trial))
    assert {tried.change.id for tried in trial.tried} >= repairs


HEAD, BOTH = "model.mtp_layers.0.", ("weight", "bias")


def _exchanged_norms_of_a_kind(state: State) -> None:
    """Let one norm be large and its columns small, which changes nothing, then exchange norms."""
    token, hidden, fc = (
        f"{HEAD}{name}.weight" for name in ("token_layernorm", "hidden_layernorm", "input_proj")
    )
    of_hidden, of_token = state[fc].chunk(2, -1)
    state[fc] = torch.cat([of_hidden * 8, of_token / 8], -1)
    state[token], state[hidden] = state[hidden] / 8, state[token] * 8


def _in_pairs(state: State) -> None:
    """Lay queries and keys of the head out for interleaved positions, biases too."""
    for name in (f"{HEAD}self_attn.{one}_proj.{kind}" for one in "qk" for kind in BOTH):
        state[name] = interleaved(state[name])


OTHER_EMBEDDING = torch.randn(1024, 256, generator=torch.Generator().manual_seed(0)) * 0.15
MISTAKES: dict[str, dict[str, Callable[[State], None]]] = {
    "eagle1": {
        "fc_halves": each(halves, "fc"),
        "targets_embedding": added("embed_tokens.weight", OTHER_EMBEDDING),
    },
    "mtp": {
        "fc_halves": each(halves, f"{HEAD}input_proj"),
        "token_and_hidden_norm": _exchanged_norms_of_a_kind,
    },
}
WORSE, APART = {"eagle1": 0.6, "mtp": 0.8}, {"eagle1": 0.01, "mtp": 0.05}
"""Largest share of the length that a mistake leaves, and the largest distance of
the repaired length from the healthy one."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "repair"), [(name, repair) for name, made in MISTAKES.items() for repair in made]
)
def test_a_planted_mistake_is_named(
    request: pytest.FixtureRequest, name: str, repair: str, tmp_path: Path
) -> None:
    kind: Kind = request.getfixturevalue(name)
    healthy = kind.trial().acceptance.mean_length
    trial = kind.trial(changed(tmp_path / "a", kind.drafter, weights=MISTAKES[name][repair]))
    best = best_repair(trial)
    assert best is not None
    assert best.change.id == repair
    assert trial.acceptance.mean_length < WORSE[name] * healthy
    assert best.acceptance.mean_length == pytest.approx(healthy, abs=APART[name])


def test_it_has_the_targets_head_whatever_its_file_holds(eagle1: Kind, tmp_path: Path) -> None:
    head = added("lm_head.weight", torch.zeros(1024, 256))
    path = changed(tmp_path / "a", eagle1.drafter, weights=head)
    variant = as_served(open_drafter(str(path)), 6)
    variant.check()
    shared = variant.with_shared_head(torch.ones(1024, 256))
    assert shared.build("cpu").lm_head.weight.eq(1).all()
    assert shared.with_shared_head(torch.zeros(1024, 256)) is shared


BIAS = added("fc.bias", torch.ones(256))


def test_a_bias_that_vllm_has_no_place_for_is_not_run(eagle1: Kind, tmp_path: Path) -> None:
    path = changed(tmp_path / "a", eagle1.drafter, weights=BIAS)
    with pytest.raises(CheckpointError, match="fc has a bias"):
        as_served(open_drafter(str(path)), 6)


def test_a_bias_of_one_for_sglang_is_run(eagle1: Kind, tmp_path: Path) -> None:
    config = fields(architectures=["LlamaForCausalLMEagle"])
    path = changed(tmp_path / "sglang", eagle1.drafter, config=config, weights=BIAS)
    assert as_served(open_drafter(str(path)), 6).config.fc_bias
    lengths = [trial.acceptance.mean_length for trial in (eagle1.trial(path), eagle1.trial())]
    assert lengths[0] < lengths[1] - 1


def test_the_other_layout_of_positions_is_undone_in_weights_and_biases(
    untrained_head: Path, tmp_path: Path
) -> None:
    """It costs this head too little to be told from chance."""
    path = changed(tmp_path / "a", untrained_head, weights=_in_pairs)
    wrong = as_served(open_drafter(str(path)), 6)
    (repair,) = attention_repairs(wrong)
    healthy = as_served(open_drafter(str(untrained_head)), 6).state
    assert all(torch.equal(repair.variant.state[name], tensor) for name, tensor in healthy.items())
    assert sum(not torch.equal(wrong.state[name], one) for name, one in healthy.items()) == 4


def _uneven_final_norm(state: State) -> None:
    """Let the target's final norm scale every second entry, and undo it in the output and in what
    the head does with the normed state. Target and head compute what they did."""
    scale = torch.ones(len(state["model.norm.weight"]))
    scale[::2] = 6.0
    state["lm_head.weight"] /= scale
    state["model.norm.weight"] *= scale
    state[f"{HEAD}final_layernorm.weight"] *= scale
    state[f"{HEAD}hidden_layernorm.weight"] *= scale.square().mean().sqrt() / scale


@pytest.mark.nightly
def test_a_head_trained_on_normed_states_is_named(tmp_path: Path) -> None:
    plain = mtp_checkpoint(tmp_path / "mimo", normed=True)
    path = changed(tmp_path / "a", plain, weights=_uneven_final_norm)
    trial = Kind.of(path, path).trial()
    best = best_repair(trial)
    assert best is not None and best.change.id == "normed_state"
    (result,) = verdict(trial)
    assert "SGLang gives it" in (result.change or "")


def test_several_heads_are_not_run(untrained_head: Path, tmp_path: Path) -> None:
    def second(state: State) -> None:
        mine = {n: tensor.clone() for n, tensor in state.items() if n.startswith(HEAD)}
        state.update({n.replace("layers.0", "layers.1"): tensor for n, tensor in mine.items()})

    path = changed(tmp_path / "a", untrained_head, weights=second)
    with pytest.raises(CheckpointError, match="2 MTP heads"):
        as_served(open_drafter(str(path)), 6)


@pytest.mark.nightly
def test_a_repair_of_a_head_is_not_written(mtp: Kind, tmp_path: Path) -> None:
    checkpoint, into = str(mtp.drafter), str(tmp_path / "repaired.json")
    command = ["inspect", checkpoint, "--target", checkpoint, "--write-config", into]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, UsageError) and "part of one" in str(done.exception)
    assert not Path(into).exists()


@pytest.mark.nightly
def test_the_model_type_of_published_checkpoints_is_loaded(mtp: Kind, tmp_path: Path) -> None:
    """transformers does not know it without code from the repository."""
    path = changed(tmp_path / "published", mtp.drafter, config=fields(model_type="mimo"))
    assert Kind.of(path, path).trial().acceptance.mean_length > 2

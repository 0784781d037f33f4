"""What a trial computes: acceptance, the inside, renderings and the target's tokens."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import TARGET, changed
from support.inspections import FIGURES, PROMPTS, K, inside_sums, rounds
from support.reference_engine import Chain, replay
from transformers import AutoTokenizer

from driftscope.analysis.figures.attention_drift import DriftAnswer
from driftscope.analysis.statistics.intervals import Estimate, Interval
from driftscope.analysis.statistics.ratio import mean_interval
from driftscope.errors import CheckpointError
from driftscope.inspect.checks.result import Certainty, CheckLevel, CheckResult
from driftscope.inspect.trial.drafting import draft
from driftscope.inspect.trial.inside import InsideSums, TrialConfidence, inside_of
from driftscope.inspect.trial.result import (
    AllPositions,
    DrafterChange,
    Gain,
    Overflow,
    Trial,
    Tried,
    acceptance_of,
    gain,
    mean_gain,
    mean_length,
)
from driftscope.inspect.trial.target import CPU, GPU, Passage, Teacher, placement, weight_of
from driftscope.inspect.trial.trial import Ids, renderings, with_tokens_for_turns
from driftscope.inspect.trial.verdict import reaches, verdict
from driftscope.trace.records import edges_of
from driftscope.vocabulary import Growth
from driftscope_lab.training.checkpoints import load_drafter, load_target
from driftscope_lab.trio import encode, load_prompts, trio_path

DEPTHS = 5
ANSWERS, ROUNDS = 32, 16


def _rounds(source: np.random.Generator, rate: float, spread: float = 0.15) -> list[list[int]]:
    """Rounds whose rate per depth varies by prompt."""
    rates = np.clip(rate + source.normal(0, spread, ANSWERS), 0.05, 0.95)
    return [_of_prompt(source, rate) for rate in rates]


def _of_prompt(source: np.random.Generator, rate: float) -> list[int]:
    hits = source.random((ROUNDS, DEPTHS)) < rate
    return [int(length) for length in hits.cumprod(axis=1).sum(axis=1)]


def test_the_length_counts_the_targets_own_token() -> None:
    found = acceptance_of([[0, 2], [1, 1]], 2)
    assert found.mean_length == 2.0
    assert found.marginal == (0.75, 0.25)
    assert found.rounds == 4
    assert found.mean_length == pytest.approx(1 + sum(found.marginal))


def test_the_interval_covers_the_true_length_in_about_95_of_100_trials() -> None:
    source = np.random.default_rng(5)
    truth = np.mean([mean_length(_rounds(source, 0.6)) for _ in range(300)])
    spreads = [acceptance_of(_rounds(source, 0.6), DEPTHS).mean_length_interval for _ in range(200)]
    inside = [spread is not None and spread.low <= truth <= spread.high for spread in spreads]
    assert 0.90 < np.mean(inside) <= 1.0


def test_repairs_that_change_nothing_are_rarely_found() -> None:
    source, found = np.random.default_rng(6), 0
    for _ in range(100):
        rates = np.clip(0.6 + source.normal(0, 0.15, ANSWERS), 0.05, 0.95)
        base = [_of_prompt(source, rate) for rate in rates]
        others = [[_of_prompt(source, rate) for rate in rates] for _ in range(20)]
        found += any(gain(base, other, len(others)).p < 0.05 for other in others)
    assert found <= 10  # 5 are expected at most


def test_a_repair_that_helps_is_found_with_its_size() -> None:
    source = np.random.default_rng(7)
    base, other = _rounds(source, 0.3, 0), _rounds(source, 0.7, 0)
    found = gain(base, other, 30)
    assert found.p < 1e-6
    assert found.interval is not None and found.interval.low > 0
    assert found.difference == pytest.approx(mean_length(other) - mean_length(base))


def test_means_over_all_positions_are_rarely_found_to_differ_by_chance() -> None:
    source, found = np.random.default_rng(8), 0
    for _ in range(200):
        # Positions of one prompt are alike, and so are both sides.
        prompt = source.normal(0, 1, (ANSWERS, 1))
        noise = source.normal(0, 0.3, (2, ANSWERS, 1)) + source.normal(0, 1, (2, ANSWERS, 15))
        base, other = (prompt + noise).tolist()
        found += mean_gain(base, other).p < 0.05
    assert 2 <= found <= 20  # 10 are expected


def test_a_shift_of_all_positions_is_found_with_its_size() -> None:
    base = np.random.default_rng(9).normal(0, 1, (ANSWERS, 15))
    found = mean_gain(base.tolist(), (base + 0.25).tolist(), 30)
    assert found.difference == pytest.approx(0.25)
    assert found.p < 1e-6


def _tried(
    base: list[list[int]], other: list[list[int]], name: str = "swapped", **more: Any
) -> Tried:
    tried = Tried(
        change=DrafterChange(id=name, change=name, mistake=f"{name} is wrong"),
        acceptance=acceptance_of(other, K),
        gain=gain(base, other, 2),
        prompts=PROMPTS,
    )
    return replace(tried, **more)


def _ids(trial: Trial, *others: CheckResult) -> list[str]:
    return [result.id for result in verdict(trial, others)]


def _trial(rate: float, seed: int, surer: float) -> Trial:
    base, other = rounds(0.75, 1), rounds(rate, seed)
    apart = np.random.default_rng(seed).normal(surer, 0.01, PROMPTS)
    tried = _tried(
        base,
        other,
        "first_token_off",
        surer=float(apart.mean()),
        surer_interval=mean_interval(apart),
    )
    return Trial(
        prompts=PROMPTS,
        k=K,
        acceptance=acceptance_of(base, K),
        figures=dict.fromkeys(FIGURES, (1.0,) * K),
        inside=inside_of(inside_sums(PROMPTS, K)),
        tried=(),
        renderings=(tried,),
    )


@pytest.mark.parametrize(
    ("surer", "level"), [(-0.2, CheckLevel.WARNING), (0.0, CheckLevel.NOTE), (0.2, CheckLevel.NOTE)]
)
def test_more_accepted_is_a_warning_unless_the_answers_may_be_easier(
    surer: float, level: CheckLevel
) -> None:
    (found,) = verdict(_trial(0.95, 2, surer))
    assert found.id == "accepts_more_with.first_token_off"
    assert found.level is level
    assert ("easier" in found.found) is (level is CheckLevel.NOTE)


@pytest.mark.parametrize(("stopped", "ids"), [(False, ["accepts_little"]), (True, [])])
def test_that_no_repair_helps_is_concluded_from_all_of_them_only(
    stopped: bool, ids: list[str]
) -> None:
    dead = replace(
        _trial(0.5, 2, 0),
        acceptance=acceptance_of(rounds(0.0, 3), K),
        renderings=(),
        stopped=stopped,
    )
    assert _ids(dead) == ids


@pytest.mark.parametrize(
    ("accepted", "probability", "found"),
    [(0.2, 0.2, True), (0.2, 0.0, False), (0.0, 0.2, False), (-0.2, 0.2, False)],
)
def test_a_small_gain_is_certain_if_probability_and_acceptance_agree(
    accepted: float, probability: float, found: bool
) -> None:
    base, source = rounds(0.75, 1), np.random.default_rng(4)
    noise = source.normal(0, 0.05, (2, PROMPTS, 20))
    zeros = np.zeros((PROMPTS, 20))
    tried = _tried(
        base,
        base,
        # Rounds of a server alone do not show it.
        gain=Gain(difference=0.2, interval=Interval(low=-0.2, high=0.6), p=0.3),
        all_positions=AllPositions(
            accepted=mean_gain(zeros.tolist(), (noise[0] + accepted).tolist()),
            probability=mean_gain(zeros.tolist(), (noise[1] + probability).tolist(), 25),
            first=mean_gain(zeros.tolist(), noise[1].tolist()),
        ),
    )
    results = list(verdict(replace(_trial(0.5, 2, 0), tried=(tried,), renderings=())))
    assert [result.id for result in results] == (["repaired_by.swapped"] if found else [])
    assert all("all positions" in result.rule for result in results)


def test_less_accepted_is_nothing() -> None:
    assert not list(verdict(_trial(0.3, 3, -0.2)))


@pytest.mark.parametrize(
    ("rate", "sure", "ids"),
    [
        (0.35, 0.35, ["too_little_training"]),
        (0.35, 0.75, ["accepts_little"]),
        (0.02, 0.02, ["accepts_little"]),
        (0.5, 0.5, ["too_few_prompts"]),
        (0.75, 0.9, []),
    ],
)
def test_confidence_tells_too_little_training_from_wrong_wiring(
    rate: float, sure: float, ids: list[str]
) -> None:
    base = _trial(0.75, 2, 0)
    inside = replace(
        base.inside,
        confidence=TrialConfidence(
            sure=(sure,) * K, right=(Estimate(value=rate, interval=None),) * K
        ),
    )
    accepted = acceptance_of(rounds(rate, 3), K)
    trial = replace(base, acceptance=accepted, inside=inside, renderings=())
    assert _ids(trial) == ids
    texts = dict.fromkeys(("title", "expected", "rule", "found"), "")
    other = CheckResult(id="embedding_not_targets", level=CheckLevel.WARNING, **texts)
    assert _ids(trial, other) == (["another_target"] if ids == ["accepts_little"] else ids)


@pytest.mark.parametrize(
    ("share", "ids", "reached"),
    [
        (None, [], None),
        (0.9, [], True),
        (1.12, ["too_few_prompts"], None),
        (1.5, ["accepts_less_than_expected"], False),
    ],
)
def test_a_length_is_compared_with_the_expected_one_up_to_a_tenth(
    share: float | None, ids: list[str], reached: bool | None
) -> None:
    base = replace(_trial(0.75, 2, 0), renderings=())
    length = share and share * base.acceptance.mean_length
    trial = replace(base, expected_length=length)
    assert _ids(trial) == ids
    assert reaches(trial) is reached


def test_numbers_that_overflow_are_named_first() -> None:
    trial = replace(
        _trial(0.75, 2, 0), overflow=Overflow(depth=2, tensor="fc.weight", dtype="float16")
    )
    first, *_ = verdict(trial)
    assert first.id == "states_overflow" and first.level is CheckLevel.ERROR
    assert "depth 2" in first.title and "fc.weight" in first.found


@pytest.mark.parametrize(
    ("behind", "certainty"), [(0.5, Certainty.LIKELY), (0.0, Certainty.POSSIBLE)]
)
def test_two_repairs_that_help_alike_are_one_of_both(behind: float, certainty: Certainty) -> None:
    base, other = rounds(0.5, 1), rounds(0.9, 2)
    gap = Gain(difference=behind, interval=None, p=1e-6 if behind else 1.0)
    tried = _tried(base, other, "first"), _tried(base, other, "second", behind=gap)
    (found,) = verdict(replace(_trial(0.75, 2, 0), tried=tried, renderings=()))
    assert found.certainty is certainty
    assert ("second is wrong" in found.found) is (certainty is Certainty.POSSIBLE)


def _repair(before: float, after: float) -> Tried:
    return _tried(rounds(before, 1), rounds(after, 2))


def test_a_repair_that_leaves_little_accepted_is_no_cause() -> None:
    low = replace(_trial(0.3, 2, 0), acceptance=acceptance_of(rounds(0.2, 1), K), renderings=())
    little, note = verdict(replace(low, tried=(_repair(0.2, 0.35),)))
    assert little.id in ("accepts_little", "too_little_training")
    assert (note.id, note.level) == ("repaired_by.swapped", CheckLevel.NOTE)
    (error,) = verdict(replace(low, tried=(_repair(0.2, 0.9),)))
    assert (error.id, error.level) == ("repaired_by.swapped", CheckLevel.ERROR)


def test_a_repair_that_helps_less_than_a_rendering_is_a_note() -> None:
    trial = replace(_trial(0.95, 2, -0.2), tried=(_repair(0.75, 0.85),))
    rendering, note = verdict(trial)
    assert (rendering.id, rendering.level) == (
        "accepts_more_with.first_token_off",
        CheckLevel.WARNING,
    )
    assert (note.id, note.level) == ("repaired_by.swapped", CheckLevel.NOTE)


DEPTHS, PROMPT_TOKENS = 5, 40


Both = tuple[InsideSums, list[Chain], torch.Tensor]


@pytest.fixture(scope="module")
def both() -> Both:
    target = load_target(TARGET, torch.float64)
    drafter = load_drafter(trio_path() / "eagle3", torch.float64)
    ids = torch.tensor(encode(load_prompts()[0].in_distribution)[:90])
    aux = drafter.config.aux_layers
    with torch.no_grad():
        states = target(ids[None, :-1], aux_layers=aux).aux
    passage = Passage(
        key="0", ids=ids, prompt_tokens=PROMPT_TOKENS, states=dict(zip(aux, states, strict=True))
    )
    found = draft(drafter, target, passage, DEPTHS, measured=True).inside
    assert found is not None
    anchors = passage.anchors(DEPTHS).tolist()
    chains = replay(target, drafter, ids.tolist(), PROMPT_TOKENS, anchors, DEPTHS)
    return found, chains, ids


def test_masses_by_distance_on_the_sink_and_on_the_chain(both: Both) -> None:
    found, chains, _ = both
    bins = sum(np.array(chain.distance_mass).reshape(DEPTHS, -1) for chain in chains)
    assert found.chains == len(chains)
    assert found.bins.shape == (DEPTHS, len(edges_of(DEPTHS)))
    assert found.bins == pytest.approx(bins, abs=1e-6)
    assert found.even == pytest.approx(sum(4 / (chain.position + 1) for chain in chains))
    for ours, name in ((found.sink, "sink_mass"), (found.own, "self_mass"), (found.fed, "fed_rms")):
        wanted = np.sum([getattr(chain, name) for chain in chains], axis=0)
        assert ours == pytest.approx(wanted, abs=1e-5)


def test_a_depth_counts_the_drafts_that_are_accepted_so_far(both: Both) -> None:
    found, chains, ids = both
    reached, right, sure = np.zeros((3, DEPTHS))
    for chain in chains:
        for depth in range(DEPTHS):
            reached[depth] += 1
            sure[depth] += chain.top1[depth]
            hit = chain.token_ids[depth] == int(ids[chain.position + 2 + depth])
            right[depth] += hit
            if not hit:
                break
    assert found.reached == pytest.approx(reached)
    assert found.right == pytest.approx(right)
    assert found.sure == pytest.approx(sure, abs=1e-4)
    assert 0 < right[-1] < reached[0], "otherwise the test shows little"


@pytest.mark.parametrize(
    ("sums", "drift", "growth", "words"),
    [
        (
            inside_sums(24),
            DriftAnswer.NO_DRIFT,
            Growth.KEEPS_ITS_SIZE,
            ("attention does not drift over depth", "keeps its size"),
        ),
        (
            inside_sums(24, shift=0.15, growth=2.0),
            DriftAnswer.DRIFT,
            Growth.GROWS,
            ("attention drifts over depth", "grows: 2.0"),
        ),
        # Few prompts, and values between the thresholds.
        (
            inside_sums(8, shift=0.15, growth=1.12),
            DriftAnswer.CANNOT_TELL,
            Growth.CANNOT_TELL,
            ("at least 10 prompts", "cannot be told"),
        ),
    ],
)
def test_drift_and_growth_are_told_from_standing_still(
    sums: list[InsideSums], drift: DriftAnswer, growth: Growth, words: tuple[str, str]
) -> None:
    found = inside_of(sums)
    assert found.attention_drift is not None
    assert (found.attention_drift.answer, found.grows) == (drift, growth)
    assert all(word in line for word, line in zip(words, found.lines, strict=False))


def test_a_depth_that_no_draft_reaches_has_no_rate() -> None:
    confidence = inside_of(inside_sums(24)).confidence
    assert confidence.sure == pytest.approx([0.8, 0.8, 0.8, None])
    assert [share and share.value for share in confidence.right] == [0.5, 0.5, 0.5, None]
    line = inside_of(inside_sums(24)).lines[-1]
    assert "80% sure of its first token, which is right in 50%" in line


def test_one_depth_has_nothing_that_could_change() -> None:
    found = inside_of(inside_sums(12, k=1))
    assert found.attention_drift is None and found.growth is None
    assert len(found.lines) == 1


@pytest.mark.parametrize("seed", range(5))
def test_rates_of_wrong_answers(seed: int) -> None:
    """40 drafters that keep still: none is said to drift or to grow."""
    for at in range(8):
        found = inside_of(inside_sums(12, seed=100 * seed + at))
        assert DriftAnswer.DRIFT is not (found.attention_drift and found.attention_drift.answer)
        assert found.grows is not Growth.GROWS


OWN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ASKED = {"a": [{"role": "user", "content": "Write a loop."}]}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TARGET)


@pytest.mark.parametrize(
    ("prompts", "change", "expected"),
    [
        ({"a": [0, 7, 8], "b": [0, 9]}, "first_token_off", {"a": [7, 8], "b": [9]}),
        ({"a": [7, 8], "b": [9]}, "first_token_on", {"a": [0, 7, 8], "b": [0, 9]}),
    ],
)
def test_the_first_token_is_left_out_or_added(
    tokenizer: Any, prompts: Ids, change: str, expected: Ids
) -> None:
    made, _ = renderings(tokenizer, prompts, {}, (None, None))
    assert [rendering.change.id for rendering in made] == [change]
    assert made[0].prompts == expected


@pytest.mark.parametrize(
    ("prompts", "reason"),
    [
        ({"a": [0, 7], "b": [9]}, "only some prompts"),
        ({"a": [0, 7], "b": [0]}, "nothing but"),
        ({"a": [7]}, "no first token"),
    ],
)
def test_a_first_token_that_cannot_be_changed_has_a_reason(
    tokenizer: Any, prompts: Ids, reason: str
) -> None:
    if reason == "no first token":
        tokenizer = AutoTokenizer.from_pretrained(TARGET, bos_token=None)
    made, left_out = renderings(tokenizer, prompts, {}, (None, None))
    assert not made
    assert reason in {skipped.id: skipped.reason for skipped in left_out}["first_token"]


def test_the_drafters_own_template_is_tried(tokenizer: Any) -> None:
    made, left_out = renderings(tokenizer, {"a": [0, 7]}, ASKED, (tokenizer.chat_template, OWN))
    assert [tried.change.id for tried in made] == ["first_token_off", "drafters_template"]
    assert tokenizer.decode(made[1].prompts["a"]) == "Write a loop."
    assert not left_out


def test_tokens_for_turns_are_tried_where_the_template_has_none(tokenizer: Any) -> None:
    own = tokenizer.apply_chat_template(ASKED["a"], tokenize=True, add_generation_prompt=True)
    asked = tokenizer, {"a": [0, 7]}, ASKED
    found = with_tokens_for_turns(*asked, "### {{ messages[0]['content'] }}")
    assert found is not None and found.prompts["a"] == own["input_ids"]
    assert with_tokens_for_turns(*asked, tokenizer.chat_template) is None


@pytest.mark.parametrize(
    ("own", "asked", "reason"),
    [
        (None, ASKED, "without a chat template"),
        ("same", ASKED, "is the target's"),
        (OWN, {}, "texts, not conversations"),
        ('[{"name": "default"}]', ASKED, "several"),
        ("{{ raise_exception('no system role') }}", ASKED, "no system role"),
        ("{% broken", ASKED, "fails"),
        ("{# nothing #}", ASKED, "renders nothing"),
    ],
)
def test_a_template_that_cannot_be_tried_has_a_reason(
    tokenizer: Any, own: str | None, asked: dict[str, Any], reason: str
) -> None:
    targets = tokenizer.chat_template
    own = targets if own == "same" else own
    made, (left_out,) = renderings(tokenizer, {"a": [0, 7]}, asked, (targets, own))
    assert [tried.change.id for tried in made] == ["first_token_off"]
    assert left_out.id == "drafters_template" and reason in left_out.reason


PROMPT = 5


@pytest.mark.parametrize(
    ("answer", "k", "anchors"),
    [(6, 4, [4, 5]), (5, 4, [4]), (4, 4, []), (1, 4, []), (2, 1, [4])],
)
def test_a_chain_needs_k_tokens_after_the_one_that_is_known(
    answer: int, k: int, anchors: list[int]
) -> None:
    passage = Passage(key="a", ids=torch.arange(PROMPT + answer), prompt_tokens=PROMPT, states={})
    assert passage.anchors(k).tolist() == anchors


def test_only_a_gpu_with_accelerate_has_a_device_map() -> None:
    assert placement(GPU, accelerate=True) == {"device_map": "auto"}
    assert placement(GPU, accelerate=False) == {}
    assert placement(CPU, accelerate=True) == {}


def test_a_weight_that_is_there_is_returned_as_it_is() -> None:
    layer = torch.nn.Linear(3, 2)
    assert weight_of(layer).data_ptr() == layer.weight.data_ptr()
    assert not weight_of(layer).requires_grad


def _passages(teacher: Teacher) -> list[Passage]:
    prompts = {prompt.id: encode(prompt.in_distribution) for prompt in load_prompts()[:3]}
    return list(teacher.passages(prompts, {0, 2, 4}))


@pytest.mark.slow
def test_layers_that_are_kept_elsewhere_change_nothing() -> None:
    pytest.importorskip("accelerate")
    places = {"model.embed_tokens": CPU, "model.norm": CPU, "model.rotary_emb": CPU, "lm_head": CPU}
    layers = {f"model.layers.{layer}": "disk" if layer % 2 else CPU for layer in range(4)}
    plain = Teacher(TARGET, CPU)
    parted = Teacher(TARGET, CPU, device_map={**places, **layers})
    assert next(parted.model.model.layers[1].parameters()).is_meta
    for one, other in zip(_passages(plain), _passages(parted), strict=True):
        assert torch.equal(one.ids, other.ids)
        for layer, states in one.states.items():
            assert torch.equal(states, other.states[layer]), layer
    offloaded = parted.model.model.layers[1].mlp.up_proj
    assert torch.equal(weight_of(offloaded), plain.model.model.layers[1].mlp.up_proj.weight)
    assert offloaded.weight.is_meta


def _target_with(folder: Path, file: str, **fields: object) -> Path:
    """Return a copy of the target with other fields in a file."""
    path = changed(folder / "own", TARGET)
    (path / file).write_text(json.dumps({**json.loads((path / file).read_text()), **fields}))
    return path


_MODULE = """open({ran!r}, "w")
from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizerFast
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(LlamaTokenizerFast):
    pass
def generate(*_, **__):
    pass
"""
_MODEL = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
_TOKENIZER = {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}


@pytest.mark.parametrize(
    ("file", "fields", "module", "loads"),
    [
        ("config.json", {"model_type": "own", "auto_map": _MODEL}, "own.py", False),
        ("config.json", {"auto_map": _MODEL}, "own.py", True),
        ("tokenizer_config.json", {"auto_map": _TOKENIZER, "tokenizer_class": "Own"}, "own.py", 0),
        ("config.json", {}, "custom_generate/generate.py", True),
    ],
    ids=["unknown model", "known model", "tokenizer", "custom generate"],
)
def test_code_of_a_checkpoint_never_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    fields: dict[str, Any],
    module: str,
    loads: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 8))
    folder, ran = _target_with(tmp_path, file, **fields), tmp_path / "ran"
    (folder / module).parent.mkdir(exist_ok=True)
    (folder / module).write_text(_MODULE.format(ran=str(ran)))
    if loads:
        Teacher(folder)
    else:
        with pytest.raises(CheckpointError, match="code of its own, which driftscope never runs"):
            Teacher(folder)
    assert not ran.exists() and not capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("generation_config.json", "eos_token_id", 10**400),
        ("generation_config.json", "bos_token_id", "x" * 5000),
        ("tokenizer_config.json", "bos_token", "x" * 5000),
    ],
)
def test_settings_that_load_and_do_not_run_are_one_error(
    tmp_path: Path, file: str, name: str, value: object
) -> None:
    teacher = Teacher(_target_with(tmp_path, file, **{name: value}))
    prompt = teacher.encode([{"role": "user", "content": "the river"}])
    with pytest.raises(CheckpointError, match="transformers cannot run this target"):
        list(teacher.passages({"a": prompt}, {1}))

"""Ablations of shipped and constructed drafters, through the command and resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from support.checkpoints import (
    TARGET,
    changed,
    eagle1_drafter,
    own_vocabulary,
    own_vocabulary_config,
    prompt_texts,
)
from support.constructed_drafter import CAUSES, KNOWN, PART_OF, decomposition_of
from torch import Tensor
from typer.testing import CliRunner, Result

from driftscope.ablate.intervention import (
    AS_SERVED,
    FACTORIAL,
    INTERVENTIONS,
    RIGHT_BOTH,
    RIGHT_TOKENS,
    AttentionChange,
)
from driftscope.ablate.result import Ablation, Decomposition, Part
from driftscope.ablate.run import (
    NEAREST_SLOTS,
    AblatedDraft,
    AttentionEdit,
    ablated_draft,
    run_ablation,
)
from driftscope.boundary.json_document import ABLATION
from driftscope.cli import run_reports
from driftscope.cli.app import app
from driftscope.errors import CheckpointError, NoDataError, UsageError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import ReferenceDrafter
from driftscope.inspect.trial.drafting import FIGURES, Prefix, as_served, draft
from driftscope.inspect.trial.target import BATCH, Passage, Teacher
from driftscope.inspect.trial.trial import Bench
from driftscope.json_schema import schema_of
from driftscope.workloads.suites.prompts import prompts_of
from driftscope_lab.trio import encode, trio_path

pytestmark = pytest.mark.slow

FEW = ("--prompts", "trio", "--k", "3", "--limit", "6", "--positions", "6")


def _ablate(drafter: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["ablate", str(drafter), "--target", str(TARGET), *options])


def test_the_document_follows_its_schema_and_says_what_does_not_apply(tmp_path: Path) -> None:
    file = tmp_path / "why.html"
    done = _ablate(trio_path() / "eagle31", *FEW, "--json", "-o", str(file))
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema_of(ABLATION))
    assert "What each intervention changes" in file.read_text()
    assert document["prompts"] == 6 and document["positions"] == 36
    found = {effect["intervention"]["id"] for effect in document["effects"]}
    assert found == INTERVENTIONS.keys() - {"normalise"}
    assert "norm_output" in document["not_applicable"]["normalise"]
    tokens = next(
        effect for effect in document["effects"] if effect["intervention"]["id"] == "right-tokens"
    )
    assert tokens["difference"] == 0.0


def test_a_drafter_whose_states_overflow_is_no_ablation(tmp_path: Path) -> None:
    def overflow(tensors: dict[str, Tensor]) -> None:
        name = next(name for name in tensors if name.endswith("down_proj.weight"))
        tensors[name][3] = 3e38

    broken = changed(tmp_path / "drafter", weights=overflow)
    done = _ablate(broken, *FEW)
    assert isinstance(done.exception, CheckpointError)
    assert "its states are not finite (NaN, or an overflow) from depth" in str(done.exception)
    assert "driftscope inspect" in str(done.exception)


@pytest.mark.parametrize("names", ["", " , "])
def test_no_intervention_is_an_error(names: str) -> None:
    done = _ablate(trio_path() / "eagle31", *FEW, "--interventions", names)
    assert isinstance(done.exception, UsageError)
    assert "name one or more of" in str(done.exception)


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    done = _ablate(trio_path() / "eagle31", *FEW, "-o", str(tmp_path))
    assert isinstance(done.exception, UsageError)
    assert "is a folder; name a file" in str(done.exception)


def test_the_table_fits_into_80_columns_and_explains_the_parts() -> None:
    done = _ablate(trio_path() / "eagle3", *FEW)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(done.stdout.split())
    assert "the drafter's own states" in text and "as served" in text
    assert "up to its first wrong token" in text


def test_named_interventions_alone_are_run() -> None:
    done = _ablate(trio_path() / "eagle3", *FEW, "--interventions", "hide-sink", "--json")
    document = json.loads(done.stdout)
    assert [effect["intervention"]["id"] for effect in document["effects"]] == [
        AS_SERVED,
        "hide-sink",
    ]
    assert document["decomposition"] is None


def test_an_unknown_intervention_is_named_with_those_that_there_are() -> None:
    done = _ablate(trio_path() / "eagle3", *FEW, "--interventions", "more-heads")
    assert isinstance(done.exception, UsageError)
    assert "more-heads: no such intervention; there are right-tokens" in str(done.exception)


def test_a_draft_vocabulary_is_measured_by_kind_of_text(tmp_path: Path) -> None:
    half = changed(tmp_path / "d", config=own_vocabulary_config, weights=own_vocabulary)
    named = ("--interventions", "hide-sink")
    document = json.loads(_ablate(half, *FEW, *named, "--json").stdout)
    regions = document["vocabulary"]["by_region"]
    tokens = sum(region["tokens"] for region in regions)
    lacking = sum(region["tokens"] * region["lacking"] for region in regions)
    assert 0.3 < document["vocabulary"]["lacking"] < 0.7
    assert lacking / tokens == pytest.approx(document["vocabulary"]["lacking"])
    printed = _ablate(half, *FEW, *named).output
    assert "are not in the draft vocabulary:" in printed
    assert all(f"  {region['region']}" in printed for region in regions)


def test_a_drafter_that_cannot_be_run_is_one_error(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=lambda fields: fields.update(mlp_bias=True))
    done = _ablate(path, *FEW)
    assert isinstance(done.exception, CheckpointError)
    assert "the drafter cannot be run" in str(done.exception)
    missing = _ablate(tmp_path / "none", *FEW)
    assert isinstance(missing.exception, CheckpointError)


@pytest.mark.parametrize("k", ["0", "33"])
def test_k_has_bounds(k: str) -> None:
    assert _ablate(trio_path() / "eagle3", "--k", k).exit_code == 2


def test_a_size_that_no_layer_can_have_is_one_error(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=lambda fields: fields.update(intermediate_size=10**19))
    done = _ablate(path, *FEW)
    assert isinstance(done.exception, CheckpointError)
    assert "is out of bounds" in str(done.exception)


def test_a_target_whose_weights_are_damaged_is_one_error(tmp_path: Path) -> None:
    """safetensors has an error of its own, which is none of Python's."""
    target = Path(shutil.copytree(TARGET, tmp_path / "target"))
    weights = target / "model.safetensors"
    weights.write_bytes(b"\xff" * 8 + weights.read_bytes()[8:])
    done = CliRunner().invoke(
        app, ["ablate", str(trio_path() / "eagle3"), "--target", str(target), *FEW]
    )
    assert isinstance(done.exception, CheckpointError)
    assert "transformers cannot load this target" in str(done.exception)


def test_a_chat_template_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    target = Path(shutil.copytree(TARGET, tmp_path / "target"))
    config = target / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({**fields, "chat_template": "{% for"}))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"messages": [{"role": "user", "content": "a"}]}\n' * 5)
    done = CliRunner().invoke(
        app,
        [
            *("ablate", str(trio_path() / "eagle3"), "--target", str(target)),
            *(*FEW, "--prompts", str(prompts)),
        ],
    )
    assert isinstance(done.exception, CheckpointError)
    assert "its tokenizer cannot encode a prompt" in str(done.exception)


K = 4


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    torch.set_num_threads(1)
    return Teacher(trio_path() / "target")


@pytest.fixture(scope="module")
def passage(teacher: Teacher) -> Passage:
    chosen = prompts_of("trio")[:1]
    prompts = {prompt.key: teacher.encode(prompt.messages, prompt.text) for prompt in chosen}
    (only,) = teacher.passages(prompts, set(range(7)))
    return only


@pytest.fixture(scope="module", params=["eagle3", "eagle31"])
def drafter(request: pytest.FixtureRequest) -> ReferenceDrafter:
    return as_served(open_drafter(str(trio_path() / request.param)), 4).build("cpu")


def _draft(
    name: str,
    drafter: ReferenceDrafter,
    teacher: Teacher,
    passage: Passage,
    anchors: Tensor | None = None,
) -> AblatedDraft:
    at = passage.anchors(K) if anchors is None else anchors
    return ablated_draft(Prefix.run_over(drafter, teacher, passage), K, INTERVENTIONS[name], at)


def _accepted(drafted: AblatedDraft) -> list[int]:
    return drafted.matches.int().cumprod(1).sum(1).tolist()  # type: ignore[no-any-return]


def _figure(drafted: AblatedDraft, name: str) -> list[float]:
    return drafted.figures[:, FIGURES.index(name)].tolist()  # type: ignore[no-any-return]


def test_as_served_is_what_the_reference_drafts(
    drafter: ReferenceDrafter, teacher: Teacher, passage: Passage
) -> None:
    mine = _draft("as-served", drafter, teacher, passage)
    reference = draft(drafter, teacher, passage, K, measured=True)
    assert _accepted(mine) == reference.accepted.tolist()
    assert reference.figures is not None
    torch.testing.assert_close(mine.figures, reference.figures)


def test_right_tokens_and_states_at_depth_d_are_depth_1_of_a_later_position(
    drafter: ReferenceDrafter, teacher: Teacher, passage: Passage
) -> None:
    every = passage.anchors(K)
    both = _draft(RIGHT_BOTH, drafter, teacher, passage).matches
    for depth in range(1, K):
        assert both[:-depth, depth].tolist() == both[depth:, 0].tolist(), depth
    assert len(every) == len(both)


def test_right_tokens_change_nothing_up_to_the_first_wrong_one(
    drafter: ReferenceDrafter, teacher: Teacher, passage: Passage
) -> None:
    served = _draft("as-served", drafter, teacher, passage)
    assert _accepted(_draft(RIGHT_TOKENS, drafter, teacher, passage)) == _accepted(served)


def test_hidden_slots_get_no_attention(
    drafter: ReferenceDrafter, teacher: Teacher, passage: Passage
) -> None:
    assert max(_figure(_draft("hide-chain", drafter, teacher, passage), "self_mass")) == 0.0
    hidden = _draft("hide-sink", drafter, teacher, passage)
    assert max(_figure(hidden, "sink_mass")) == 0.0
    names = ("sink_mass", "prompt_mass", "generated_mass", "self_mass")
    total = sum(torch.tensor(_figure(hidden, name)) for name in names)
    torch.testing.assert_close(total, torch.ones(K))


def test_the_sinks_share_stays_that_of_depth_1(
    drafter: ReferenceDrafter, teacher: Teacher, passage: Passage
) -> None:
    kept = _figure(_draft("restore-sink", drafter, teacher, passage), "sink_mass")
    assert kept == pytest.approx([kept[0]] * K, abs=1e-6)
    served = _figure(_draft("as-served", drafter, teacher, passage), "sink_mass")
    assert served[0] == pytest.approx(kept[0], abs=1e-6)


def test_a_pinned_state_keeps_its_size(teacher: Teacher, passage: Passage) -> None:
    drafter = as_served(open_drafter(str(trio_path() / "eagle3")), 4).build("cpu")
    fed: list[float] = []
    step = drafter.step

    def watched(**call: Tensor) -> object:
        fed.append(float(call["hidden"].square().mean(-1).sqrt().mean()))
        return step(**call)  # type: ignore[arg-type]

    drafter.step = watched  # type: ignore[method-assign, assignment]
    anchors = passage.anchors(K)[:1]
    _draft("pin-size", drafter, teacher, passage, anchors)
    assert fed[1:] == pytest.approx([fed[1]] * (K - 1), rel=1e-5)
    fed.clear()
    _draft("as-served", drafter, teacher, passage, anchors)
    assert fed[-1] > 1.1 * fed[1]


def test_only_the_nearest_slots_are_seen() -> None:
    anchors = torch.tensor([NEAREST_SLOTS + 5])
    slots = NEAREST_SLOTS + 20
    for depth in (1, 3):
        edit = AttentionEdit(AttentionChange.LAST_SLOTS, anchors, slots, DEFAULT_N_SINK).at(depth)
        even = torch.zeros(1, 1, 1, slots + depth - 1)
        even[..., : int(anchors) + 1] = 1.0
        even[..., slots:] = 1.0
        seen = edit(0, even / even.sum())
        assert int((seen > 0).sum()) == NEAREST_SLOTS
        assert float(seen.sum()) == pytest.approx(1.0)
        assert float(seen[..., int(anchors)]) > 0


PROMPTS, STOPPED = BATCH + 4, BATCH + 2
SOME = ("--prompts", "trio", "--k", "3", "--limit", str(PROMPTS), "--positions", "4")


def _interrupted(*options: str) -> Result:
    drafter = str(trio_path() / "eagle3")
    named = ("--interventions", "hide-sink,served-dtype", *options)
    return CliRunner().invoke(app, ["ablate", drafter, "--target", str(TARGET), *SOME, *named])


def _stopping(prompts: Sequence[Any], _what: str) -> Iterator[Any]:
    """A bar during which somebody presses Ctrl-C."""
    yield from prompts[:STOPPED]
    raise KeyboardInterrupt


def test_ctrl_c_ends_with_the_result_of_the_prompts_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reports, "steps", _stopping)
    done = _interrupted("-o", str(tmp_path / "why.html"), "--json")
    assert done.exit_code == 130
    found = json.loads(done.stdout)
    assert found["stopped"] is True and found["prompts"] == STOPPED
    assert f"the result is of {STOPPED} prompts" in done.stderr
    assert "What each intervention changes" in (tmp_path / "why.html").read_text()


def test_ctrl_c_before_enough_prompts_has_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reports, "steps", lambda prompts, _: _stopping(prompts[:1], ""))
    done = _interrupted()
    assert isinstance(done.exception, NoDataError)


SEEDS = range(10)
PARTS = ("tokens", "states", "rest")


def _parts(found: Decomposition) -> dict[str, Part]:
    return {name: getattr(found, name) for name in PARTS}


def _excludes_zero(part: Part) -> bool:
    return part.interval is not None and part.interval.excludes_zero()


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_named_and_nothing_else(cause: str) -> None:
    found = [decomposition_of(cause, seed) for seed in SEEDS]
    mine = PART_OF.get(cause)
    for name in PARTS:
        fired = np.mean([_excludes_zero(_parts(row)[name]) for row in found])
        if name == mine:
            assert fired == 1.0
        else:
            # 10 seeds of a 5 % test: more than 2 are less likely than 1 in 80.
            assert fired <= 0.2, (cause, name)
    if mine is not None:
        part = np.mean([_parts(row)[mine].value for row in found])
        loss = np.mean([effect.loss.value for effect in found])
        assert part == pytest.approx(loss, abs=0.03) and loss > 0.05


@pytest.mark.parametrize("cause", KNOWN)
def test_the_parts_add_up_exactly(cause: str) -> None:
    found = decomposition_of(cause, 1)
    total = sum(part.value for part in _parts(found).values())
    assert total == pytest.approx(found.loss.value, abs=1e-12)
    assert found.first - found.last == pytest.approx(found.loss.value, abs=1e-12)


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
        k=K,
        positions=10,
        wanted=(*FACTORIAL[1:], NORMED),
        names=("eagle1", "target"),
    )


def test_the_loss_of_one_trained_at_the_first_depth_lies_in_its_own_states(
    ablation: Ablation,
) -> None:
    """The target's states make every depth a first depth, which this drafter learned by heart."""
    length = {effect.intervention.id: effect.acceptance.mean_length for effect in ablation.effects}
    assert length["right-states"] == length["right-both"] == K + 1
    assert length["right-tokens"] == length[AS_SERVED] < K
    assert ablation.decomposition is not None


def test_a_norm_that_it_does_not_have_does_not_apply(ablation: Ablation) -> None:
    assert ablation.not_applicable == {NORMED: "an EAGLE-1 drafter has no final norm"}

"""`driftscope ablate` on the shipped drafters, and on what it cannot run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from support.checkpoints import TARGET, changed, own_vocabulary, own_vocabulary_config
from typer.testing import CliRunner, Result

from driftscope.ablate.intervention import AS_SERVED, INTERVENTIONS
from driftscope.boundary.json_document import ABLATION
from driftscope.cli.app import app
from driftscope.errors import CheckpointError, UsageError
from driftscope.json_schema import schema_of
from driftscope_lab.trio import trio_path

pytestmark = pytest.mark.slow

FEW = ("--prompts", "trio", "--k", "3", "--most-prompts", "6", "--positions", "6")


def _ablate(drafter: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["ablate", str(drafter), "--target", str(TARGET), *options])


def test_the_document_follows_its_schema_and_says_what_does_not_apply(tmp_path: Path) -> None:
    file = tmp_path / "ablation.json"
    done = _ablate(trio_path() / "eagle31", *FEW, "--json", "-o", str(file))
    assert done.exit_code == 0, done.output
    document = json.loads(file.read_text())
    jsonschema.validate(document, schema_of(ABLATION))
    assert json.loads(done.stdout) == document
    assert document["prompts"] == 6 and document["positions"] == 36
    found = {each["intervention"]["id"] for each in document["effects"]}
    assert found == INTERVENTIONS.keys() - {"normalise", "template"}
    assert "without a chat template" in document["not_applicable"]["template"]
    assert "norm_output" in document["not_applicable"]["normalise"]
    tokens = next(
        each for each in document["effects"] if each["intervention"]["id"] == "right-tokens"
    )
    assert tokens["difference"] == 0.0


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
    assert [each["intervention"]["id"] for each in document["effects"]] == [AS_SERVED, "hide-sink"]
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
    tokens = sum(each["tokens"] for each in regions)
    lacking = sum(each["tokens"] * each["lacking"] for each in regions)
    assert 0.3 < document["vocabulary"]["lacking"] < 0.7
    assert lacking / tokens == pytest.approx(document["vocabulary"]["lacking"])
    printed = _ablate(half, *FEW, *named).output
    assert "are not in the draft vocabulary:" in printed
    assert all(f"  {each['region']}" in printed for each in regions)


def test_other_prompts_are_paired_by_prompt(tmp_path: Path) -> None:
    named = ("--interventions", "first-token,template,served-dtype")
    file = tmp_path / "plain.jinja"
    file.write_text("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    done = _ablate(trio_path() / "eagle3", *FEW, *named, "--template", str(file), "--json")
    effects = {each["intervention"]["id"]: each for each in json.loads(done.stdout)["effects"]}
    assert effects["first-token"]["intervention"]["changes"] == "the prompts' first token left out"
    assert effects["template"]["intervention"]["changes"] == f"the chat template {file}"
    paired = {name: each["paired_by"] for name, each in effects.items()}
    assert paired == {
        AS_SERVED: "position",
        "served-dtype": "position",
        "first-token": "prompt",
        "template": "prompt",
    }
    served = effects[AS_SERVED]["acceptance"]["mean_length"]
    # Texts in no template are not what this drafter knows: it accepts less.
    assert effects["template"]["difference"] < -0.2
    assert abs(effects["served-dtype"]["difference"]) < 0.2
    found = effects["template"]["acceptance"]["mean_length"] - served
    if effects["template"]["prompts"] == 6:
        assert effects["template"]["difference"] == pytest.approx(found)


def test_a_template_that_changes_nothing_does_not_apply(tmp_path: Path) -> None:
    own = json.loads((TARGET / "tokenizer_config.json").read_text())["chat_template"]
    (tmp_path / "same.jinja").write_text(own)
    options = ("--interventions", "template", "--template", str(tmp_path / "same.jinja"))
    document = json.loads(_ablate(trio_path() / "eagle3", *FEW, *options, "--json").stdout)
    assert "the given chat template is the target's" in document["not_applicable"]["template"]


@pytest.mark.parametrize("content", [None, " \n"])
def test_a_template_that_is_none_is_one_error(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "t.jinja"
    if content is not None:
        file.write_text(content)
    done = _ablate(trio_path() / "eagle3", *FEW, "--template", str(file))
    assert isinstance(done.exception, UsageError)
    assert str(file) in str(done.exception)


def test_a_drafter_that_cannot_be_run_is_one_error(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=lambda fields: fields.update(mlp_bias=True))
    done = _ablate(path, *FEW)
    assert isinstance(done.exception, CheckpointError)
    assert "is not run" in str(done.exception)
    missing = _ablate(tmp_path / "none", *FEW)
    assert isinstance(missing.exception, CheckpointError)


@pytest.mark.parametrize("k", ["0", "33"])
def test_k_has_bounds(k: str) -> None:
    assert _ablate(trio_path() / "eagle3", "--k", k).exit_code == 2


def test_a_size_that_no_layer_can_have_is_one_error(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=lambda fields: fields.update(intermediate_size=10**19))
    done = _ablate(path, *FEW)
    assert isinstance(done.exception, CheckpointError)
    assert "a size that no layer can have" in str(done.exception)


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

"""The held-out tables beyond the model cards', on the shipped trio; and what is called a sink."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from driftscope.inspect.reference.model import load_target
from driftscope_lab.evaluation.figures import PER_DEPTH, PromptRecord
from driftscope_lab.evaluation.held_out import held_out, main, target_mass, texts
from driftscope_lab.evaluation.sink import (
    FIRST_QUERY,
    HEAD_SHARE,
    drafter_sinks,
    first_token_mass,
    formed,
)
from driftscope_lab.trio import encode, load_prompts, template, trio_path


def record(prompt: str, drafter: str, sink: tuple[float, ...]) -> PromptRecord:
    return PromptRecord(
        prompt=prompt,
        condition="in_distribution",
        drafter=drafter,
        prompt_tokens=200,
        output_tokens=20,
        rounds=10,
        accepted_at=(5,) * len(sink),
        means=dict.fromkeys(PER_DEPTH, sink),
    )


def test_each_condition_says_the_same_code_otherwise() -> None:
    found = {condition: text for _, condition, text in texts(trio_path(), 1)}
    assert set(found) == {
        "in_distribution",
        "plain_text_roles",
        "other_wording",
        "no_system_turn",
    }
    assert len(set(found.values())) == 4
    prompt = load_prompts()[0]
    code = template.code_of(prompt.source, prompt.in_distribution)
    assert template.chat(prompt.source, code) == prompt.in_distribution
    assert all(code in text and text.startswith(template.BOS) for text in found.values())
    assert template.SYSTEM not in found["no_system_turn"]


def test_a_text_of_another_template_has_no_code() -> None:
    with pytest.raises(ValueError, match="not a prompt"):
        template.code_of("a.py", "anything")


def test_long_prompts_are_taken_where_training_wrote_them(tmp_path: Path) -> None:
    source = json.loads((trio_path() / "prompts.json").read_text())
    (tmp_path / "prompts.json").write_text(json.dumps(source[:1]))
    (tmp_path / "prompts-400.json").write_text(json.dumps(source[1:3]))
    conditions = [condition for _, condition, _ in texts(tmp_path)]
    assert conditions.count("prompt_350_450") == 2


@pytest.mark.slow
def test_tables_and_findings_are_kept_and_taken_up_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, out = tmp_path / "records.json", tmp_path / "out.json"
    assert main(["--prompts", "1", "--json", str(kept), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 4
    assert "| no_system_turn |" in printed.out
    assert "The target has no sink" in printed.out
    found = json.loads(out.read_text())
    assert found["sink_formed"] is False
    assert len(found["drafter_sinks"]) == 8
    before = kept.read_bytes()
    held_out(trio_path(), kept, 1)
    assert capsys.readouterr().err == ""
    assert kept.read_bytes() == before


@pytest.mark.slow
def test_the_mass_on_the_first_token_is_what_transformers_says() -> None:
    transformers = pytest.importorskip("transformers")
    folder = trio_path() / "target"
    llama = transformers.LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompts = (encode(prompt.in_distribution) for prompt in load_prompts())
    ids = torch.tensor([next(one for one in prompts if len(one) > FIRST_QUERY + 20)])
    with torch.no_grad():
        attentions = llama(ids, output_attentions=True).attentions
    found = first_token_mass(load_target(folder), ids)
    for ours, theirs in zip(found, attentions, strict=True):
        wanted = theirs[0, :, FIRST_QUERY:, 0].mean(1)
        torch.testing.assert_close(torch.tensor(ours), wanted, atol=1e-5, rtol=0)


def test_the_shipped_target_has_no_sink() -> None:
    assert not formed(target_mass(trio_path()))
    assert formed([[0.0, HEAD_SHARE + 0.01]])


@pytest.mark.parametrize(
    ("mass", "has_one", "loses"),
    [
        ((0.4, 0.3, 0.1), True, True),
        ((0.4, 0.4, 0.4), True, False),
        # Four of 200 slots hold a fiftieth evenly: five times that is called a sink.
        ((0.09, 0.05, 0.01), False, False),
    ],
)
def test_a_sink_is_lost_only_where_there_is_one(
    mass: tuple[float, ...], has_one: bool, loses: bool
) -> None:
    jitter = [1.0, 1.01, 0.99, 1.02]
    records = [record(str(i), "eagle3", tuple(m * by for m in mass)) for i, by in enumerate(jitter)]
    (sink,) = drafter_sinks(records)
    assert (sink.has_one, sink.loses) == (has_one, loses)
    assert sink.kept == pytest.approx(mass[-1] / mass[0])
    wanted = "no sink to lose" if not has_one else "loses it" if loses else "keeps it"
    assert sink.words().endswith(wanted)


def test_too_few_tokens_say_nothing_of_a_sink() -> None:
    with pytest.raises(ValueError, match="are needed"):
        first_token_mass(load_target(trio_path() / "target"), torch.zeros(1, 10, dtype=torch.long))

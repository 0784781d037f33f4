"""The shipped files: that they load, how large they are, and that the cards are true of them."""

import pytest
import torch

from driftscope.inspect.reference.model import load_drafter, load_target
from driftscope_lab.evaluation.cards import TITLES, card, tables
from driftscope_lab.evaluation.evaluate import EVALUATION, evaluate, load_records
from driftscope_lab.evaluation.figures import PromptRecord, summarize
from driftscope_lab.training.corpus import SourceFile
from driftscope_lab.training.recipe import DRAFTERS, TARGET
from driftscope_lab.trio import CONDITIONS, encode, load_prompts, trio_path

SHIPPED_BYTES = 12_000_000


@pytest.fixture(scope="module")
def records() -> list[PromptRecord]:
    return load_records(trio_path() / EVALUATION)


def test_everything_shipped_is_small() -> None:
    folder = trio_path().parent
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= SHIPPED_BYTES


@pytest.mark.parametrize("name", ["target", *DRAFTERS])
def test_a_model_folder_is_complete(name: str) -> None:
    present = {path.name for path in (trio_path() / name).iterdir()}
    assert {"config.json", "model.safetensors", "MODEL_CARD.md"} <= present
    if name == "target":
        assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= present


def test_the_weights_load_with_the_recipes_sizes() -> None:
    assert load_target(trio_path() / "target").config == TARGET
    for name, config in DRAFTERS.items():
        assert load_drafter(trio_path() / name).config == config


@pytest.mark.slow
def test_the_target_is_the_llama_that_transformers_loads() -> None:
    transformers = pytest.importorskip("transformers")
    folder = trio_path() / "target"
    llama = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    target = load_target(folder)
    ids = torch.tensor([encode(load_prompts()[0].in_distribution)])
    with torch.no_grad():
        theirs = llama(ids, output_hidden_states=True)
        ours = target(ids, aux_layers=(1, 2, 3))
        logits = target.logits(ours.hidden)
    assert torch.allclose(logits, theirs.logits, atol=1e-3)
    for layer, aux in enumerate(ours.aux, start=1):
        assert torch.allclose(aux, theirs.hidden_states[layer], atol=1e-3)


def test_the_licence_notices_are_there() -> None:
    notice = (trio_path() / "NOTICE").read_text(encoding="utf-8")
    assert "networkx" in notice
    assert "General Public License" not in notice


@pytest.mark.parametrize("name", ["target", *DRAFTERS])
def test_cards_are_what_the_records_render_to(name: str, records: list[PromptRecord]) -> None:
    shipped = (trio_path() / name / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert shipped == card(name, records, trio_path())
    assert tables(records) in shipped


@pytest.mark.slow
def test_a_fresh_evaluation_agrees_with_the_records(records: list[PromptRecord]) -> None:
    """Counts may move where a near tie falls the other way on another CPU, hence the tolerance."""
    chosen = load_prompts()[:3]
    fresh = list(evaluate(chosen, trio_path()))
    ids = {prompt.id for prompt in chosen}
    kept = [one for one in records if one.prompt in ids]
    assert len(fresh) == len(kept) > 0
    for one, other in zip(fresh, kept, strict=True):
        assert (one.prompt, one.condition, one.drafter) == (
            other.prompt,
            other.condition,
            other.drafter,
        )
        assert one.prompt_tokens == other.prompt_tokens
        assert one.rounds == pytest.approx(other.rounds, rel=0.1, abs=2)
        assert one.means["fed_rms"] == pytest.approx(other.means["fed_rms"], rel=0.05)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_finding_is_in_the_records(condition: str, records: list[PromptRecord]) -> None:
    """EAGLE-3's fed RMS grows with depth, EAGLE-3.1's does not, and its acceptance lasts longer."""
    old, new = (
        summarize([one for one in records if (one.condition, one.drafter) == (condition, name)])
        for name in TITLES
    )
    assert old.means["fed_rms"][-1] / old.means["fed_rms"][0] > 1.5
    assert new.means["fed_rms"][-1] / new.means["fed_rms"][0] < 1.2
    assert new.acceptance[-1] > 1.5 * old.acceptance[-1]
    assert new.tau > old.tau


def test_every_prompt_is_from_a_held_out_file() -> None:
    assert all(SourceFile(path=one.source, text="").held_out for one in load_prompts())

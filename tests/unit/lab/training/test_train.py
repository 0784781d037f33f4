"""The whole pipeline on a small corpus made here: no network, no pinned wheels."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from driftscope.inspect.reference.model import Drafter, Target
from driftscope_lab.evaluation.evaluate import main as evaluate_main
from driftscope_lab.training.corpus import load_folder
from driftscope_lab.training.recipe import LARGE, QUICK
from driftscope_lab.training.train import CHECKPOINTS, train
from driftscope_lab.training.train import main as train_main
from driftscope_lab.trio import load_prompts

pytestmark = pytest.mark.slow

WORDS = ("node", "edge", "graph", "value", "index", "total", "result", "queue", "weight", "path")
FILES = 40


def module(rng: random.Random) -> str:
    functions = []
    for _ in range(40):
        name, first, second, third = (rng.choice(WORDS) for _ in range(4))
        functions.append(
            f"\n\ndef get_{name}_{first}({second}, {third}):\n"
            f'    """Return the {name} of the {first}."""\n'
            f"    for {second} in {third}:\n"
            f"        if {second} is not None:\n"
            f"            return {first}_{rng.randrange(100)}\n"
            f"    return None\n"
        )
    return "".join(functions)


@pytest.fixture
def corpus_dir(tmp_path: Path) -> Path:
    folder, rng = tmp_path / "source", random.Random(0)
    folder.mkdir()
    for index in range(FILES):
        (folder / f"module_{index}.py").write_text(module(rng))
    return folder


def test_a_quick_run_gives_a_trio_that_can_be_evaluated(
    corpus_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trio"
    assert train_main(["-o", str(out), "--quick", "--corpus-dir", str(corpus_dir)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    logged = [json.loads(line) for line in (out / "training.jsonl").read_text().splitlines()]
    assert {entry["stage"] for entry in logged} == {"target", "eagle3", "eagle31"}
    prompts = load_prompts(out)
    assert prompts
    (out / "prompts.json").write_text(
        json.dumps(json.loads((out / "prompts.json").read_text())[:1])
    )
    assert evaluate_main(["--weights", str(out), "--write"]) == 0
    printed = capsys.readouterr().out
    assert "| in_distribution |" in printed
    assert printed in (out / "eagle31" / "MODEL_CARD.md").read_text()


def test_training_is_reproducible(corpus_dir: Path, tmp_path: Path) -> None:
    recipe = replace(
        QUICK,
        target=replace(QUICK.target, steps=2),
        sampling=replace(QUICK.sampling, length=64, prompt_tokens=(0, 60)),
        drafters=replace(QUICK.drafters, steps=2, length=64),
    )
    weights = []
    for name in ("first", "second"):
        train(load_folder(corpus_dir), recipe, tmp_path / name)
        weights.append((tmp_path / name / "eagle31" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_an_interrupted_training_goes_on_where_it_was(corpus_dir: Path, tmp_path: Path) -> None:
    """The weights have the same bytes as without an interruption; finished steps are not
    repeated."""
    recipe = replace(
        QUICK,
        target=replace(QUICK.target, steps=3, validate_every=1, checkpoint_every=1),
        sampling=replace(QUICK.sampling, length=64, prompt_tokens=(0, 60)),
        drafters=replace(QUICK.drafters, steps=3, length=64, checkpoint_every=1),
    )
    files, whole, resumed = load_folder(corpus_dir), tmp_path / "whole", tmp_path / "resumed"
    train(files, recipe, whole)

    def interrupt(step: int) -> float:
        if step >= 2:
            raise KeyboardInterrupt
        return 1.0

    for schedule in ("train_target._schedule", "train_drafters._schedule"):
        with pytest.MonkeyPatch.context() as patched:
            # Of the interrupted run only: its first two steps take the true schedule's factors.
            name = f"driftscope_lab.training.{schedule}"
            true = pytest.importorskip(name.rpartition(".")[0])._schedule
            patched.setattr(name, lambda s, true=true: lambda step: interrupt(step) * true(s)(step))
            with pytest.raises(KeyboardInterrupt):
                train(files, recipe, resumed)
    train(files, recipe, resumed)
    for model in ("target", "eagle3", "eagle31"):
        file = Path(model) / "model.safetensors"
        assert (resumed / file).read_bytes() == (whole / file).read_bytes()
    logged = [json.loads(line) for line in (resumed / "training.jsonl").read_text().splitlines()]
    validated = [entry["step"] for entry in logged if "held_out_nats" in entry]
    assert validated == [1, 2, 3]
    assert {path.name for path in (resumed / CHECKPOINTS).iterdir()} == {
        "target.pt",
        "written.pt",
        "drafters.pt",
    }


def test_the_large_recipe_is_large_and_its_files_are_small() -> None:
    assert LARGE.target.steps * LARGE.target.tokens_per_step >= 1_000_000_000
    assert (LARGE.drafters.depths, LARGE.drafters.length) == (4, 1024)
    target = Target(LARGE.target_model)
    drafters = [Drafter(config) for config in LARGE.drafter_models.values()]
    for model in (target, *drafters):
        assert 2 * sum(p.numel() for p in model.parameters()) <= 15_900_000
    assert round(sum(p.numel() for p in target.parameters()) / 1e6, 1) == 7.6


def test_seeds_change_the_weights_and_nothing_else() -> None:
    assert LARGE.seeded(0) == LARGE
    other = LARGE.seeded(1)
    assert (other.target.seed, other.sampling.seed, other.drafters.seed) == (1, 1, 12)
    assert other.target_model == LARGE.target_model


def test_a_device_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train_main(["-o", str(tmp_path), "--device", "cuda"]) == 1
    assert "no CUDA GPU" in capsys.readouterr().err

"""The whole pipeline on a small corpus made here: no network, no pinned wheels."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from driftscope_probes.trio import load_prompts
from driftscope_probes.trio.corpus import load_folder
from driftscope_probes.trio.evaluate import main as evaluate_main
from driftscope_probes.trio.recipe import QUICK
from driftscope_probes.trio.train import main as train_main
from driftscope_probes.trio.train import train

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

"""Trains an EAGLE-3 and an EAGLE-3.1 drafter for a target, on text that the target wrote.

python -m driftscope_lab.training.train --target FOLDER --text FOLDER -o DIR [--steps N]
                                        [--tokens-per-step N] [--draft-vocabulary N] [--seed N]
                                        [--threads N] [--device cuda]

An example of how the shipped drafters of SmolLM2 came about, not a product: the target must be a
LlamaForCausalLM with tied embeddings. `driftscope_lab.training.write_text` writes the text. What
DIR already has is continued; on a CPU, the same text, recipe and number of threads give the same
weights.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from driftscope.inspect.reference.config import default_aux_layers
from driftscope_lab.training.checkpoints import load_target
from driftscope_lab.training.text import draft_vocabulary, read_conversations
from driftscope_lab.training.train_drafters import (
    DrafterRecipe,
    Progress,
    TrainingText,
    drafter_configs,
    train_drafters,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exit code 0: trained; 1: no text."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(options.device == "cpu")
    try:
        text = TrainingText(
            training=read_conversations(options.text),
            held_out=read_conversations(options.text, held_out=True),
        )
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"driftscope lab: {error}\n")
        return 1
    target = load_target(options.target, torch.bfloat16).to(options.device)
    vocabulary = draft_vocabulary(text.training, options.draft_vocabulary)
    layers = default_aux_layers(target.config.num_hidden_layers)
    models = drafter_configs(target, layers, len(vocabulary))
    recipe = replace(
        DrafterRecipe(),
        steps=options.steps,
        tokens_per_step=options.tokens_per_step,
        seed=options.seed,
    )
    log = Progress(options.output / "training.jsonl")
    train_drafters(target, text, models, recipe, options.output, log, vocabulary=vocabulary)
    sys.stdout.write(f"{options.output}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.training.train", description="Train drafters of a target."
    )
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--text", type=Path, required=True, help="folder of *.jsonl files")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write into")
    parser.add_argument("--steps", type=int, default=DrafterRecipe().steps)
    parser.add_argument("--tokens-per-step", type=int, default=DrafterRecipe().tokens_per_step)
    parser.add_argument("--device", default="cpu", help="where it is trained")
    parser.add_argument("--draft-vocabulary", type=int, default=8192, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

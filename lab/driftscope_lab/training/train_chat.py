"""Trains a target on conversations and documents, and drafters of several seeds on it.

python -m driftscope_lab.training.train_chat -o DIR [--drafters-only] [--seeds N] [--steps N]
                                             [--threads N] [--corpus-cache DIR]

The target is trained once, with its tokenizer and held-out prompts, into DIR; EAGLE-3 and
EAGLE-3.1 drafters of each seed into DIR/seed-0, DIR/seed-1 and so on. The target sees documents
too, the drafters see conversations in the chat template only, half of them written by the target:
drafters are trained so, and other forms of a conversation are therefore new to them alone. An
interrupted training is resumed by the same command. Seeds and threads are fixed, so that the same
machine and library versions give the same weights.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from driftscope.inspect.reference.model import Target, load_target
from driftscope_lab.phenomenon.prompts import make_prompts, save_prompts
from driftscope_lab.training.conversation_rows import (
    ConversationRows,
    CopyRows,
    both_sides,
    tokenizer_texts,
)
from driftscope_lab.training.conversations.material import Material
from driftscope_lab.training.conversations.mixture import DocumentShares
from driftscope_lab.training.copy_rules import MARKS
from driftscope_lab.training.corpus import CorpusError, load_corpus
from driftscope_lab.training.progress import Progress
from driftscope_lab.training.recipe import CHAT, Recipe
from driftscope_lab.training.target_sampling import sample_conversations
from driftscope_lab.training.tokenizer import save_tokenizer, train_tokenizer
from driftscope_lab.training.train_drafters import train_drafters
from driftscope_lab.training.train_target import train_target

SEEDS = 3
TEMPLATE_ONLY = DocumentShares(plain=0.0, bare=0.0, plain_roles=0.0)
CHECKPOINTS = "checkpoints"


def train(recipe: Recipe, folder: Path, cache: Path, seeds: int, *, drafters_only: bool) -> None:
    """Train into `folder`. Raises CorpusError."""
    sides = both_sides(load_corpus(cache))
    tokenizer = _tokenizer(folder, sides[False])
    rows = ConversationRows(tokenizer, sides, copying=recipe.copying_share)
    log = Progress(folder / "training.jsonl", keep=(folder / CHECKPOINTS).is_dir())
    if drafters_only:
        target = load_target(folder / "target")
    else:
        prompts = make_prompts(sides[True], lambda text: len(tokenizer.encode(text).ids))
        save_prompts(prompts, folder)
        target = _target(recipe, rows, tokenizer, folder, log)
    chats = ConversationRows(tokenizer, sides, TEMPLATE_ONLY)
    written = _written(target, chats, recipe, folder / CHECKPOINTS / "written.pt", log)
    for seed in range(seeds):
        settings = replace(recipe.drafters, seed=recipe.drafters.seed + seed)
        into = folder / f"seed-{seed}"
        train_drafters(target, chats, written, settings, into, log, models=recipe.drafter_models)


def _target(
    recipe: Recipe, rows: ConversationRows, tokenizer: Tokenizer, folder: Path, log: Progress
) -> Target:
    """Train the target: copying rules first, if the recipe has them, then everything."""
    into, kept = folder / "target", folder / CHECKPOINTS / "target.pt"
    before = None
    if recipe.copying is not None and not kept.is_file():
        before = train_target(
            CopyRows(tokenizer), recipe.copying, into, log, model=recipe.target_model
        )
    return train_target(
        rows, recipe.target, into, log, model=recipe.target_model, checkpoint=kept, before=before
    )


def _tokenizer(folder: Path, training: Material) -> Tokenizer:
    """Return the tokenizer in `folder`, or train it."""
    path = folder / "target" / "tokenizer.json"
    if not path.is_file():
        tokenizer = train_tokenizer(tokenizer_texts(training), more=MARKS)
        save_tokenizer(tokenizer, folder / "target")
    return Tokenizer.from_file(str(path))


def _written(
    target: Target, chats: ConversationRows, recipe: Recipe, path: Path, log: Progress
) -> torch.Tensor:
    """Return the target's own text, from `path` if it is there."""
    if path.is_file():
        kept: torch.Tensor = torch.load(path, weights_only=True)
        return kept
    written = sample_conversations(target, chats, recipe.sampling, log)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(written, path)
    return written


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exit code 0: trained; 1: no corpus."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    recipe = CHAT.shortened(options.steps) if options.steps else CHAT
    cache = options.corpus_cache or options.output / "corpus"
    try:
        train(recipe, options.output, cache, options.seeds, drafters_only=options.drafters_only)
    except CorpusError as error:
        sys.stderr.write(f"driftscope lab: {error}\n")
        return 1
    sys.stdout.write(f"{options.output}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.training.train_chat", description="Train the chat models."
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write into")
    parser.add_argument("--drafters-only", action="store_true", help="keep the target in DIR")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"default: {SEEDS}")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="only N, of the smallest batches: does it run?"
    )
    parser.add_argument("--corpus-cache", type=Path, help="where the corpus's wheels are kept")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

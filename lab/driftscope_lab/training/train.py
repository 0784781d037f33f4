"""Trains the trio: a target on conversations and documents, and drafters of several seeds on it.

python -m driftscope_lab.training.train -o DIR [--seeds 0 1 2] [--steps N] [--corpus-cache DIR]
                                        [--random-start] [--depths D] [--drafter-steps N]

The target is trained once, on two threads, with its tokenizer and held-out prompts, into DIR;
EAGLE-3 and EAGLE-3.1 drafters of each seed, on one thread, into DIR/seed-0, DIR/seed-1 and so on.
What DIR already has is kept, so that seeds can train at the same time by commands of their own.
The target sees documents too; drafters see conversations in the chat template only, half of them
written by the target: drafters are trained so, and other forms of a conversation are therefore new
to them alone. Seeds and threads are fixed, so that the same machine and library versions give the
same weights.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from driftscope.inspect.reference.drafter import Target, load_target
from driftscope_lab.training.conversations import SYSTEM_TEXTS, DocumentShares, Material, exchange
from driftscope_lab.training.corpus import (
    CorpusError,
    SourceFile,
    load_corpus,
    notice,
    save_tokenizer,
    train_tokenizer,
)
from driftscope_lab.training.loop import Progress
from driftscope_lab.training.recipe import TRIO, Recipe
from driftscope_lab.training.rows import (
    MARKS,
    ConversationRows,
    CopyRows,
    both_sides,
    tokenizer_texts,
)
from driftscope_lab.training.train_drafters import train_drafters
from driftscope_lab.training.train_target import sample_conversations, train_target
from driftscope_lab.trio.prompts import (
    SHORT_TOKENS,
    Conversation,
    Exchange,
    Length,
    Prompt,
    fitting,
    save_prompts,
    templated,
)

KINDS = (
    "continue code",
    "write function",
    "describe",
    "continue text",
    "diff",
    "table",
    "json",
    "tool call",
    "repeat",
    "look up",
)
"""Kinds of the last exchange, in turn."""
PROMPTS = 64
LAST_TOKENS = 90
"""Longest prompt of a conversation that consists of its last exchange only."""
LONGEST_TOKENS = 1936
"""Longest prompt: an answer of 96 tokens fits into 2048 after it with a chain of 8 and a bonus."""


def make_prompts(held_out: Material, length: Length, seed: int = 3) -> list[Prompt]:
    """Return PROMPTS conversations of held-out material, each as long as fits."""
    rng = Random(seed)
    return [
        _prompt(rng, held_out, length, f"{index:02d}", KINDS[index % len(KINDS)])
        for index in range(PROMPTS)
    ]


def _prompt(rng: Random, held_out: Material, length: Length, name: str, kind: str) -> Prompt:
    """Return one conversation: short exchanges are drawn before the last until the next would be
    too long."""
    system = rng.choice(SYSTEM_TEXTS)
    exchanges = [_last(rng, held_out, length, system, kind)]
    while True:
        earlier = exchange(rng, held_out)
        longer = Conversation(system=system, exchanges=(earlier, *exchanges), open=True)
        if length(templated(longer)) > LONGEST_TOKENS:
            break
        exchanges.insert(0, earlier)
    prompt = Prompt(id=name, kind=kind, system=system, short=1, exchanges=tuple(exchanges))
    return dataclasses.replace(prompt, short=fitting(prompt, SHORT_TOKENS, length))


def _last(rng: Random, held_out: Material, length: Length, system: str, kind: str) -> Exchange:
    """Return an exchange whose request is short."""
    while True:
        one = exchange(rng, held_out, kind)
        alone = Conversation(system=system, exchanges=(one,), open=True)
        if length(templated(alone)) <= LAST_TOKENS:
            return one


SEEDS = (0, 1, 2)
TARGET_THREADS, DRAFTER_THREADS = 2, 1
TEMPLATE_ONLY = DocumentShares(plain=0.0, bare=0.0, plain_roles=0.0)
CHECKPOINTS = "checkpoints"


def train(files: Sequence[SourceFile], recipe: Recipe, folder: Path, seeds: Sequence[int]) -> None:
    """Train on `files` and write target, drafters of each seed and held-out prompts into `folder`.
    What is finished there is kept.

    The target writes the drafters' text as it was trained; then it is read from its file, where its
    weights are rounded, because drafters learn the states of what is shipped.
    """
    sides = both_sides(files)
    tokenizer = _tokenizer(folder, sides[False])
    chats = ConversationRows(tokenizer, sides, TEMPLATE_ONLY)
    torch.set_num_threads(TARGET_THREADS)
    path = folder / CHECKPOINTS / "written.pt"
    if not path.is_file():
        _write_text(_trained_target(recipe, sides, tokenizer, folder), chats, recipe, path)
    written: torch.Tensor = torch.load(path, weights_only=True)
    target = load_target(folder / "target")
    torch.set_num_threads(DRAFTER_THREADS)
    for seed in seeds:
        settings = replace(recipe.drafters, seed=recipe.drafters.seed + seed)
        into = folder / f"seed-{seed}"
        log = Progress(into / "training.jsonl", keep=into.is_dir())
        train_drafters(target, chats, written, settings, into, log, models=recipe.drafter_models)


def _trained_target(
    recipe: Recipe, sides: Mapping[bool, Material], tokenizer: Tokenizer, folder: Path
) -> Target:
    """Train the target: copying rules, if the recipe has them, then everything. A training that has
    a checkpoint in `folder` goes on from there."""
    into, checkpoint = folder / "target", folder / CHECKPOINTS / "target.pt"
    log = Progress(folder / "training.jsonl", keep=checkpoint.is_file())
    prompts = make_prompts(sides[True], lambda text: len(tokenizer.encode(text).ids))
    save_prompts(prompts, folder)
    rows = ConversationRows(tokenizer, sides, copying=recipe.copying_share)
    before = None
    if recipe.copying is not None and not checkpoint.is_file():
        before = train_target(
            CopyRows(tokenizer), recipe.copying, into, log, model=recipe.target_model
        )
    return train_target(
        rows,
        recipe.target,
        into,
        log,
        model=recipe.target_model,
        checkpoint=checkpoint,
        before=before,
    )


def _write_text(target: Target, chats: ConversationRows, recipe: Recipe, path: Path) -> None:
    """Let the target write the drafters' text into the file, which is there only if it is whole."""
    log = Progress(path.parent.parent / "sampling.jsonl")
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(sample_conversations(target, chats, recipe.sampling, log), partial)
    partial.replace(path)


def _tokenizer(folder: Path, training: Material) -> Tokenizer:
    """Return the tokenizer in `folder`, or train it."""
    path = folder / "target" / "tokenizer.json"
    if not path.is_file():
        tokenizer = train_tokenizer(tokenizer_texts(training), more=MARKS)
        save_tokenizer(tokenizer, folder / "target")
    return Tokenizer.from_file(str(path))


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exit code 0: trained; 1: no corpus."""
    options = _parser().parse_args(arguments)
    torch.use_deterministic_algorithms(True)
    recipe = TRIO.shortened(options.steps) if options.steps else TRIO
    given = {
        "depths": options.depths,
        "steps": options.drafter_steps,
        "reuse_last_layer": False if options.random_start else None,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    recipe = replace(recipe, drafters=replace(recipe.drafters, **changed))
    try:
        files = _corpus(options.corpus_cache or options.output / "corpus", options.output)
    except CorpusError as error:
        sys.stderr.write(f"driftscope lab: {error}\n")
        return 1
    train(files, recipe, options.output, options.seeds)
    sys.stdout.write(f"{options.output}\n")
    return 0


def _corpus(cache: Path, output: Path) -> list[SourceFile]:
    """Return the files of the pinned wheels, and write their notices. Raises CorpusError."""
    files = load_corpus(cache)
    output.mkdir(parents=True, exist_ok=True)
    (output / "NOTICE").write_text(notice(cache), encoding="utf-8")
    return files


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.training.train", description="Train the trio."
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write into")
    parser.add_argument(
        "--seeds", type=int, nargs="*", default=SEEDS, help="of the drafters (default: 0 1 2)"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="only N, of the smallest batches: does it run?"
    )
    parser.add_argument(
        "--random-start",
        action="store_true",
        help="drafters do not start as the target's last layer",
    )
    parser.add_argument("--depths", type=int, metavar="D", help="to which drafters are trained")
    parser.add_argument("--drafter-steps", type=int, metavar="N", help="of the drafters")
    parser.add_argument("--corpus-cache", type=Path, help="where the corpus's wheels are kept")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

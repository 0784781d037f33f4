"""Trains the trio: tokenizer, target, EAGLE-3 and EAGLE-3.1 drafters, prompts.

python -m driftscope_lab.training.train -o DIR [--recipe quick|full|large] [--device cuda]
                                        [--seed N] [--corpus-cache DIR | --corpus-dir DIR]

`full` takes about half an hour on one CPU core and 1 GB of memory. Seeds are fixed and one thread
is used, so the same machine and library versions give the same weights; other CPUs round bf16
products differently. `large` needs a GPU, uses the larger corpus, and resumes an interrupted
training if the same command is given again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from driftscope.inspect.reference.model import Target
from driftscope_lab.training.compute import device_of
from driftscope_lab.training.corpus import (
    LARGE_MANIFEST,
    MANIFEST,
    CorpusError,
    SourceFile,
    load_corpus,
    load_folder,
)
from driftscope_lab.training.notice import notice
from driftscope_lab.training.progress import Progress
from driftscope_lab.training.prompt_files import LONG, make_prompts, save_prompts
from driftscope_lab.training.recipe import FULL, LARGE, QUICK, Recipe
from driftscope_lab.training.target_sampling import sample_rows
from driftscope_lab.training.tokenizer import save_tokenizer, train_tokenizer
from driftscope_lab.training.train_drafters import train_drafters
from driftscope_lab.training.train_target import train_target
from driftscope_lab.training.training_rows import RowMaker

CPU = torch.device("cpu")
CHECKPOINTS = "checkpoints"
RECIPES = {"quick": QUICK, "full": FULL, "large": LARGE}


def train(
    files: list[SourceFile], recipe: Recipe, folder: Path, device: torch.device = CPU
) -> None:
    """Train on `files` and write the trio into `folder`."""
    with _reproducibly() if device.type == "cpu" else nullcontext():
        _train(files, recipe, folder, device)


def _train(files: list[SourceFile], recipe: Recipe, folder: Path, device: torch.device) -> None:
    kept = folder / CHECKPOINTS
    log = Progress(folder / "training.jsonl", keep=kept.is_dir())
    tokenizer = train_tokenizer(file.text for file in files if not file.held_out)
    save_tokenizer(tokenizer, folder / "target")
    rows = RowMaker(tokenizer, files)
    held_out, training = rows.tokens(held_out=True), rows.tokens(held_out=False)
    log.note(f"{training} training, {held_out} held-out tokens")
    save_prompts(make_prompts(tokenizer, rows), folder / "prompts.json")
    if recipe.long_prompts:
        for name, lengths in LONG.items():
            save_prompts(make_prompts(tokenizer, rows, lengths), folder / f"prompts-{name}.json")
    target = train_target(
        rows,
        recipe.target,
        folder / "target",
        log,
        model=recipe.target_model,
        device=device,
        checkpoint=kept / "target.pt",
    )
    train_drafters(
        target,
        rows,
        _written(target, rows, recipe, kept / "written.pt", log),
        recipe.drafters,
        folder,
        log,
        models=recipe.drafter_models,
        checkpoint=kept / "drafters.pt",
    )


def _written(
    target: Target, rows: RowMaker, recipe: Recipe, path: Path, log: Progress
) -> torch.Tensor:
    """Return the target's text, stored with the drafters' checkpoint, which needs it."""
    device = device_of(target)
    if recipe.drafters.checkpoint_every and path.is_file():
        kept: torch.Tensor = torch.load(path, map_location=device, weights_only=True)
        return kept
    written = sample_rows(target, rows, recipe.sampling, log)
    if recipe.drafters.checkpoint_every:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(written, path)
    return written


@contextmanager
def _reproducibly() -> Iterator[None]:
    """Use one thread and deterministic kernels within the context."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exit code 0: trained; 1: no corpus, or no such device."""
    options = _parser().parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("driftscope trio: torch sees no CUDA GPU; try --device cpu\n")
        return 1
    recipe = RECIPES[options.recipe].seeded(options.seed)
    if options.steps:
        recipe = recipe.shortened(options.steps)
    manifest = LARGE_MANIFEST if options.recipe == "large" else MANIFEST
    try:
        files = _corpus(options.corpus_dir, options.corpus_cache, options.output, manifest)
    except CorpusError as error:
        sys.stderr.write(f"driftscope trio: {error}\n")
        return 1
    train(files, recipe, options.output, torch.device(options.device))
    sys.stdout.write(f"{options.output}\n")
    return 0


def _corpus(
    folder: Path | None, cache: Path | None, output: Path, manifest: Path
) -> list[SourceFile]:
    """Return a folder's own files, or those of the pinned wheels, and write their notices."""
    if folder:
        return load_folder(folder)
    cache = cache or output / "corpus"
    files = load_corpus(cache, manifest)
    output.mkdir(parents=True, exist_ok=True)
    (output / "NOTICE").write_text(notice(cache, manifest), encoding="utf-8")
    return files


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.training.train", description="Train the trio."
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write into")
    parser.add_argument("--recipe", choices=list(RECIPES), default="full")
    parser.add_argument(
        "--quick",
        dest="recipe",
        action="store_const",
        const="quick",
        help="a smoke run of under a minute",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="other weights (default: 0)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="only N, of the smallest batches: does it run?"
    )
    parser.add_argument("--corpus-cache", type=Path, help="where the corpus's wheels are kept")
    parser.add_argument("--corpus-dir", type=Path, help="train on the Python files found here")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

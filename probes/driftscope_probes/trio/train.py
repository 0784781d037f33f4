"""Train the trio: tokenizer, target, EAGLE-3 and EAGLE-3.1 drafters, prompts.

python -m driftscope_probes.trio.train -o DIR [--quick] [--corpus-cache DIR | --corpus-dir DIR]

About half an hour on one CPU core and 1 GB of memory. Seeds are fixed and one thread is used, so the
same machine and library versions give the same weights; other CPUs round bf16 products differently.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from driftscope_probes.trio.corpus import CorpusError, SourceFile, load_corpus, load_folder
from driftscope_probes.trio.progress import Progress
from driftscope_probes.trio.prompts import make_prompts, save_prompts
from driftscope_probes.trio.recipe import FULL, QUICK, Recipe
from driftscope_probes.trio.rows import RowMaker
from driftscope_probes.trio.sampling import sample_rows
from driftscope_probes.trio.tokenizer import save_tokenizer, train_tokenizer
from driftscope_probes.trio.train_drafters import train_drafters
from driftscope_probes.trio.train_target import train_target


def train(files: list[SourceFile], recipe: Recipe, folder: Path) -> None:
    """Train on `files` and write the trio into `folder`."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    log = Progress(folder / "training.jsonl")
    tokenizer = train_tokenizer(file.text for file in files if not file.held_out)
    save_tokenizer(tokenizer, folder / "target")
    rows = RowMaker(tokenizer, files)
    log.note(f"{rows.tokens(held_out=False)} training, {rows.tokens(held_out=True)} held-out tokens")
    save_prompts(make_prompts(tokenizer, rows), folder / "prompts.json")
    target = train_target(rows, recipe.target, folder / "target", log)
    written = sample_rows(target, rows, recipe.sampling, log)
    train_drafters(target, rows, written, recipe.drafters, folder, log)


def main(arguments: list[str] | None = None) -> int:
    """The command. Exit code 0: trained; 1: no corpus."""
    options = _parser().parse_args(arguments)
    try:
        if options.corpus_dir:
            files = load_folder(options.corpus_dir)
        else:
            files = load_corpus(options.corpus_cache or options.output / "corpus")
    except CorpusError as error:
        print(f"driftscope trio: {error}", file=sys.stderr)
        return 1
    train(files, QUICK if options.quick else FULL, options.output)
    print(options.output)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_probes.trio.train", description="Train the trio."
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write into")
    parser.add_argument("--quick", action="store_true", help="a smoke run of under a minute")
    parser.add_argument("--corpus-cache", type=Path, help="where the corpus's wheels are kept")
    parser.add_argument("--corpus-dir", type=Path, help="train on the Python files found here")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

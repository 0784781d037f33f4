"""Train the trio: tokenizer, target, EAGLE-3 and EAGLE-3.1 drafters, prompts.

python -m driftscope_probes.trio.train -o DIR [--quick] [--corpus-cache DIR | --corpus-dir DIR]

About half an hour on one CPU core and 1 GB of memory. Seeds are fixed and one thread is used, so
the same machine and library versions give the same weights; other CPUs round bf16 products
differently.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from driftscope_probes.trio.corpus import CorpusError, SourceFile, load_corpus, load_folder
from driftscope_probes.trio.notice import notice
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
    with _reproducibly():
        _train(files, recipe, folder)


def _train(files: list[SourceFile], recipe: Recipe, folder: Path) -> None:
    log = Progress(folder / "training.jsonl")
    tokenizer = train_tokenizer(file.text for file in files if not file.held_out)
    save_tokenizer(tokenizer, folder / "target")
    rows = RowMaker(tokenizer, files)
    held_out, training = rows.tokens(held_out=True), rows.tokens(held_out=False)
    log.note(f"{training} training, {held_out} held-out tokens")
    save_prompts(make_prompts(tokenizer, rows), folder / "prompts.json")
    target = train_target(rows, recipe.target, folder / "target", log)
    written = sample_rows(target, rows, recipe.sampling, log)
    train_drafters(target, rows, written, recipe.drafters, folder, log)


@contextmanager
def _reproducibly() -> Iterator[None]:
    """One thread and deterministic kernels, as long as training lasts."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def main(arguments: list[str] | None = None) -> int:
    """The command. Exit code 0: trained; 1: no corpus."""
    options = _parser().parse_args(arguments)
    try:
        files = _corpus(options.corpus_dir, options.corpus_cache, options.output)
    except CorpusError as error:
        sys.stderr.write(f"driftscope trio: {error}\n")
        return 1
    train(files, QUICK if options.quick else FULL, options.output)
    sys.stdout.write(f"{options.output}\n")
    return 0


def _corpus(folder: Path | None, cache: Path | None, output: Path) -> list[SourceFile]:
    """A folder's own files as they are, or the pinned wheels', whose notices go to the output."""
    if folder:
        return load_folder(folder)
    cache = cache or output / "corpus"
    files = load_corpus(cache)
    output.mkdir(parents=True, exist_ok=True)
    (output / "NOTICE").write_text(notice(cache), encoding="utf-8")
    return files


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

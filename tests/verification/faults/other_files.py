"""Give damaged files of other tools to `ingest`, and damaged models and prompts to `ablate`."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import torch
from support.odd_runs import ROOT

from driftscope.errors import EXIT_OK
from driftscope.ingest.catalogue import READERS
from driftscope.inspect.trial import target
from driftscope_lab.trio import trio_path
from verification.faults.command import (
    Outcome,
    argument_of,
    check_files,
    damaged,
    outcome_of,
    text_of,
)

ANSWER_TOKENS = 8
"""Tokens of the target's answers, in place of those of a real ablation."""
SAMPLES = ROOT / "tests/unit/ingest/samples"
_LEAST = ("--prompts", "trio", "--k", "1", "--most-prompts", "5", "--positions", "1")
_INTERVENTIONS = ("--interventions", "hide-sink")


def ingest(random: Random, _: Path, folder: Path) -> None:
    """A damaged file of another tool is refused in one line, or gives figures; a run written from
    one is analysed, checked and compared without an unforeseen error."""
    path = _damaged_sample(random, folder)
    how = random.randrange(4)
    if how == 0:
        outcome_of(["ingest", path, "--json"])
    elif how == 1:
        outcome_of(["ingest", path, "--format", random.choice(sorted(READERS)), "--json"])
    elif how == 2:
        pages = [path, random.choice(sorted(SAMPLES.glob("prometheus-*.txt")))]
        random.shuffle(pages)
        outcome_of(["ingest", "--window", *pages, "--json"])
    else:
        _use(path, folder)


def _damaged_sample(random: Random, folder: Path) -> Path:
    sample = random.choice(sorted(SAMPLES.iterdir()))
    path = folder / sample.name
    path.write_bytes(damaged(sample.read_bytes(), random))
    return path


def _use(path: Path, folder: Path) -> None:
    """Write a run from a file, and give it to the commands that take one."""
    run, out = folder / "ingested", folder / "out"
    out.mkdir()
    if outcome_of(["ingest", path, "-o", run]).code != EXIT_OK:
        assert not run.exists(), "a run that was refused was begun"
        return
    done = outcome_of(["analyze", run, "-q", "-o", out / "r.html", "--json"])
    assert done.code == EXIT_OK, f"an ingested run is not analysed: {done.err[:200]!a}"
    check_files(out)
    outcome_of(["check", run, "--fail-on", "cells[0].mean_length < 2", "--json"])
    outcome_of(["compare", run, run, "--json"])


def ablate(random: Random, _: Path, folder: Path) -> None:
    """A damaged drafter, target or set of prompts, or a hostile option, is refused in one line; if
    the models can be run all the same, the result is JSON."""
    with _short_answers():
        done = random.choice(_ABLATIONS)(random, folder)
    assert done.code == EXIT_OK or not done.out, "an error and a result"


@contextlib.contextmanager
def _short_answers() -> Iterator[None]:
    """Have the target answer in a few tokens, on one core: the campaign takes the others."""
    before, threads = target.ANSWER_TOKENS, torch.get_num_threads()
    target.ANSWER_TOKENS = ANSWER_TOKENS
    torch.set_num_threads(1)
    try:
        yield
    finally:
        target.ANSWER_TOKENS = before
        torch.set_num_threads(threads)


def _run(drafter: object, target: object, *more: object) -> Outcome:
    return outcome_of(
        ["ablate", drafter, "--target", target, *_LEAST, *_INTERVENTIONS, *more, "--json"]
    )


def _broken_drafter(random: Random, folder: Path) -> Outcome:
    return _run(_copy("eagle3", random, folder), trio_path() / "target")


def _broken_target(random: Random, folder: Path) -> Outcome:
    return _run(trio_path() / "eagle3", _copy("target", random, folder))


def _copy(name: str, random: Random, folder: Path) -> Path:
    """Return a copy of a shipped model in which one file is damaged, cut off or missing."""
    model = Path(shutil.copytree(trio_path() / name, folder / name))
    file = random.choice(sorted(each for each in model.iterdir() if each.is_file()))
    content = file.read_bytes()
    if random.random() < 0.1:
        file.unlink()
    elif file.suffix == ".safetensors":
        head = min(len(content), 4096)
        file.write_bytes(damaged(content[:head], random) + content[head:])
    else:
        file.write_bytes(damaged(content, random))
    return model


def _prompts(random: Random, folder: Path) -> Outcome:
    path = folder / "prompts.jsonl"
    path.write_bytes(damaged(b'{"prompt": "a"}\n{"turns": ["b", "c"]}\n' * 5, random))
    return _run(trio_path() / "eagle3", trio_path() / "target", "--prompts", path)


def _option(random: Random, _: Path) -> Outcome:
    text = argument_of(text_of(random))
    option = random.choice(("--interventions", "--prompts", "--target", "--k", "--positions"))
    return _run(trio_path() / "eagle3", trio_path() / "target", option, text)


_ABLATIONS: tuple[Callable[[Random, Path], Outcome], ...] = (
    _broken_drafter,
    _broken_target,
    _prompts,
    _option,
)

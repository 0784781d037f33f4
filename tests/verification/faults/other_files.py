"""Give damaged files of other tools to `ingest`, and damaged models and prompts to `ablate`."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
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
SECONDS_OF_A_FILE = 3.0
"""CPU time that a file of less than a megabyte may take."""
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


MARKS = (
    *("SpecDecoding metrics:", "Decode batch", "Finish: obj=", "draft acceptance", "statistics "),
    *("accept len: 1.5", "Accepted: 9 tokens", "Drafted: 18 tokens", "Per-position acceptance "),
    *("rate: 0.9, 0.8", "ean acceptance length: 2.5", "#running-req: 3", "(a pid=1)", "[pod/a]"),
    *(" ", "\x1b[1m", "{", '{"log": "', "9" * 400, ",", "\n"),
)
"""Parts of lines of logs, of which a hostile file has too many."""


def repeat_marks(random: Random, _: Path, folder: Path) -> None:
    """A log of marks in any order, in long lines, is read in linear time."""
    parts = random.sample(MARKS, random.randint(1, 4))
    text = "".join(parts) * (random.choice((1_000, 60_000, 600_000)) // len("".join(parts)))
    path = folder / "server.log"
    path.write_text(text)
    began_s = time.process_time()
    outcome_of(["ingest", path, "--json"])
    assert time.process_time() - began_s < SECONDS_OF_A_FILE, "a log took too long"


_COUNTS = (0, 1, -1, 3, 10**6, 10**9, 2**62, 2**63, 10**400, 1.5, None, True, "7", float("nan"))


def count_rounds(random: Random, _: Path, folder: Path) -> None:
    """A result with numbers of any size takes neither long nor much memory."""
    names = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens")
    counts: dict[str, object] = {name: random.choice(_COUNTS) for name in names}
    if random.random() < 0.5:
        rounds = random.choice((10, 10**6, 10**9))
        counts = dict.fromkeys(names, rounds) | {"num_spec_tokens": 3}
        counts["acceptance_histogram"] = [0, rounds]
    else:
        size = random.choice((1, 3, 2000))
        counts["acceptance_histogram"] = [random.choice(_COUNTS) for _ in range(size)]
    row = json.dumps({"id": "a", "metrics": {"speculative_decoding": counts}})
    path = folder / "responses.jsonl"
    path.write_text(f"{row}\n" * random.choice((1, 2, 60)))
    began_s = time.process_time()
    outcome_of(["ingest", path, "-o", folder / "run"])
    assert time.process_time() - began_s < SECONDS_OF_A_FILE, "a result took too long"


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

"""Measures the trio on its held-out prompts with the reference engine, and writes its model cards.

python -m driftscope_lab.evaluation.evaluate [--weights DIR] [--write]

Decoding is greedy with K = 8, in float32, on one thread. Prints the tables; `--write` also saves
the records as `evaluation.json` and renders the MODEL_CARD.md of each model from them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.reference.engine import generate
from driftscope.inspect.reference.model import load_drafter, load_target
from driftscope_lab.evaluation.cards import tables, write_cards
from driftscope_lab.evaluation.figures import PromptRecord, record
from driftscope_lab.training.recipe import DRAFTERS
from driftscope_lab.trio import CONDITIONS, Prompt, encode, load_prompts, trio_path

K = 8
OUTPUT_TOKENS = 96
EVALUATION = "evaluation.json"


def evaluate(prompts: Sequence[Prompt], weights: Path) -> Iterator[PromptRecord]:
    """Generate from every prompt, in both conditions, with both drafters.

    A prompt whose output ends with the prefill has no round, and no record in that condition.
    """
    texts = ((p.id, condition, p.text(condition)) for p in prompts for condition in CONDITIONS)
    return measure(texts, weights)


def measure(texts: Iterable[tuple[str, str, str]], weights: Path) -> Iterator[PromptRecord]:
    """Generate from any (prompt's id, condition, text) with both drafters."""
    target = load_target(weights / "target")
    drafters = {name: load_drafter(weights / name) for name in DRAFTERS}
    for prompt, condition, text in texts:
        ids = encode(text, weights)
        for name, drafter in drafters.items():
            result = generate(target, drafter, ids, OUTPUT_TOKENS, K, eos_token_id=EOS_ID)
            if result.rounds:
                yield record(prompt, condition, name, len(ids), result, K)


def save_records(records: Sequence[PromptRecord], path: Path) -> None:
    """Write the records as a JSON list with one record per line."""
    lines = [json.dumps(dataclasses.asdict(one), sort_keys=True) for one in records]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def load_records(path: Path) -> list[PromptRecord]:
    """Return the records that `save_records` wrote."""
    return [_record(fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def _record(fields: dict[str, object]) -> PromptRecord:
    tupled = {name: _tupled(value) for name, value in fields.items()}
    return PromptRecord(**tupled)  # type: ignore[arg-type]


def _tupled(value: object) -> object:
    """Convert lists to tuples, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _tupled(item) for name, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    prompts = load_prompts(options.weights)
    records = []
    for one in evaluate(prompts, options.weights):
        records.append(one)
        sys.stderr.write(f"{one.prompt} {one.condition} {one.drafter}: {one.rounds} rounds\n")
    sys.stdout.write(tables(records))
    if options.write:
        save_records(records, options.weights / EVALUATION)
        write_cards(records, options.weights)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.evaluation.evaluate", description="Measure the trio."
    )
    parser.add_argument("--weights", type=Path, default=trio_path(), help="default: as shipped")
    parser.add_argument("--write", action="store_true", help="write records and model cards")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

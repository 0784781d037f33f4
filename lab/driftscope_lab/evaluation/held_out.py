"""All held-out tables of a trio: template perturbations, long prompts, and the fate of a sink.

python -m driftscope_lab.evaluation.held_out --weights DIR [--json FILE] [--prompts N] [--out FILE]

The conditions are the two of `evaluate`, the template with other wording, the template without its
system turn, and, if the training wrote such prompts (`--recipe large` does), prompts of about 400
and of 643 to 818 tokens. They are measured by the reference engine as in `evaluate`. Records are
saved to `--json` prompt by prompt, and reused after an interruption.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from driftscope.inspect.reference.model import load_target
from driftscope_lab.evaluation.cards import tables
from driftscope_lab.evaluation.evaluate import load_records, measure, save_records
from driftscope_lab.evaluation.figures import PromptRecord
from driftscope_lab.evaluation.sink import FIRST_QUERY, drafter_sinks, first_token_mass, formed
from driftscope_lab.training.prompt_files import LONG
from driftscope_lab.trio import Prompt, encode, load_prompts, template, trio_path

SINK_PROMPTS = 16
"""Number of prompts on which the target's own attention is measured."""


def texts(weights: Path, prompts: int | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield (prompt's id, condition, text) of every condition; at most `prompts` of each."""
    for prompt in load_prompts(weights)[:prompts]:
        code = template.code_of(prompt.source, prompt.in_distribution)
        yield prompt.id, "in_distribution", prompt.in_distribution
        yield prompt.id, "plain_text_roles", prompt.plain_text_roles
        yield prompt.id, "other_wording", template.other_wording(prompt.source, code)
        yield prompt.id, "no_system_turn", template.no_system_turn(prompt.source, code)
    for name, (shortest, longest) in LONG.items():
        for prompt in _long(weights / f"prompts-{name}.json")[:prompts]:
            yield prompt.id, f"prompt_{shortest}_{longest}", prompt.in_distribution


def _long(path: Path) -> list[Prompt]:
    if not path.is_file():
        return []
    return [Prompt(**record) for record in json.loads(path.read_text(encoding="utf-8"))]


def held_out(weights: Path, kept: Path | None, prompts: int | None = None) -> list[PromptRecord]:
    """Measure the texts missing from `kept`, and save each result there at once."""
    records = load_records(kept) if kept and kept.is_file() else []
    have = {(one.prompt, one.condition) for one in records}
    todo = [text for text in texts(weights, prompts) if text[:2] not in have]
    for text in todo:
        # Measure both drafters on a text together, so that no text is saved half-measured.
        records += measure([text], weights)
        sys.stderr.write(f"{text[0]} {text[1]}\n")
        if kept:
            partial = kept.with_suffix(".partial")
            save_records(records, partial)
            partial.replace(kept)
    return records


def target_mass(weights: Path) -> list[list[float]]:
    """Return `first_token_mass` on held-out prompts of one length, else on the longest.

    Raises ValueError if all prompts are too short to measure.
    """
    ids = [encode(p.in_distribution, weights) for p in load_prompts(weights)]
    long = [one[: 2 * FIRST_QUERY] for one in ids if len(one) >= 2 * FIRST_QUERY]
    rows = torch.tensor(long[:SINK_PROMPTS] or [max(ids, key=len)])
    return first_token_mass(load_target(weights / "target"), rows)


def findings(weights: Path, records: Sequence[PromptRecord]) -> dict[str, Any]:
    """Return whether the sink formed and survived, as data and as lines of text."""
    mass, sinks = target_mass(weights), drafter_sinks(records)
    greatest = max(max(layer) for layer in mass)
    there = formed(mass)
    words = "has a sink" if there else "has no sink"
    lines = [f"The target {words}: its greatest head gives the first token {greatest:.3f}."]
    lines += [one.words() for one in sinks]
    return {
        "target_first_token_mass": mass,
        "sink_formed": there,
        "drafter_sinks": [{**dataclasses.asdict(s), "loses": s.loses} for s in sinks],
        "lines": lines,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    records = held_out(options.weights, options.json, options.prompts)
    sink_report = findings(options.weights, records)
    sys.stdout.write(tables(records))
    sys.stdout.write("\n".join(sink_report["lines"]) + "\n")
    if options.out:
        text = json.dumps({**sink_report, "tables": tables(records)}, indent=1) + "\n"
        options.out.write_text(text, encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.evaluation.held_out",
        description="Every held-out table of a trio, and what became of its sink.",
    )
    parser.add_argument("--weights", type=Path, default=trio_path(), help="default: as shipped")
    parser.add_argument("--prompts", type=int, metavar="N", help="at most N of each condition")
    parser.add_argument("--json", type=Path, metavar="FILE", help="records, taken up again")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write findings and tables here")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

"""Records the phenomenon's evidence in live vLLM and prints it with the three criteria.

python -m driftscope_lab.phenomenon.run [--weights DIR] [-o OUT] [--prompts N]

Both drafters under DIR, SmolLM2's shipped ones by default, answer the prompts in every condition
of `suite.yaml`. Runs that OUT already has are not recorded again. First, the
target's heads are examined for an attention sink.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from driftscope.analysis.query.row_filters import Filter
from driftscope.distributions import SMOLLM2
from driftscope.errors import DriftscopeError
from driftscope.inspect.reference.layers import Target, TargetLayer
from driftscope.pipeline import summarise
from driftscope.workloads.suites.prompts import prompts_of
from driftscope.workloads.suites.transforms import document
from driftscope_lab.phenomenon import evidence as tables
from driftscope_lab.phenomenon.evidence import (
    AS_TRAINED,
    K,
    RecordedDrafter,
    judged,
    label,
    record,
    sums_of,
)
from driftscope_lab.smollm2 import drafters_folder
from driftscope_lab.smollm2.fetch import fetched
from driftscope_lab.training.checkpoints import load_target

HEAD_WITH_SINK = 0.3
"""Average weight on the first token from which on a head has a sink (arXiv 2410.10781)."""
FIRST_QUERY = 64
"""First query that is measured: earlier queries have too few slots for their weight on the first
slot to be meaningful; the same paper starts there."""
TARGET_TOKENS = 256
"""Context in which attention is measured, in tokens."""


@torch.no_grad()
def first_token_mass(target: Target, ids: Tensor) -> list[list[float]]:
    """Return the mean weight on slot 0 by layer and head, over queries from FIRST_QUERY on.

    `ids` [B, S] are the tokens. Raises ValueError if there is no such query.
    """
    if ids.shape[1] <= FIRST_QUERY:
        raise ValueError(f"{ids.shape[1]} tokens, more than {FIRST_QUERY} are needed")
    by_layer: list[list[float]] = []

    def look(layer: TargetLayer, arguments: tuple[Tensor, ...]) -> None:
        x, rotary, positions = arguments[:3]
        normed = layer.input_layernorm(x)
        queries = layer.self_attn.queries(normed, rotary, positions)  # type: ignore[arg-type]
        keys, _ = layer.self_attn.keys_values(normed, rotary, positions)  # type: ignore[arg-type]
        scores = queries @ keys.transpose(-1, -2) * target.config.head_dim**-0.5
        hidden = positions[None, :] > positions[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        by_layer.append(weights[:, :, FIRST_QUERY:, 0].mean((0, 2)).tolist())

    handles = [layer.register_forward_pre_hook(look) for layer in target.model.layers]
    try:
        target(ids)
    finally:
        for handle in handles:
            handle.remove()
    return by_layer


def target_lines(folder: Path) -> Iterator[str]:
    """Yield the mean attention of the target's heads on the first token, by layer. Before each of
    SmolLM2's prompts stands unrelated text, so that it is long enough."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for number, prompt in enumerate(prompts_of(SMOLLM2)):
        *others, last = prompt.messages
        text = document(6 * TARGET_TOKENS, random.Random(number))
        asked = [*others, {**last, "content": f"{text}\n\n{last['content']}"}]
        written = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        rows.append(tokenizer(written).input_ids[:TARGET_TOKENS])
    ids = torch.tensor(rows)
    mass = first_token_mass(load_target(folder), ids)
    upper = [head for layer in mass[len(mass) // 2 :] for head in layer]
    have = sum(head >= HEAD_WITH_SINK for head in upper)
    yield (
        f"Target: {have} of the {len(upper)} heads of its upper half give the first token at least "
        f"{HEAD_WITH_SINK} of their attention ({len(ids)} prompts of {TARGET_TOKENS} tokens)."
    )
    yield "| layer | attention on the first token, by head |"
    yield "|---|---|"
    for index, layer in enumerate(mass, start=1):
        yield f"| {index} | " + " ".join(f"{head:.2f}" for head in sorted(layer)[::-1]) + " |"


def _recorded(run: Path) -> RecordedDrafter:
    trained = Filter(where=f"label = '{label(AS_TRAINED)}'")
    drift = summarise(run, run.name, only=trained).attention_drift
    return RecordedDrafter(sums=sums_of(run, K), drift=drift.answer if drift else None)


def report(weights: Path, out: Path, prompts: int | None) -> Iterator[str]:
    """Yield the evidence and the answers, line by line. Raises DriftscopeError."""
    yield from target_lines(fetched())
    found = {name: _recorded(run) for name, run in record(weights, out, prompts).items()}
    criteria = judged(*found.values())
    for part in (tables.lengths(found), tables.by_depth(found), tables.answers(criteria)):
        yield ""
        yield from part
    met = {criterion.name: criterion.met for criterion in criteria}
    (out / "criteria.json").write_text(json.dumps(met, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exit code 0: measured, whatever the answers; 1: an engine failed."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        for line in report(options.weights, options.output, options.prompts):
            sys.stdout.write(line + "\n")
    except DriftscopeError as error:
        sys.stderr.write(f"driftscope lab: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.phenomenon.run",
        description="Record the evidence of attention drift in SmolLM2's drafters.",
    )
    parser.add_argument(
        "--weights", type=Path, default=drafters_folder(), help="default: as shipped"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("build/phenomenon"))
    parser.add_argument("--prompts", type=int, metavar="N", help="only the first N")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

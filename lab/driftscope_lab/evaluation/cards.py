"""Renders model cards from the records of an evaluation."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from driftscope_lab.evaluation.figures import PromptRecord, Summary, summarize, tau_ratio
from driftscope_lab.trio import CONDITIONS

TITLES = {"eagle3": "EAGLE-3", "eagle31": "EAGLE-3.1"}
ROWS = {
    "acceptance": "acceptance (marginal)",
    "sink_mass": "sink mass",
    "prompt_mass": "prompt mass",
    "generated_mass": "generated mass",
    "self_mass": "self mass",
    "fed_rms": "fed RMS",
    "prenorm_rms": "pre-norm RMS",
    "top1": "top-1 probability",
}
ABOUT = {
    "target": "A Llama of {parameters} parameters (hidden {hidden_size}, {num_hidden_layers} "
    "layers, {num_attention_heads} query and {num_key_value_heads} key heads, tied embeddings, "
    "byte-level BPE of {vocab_size} tokens) that continues Python library code.",
    "eagle3": "An EAGLE-3 drafter of {parameters} parameters for the target beside it: captured "
    "layers {aux}, one layer, no normalisation on the path between depths.",
    "eagle31": "An EAGLE-3.1 drafter of {parameters} parameters for the target beside it: captured "
    "layers {aux}, one layer, `fc_norm` and `norm_output`. Otherwise as the EAGLE-3 drafter, "
    "trained with the same seed on the same batches.",
}
PURPOSE = "Part of driftscope's trio: it is there to be measured, not to be useful."
TRAINING = (
    "- Training: `python -m driftscope_lab.training.train`; sizes and seeds are in `recipe.py`."
)
FRAME = """# {title}

{about}

- Size: {parameters} parameters, bf16.
- Data: Python source of the packages pinned in `corpus.txt`, files split by path. Their licences
  (MIT, BSD, Apache-2.0) and notices are in `NOTICE`.
{training}

## Held-out figures

Greedy, K = 8, up to 96 tokens from each of 64 prompts out of files that training never saw,
float32, the reference engine. tau is the mean acceptance length, 1 + accepted / drafts. Printed by
`python -m driftscope_lab.evaluation.evaluate`.

{tables}
## What this does not show

- Sink loss: this target has no attention sink, so there is little sink mass to lose at any depth.
- A difference in where attention goes: in both drafters it moves onto the chain's own tokens,
  whose class grows by one slot per depth by construction.
- Transfer to other text: the prompts' files are held out, but come from the same packages as the
  training files.
- Conditional acceptance at large depth is raised by repetition loops of so small a target: judge
  by the marginal rates above.
"""


def tables(records: Sequence[PromptRecord]) -> str:
    """Return Markdown: a table of tau, then one table by depth for each condition and drafter."""
    conditions = tuple(dict.fromkeys(one.condition for one in records)) or CONDITIONS
    parts = [_tau_table(records, conditions)]
    for condition in conditions:
        parts += [_depth_table(records, condition, drafter) for drafter in TITLES]
    return "\n".join(parts)


def write_cards(records: Sequence[PromptRecord], weights: Path) -> None:
    """Write MODEL_CARD.md into each model's folder."""
    for name in ABOUT:
        (weights / name / "MODEL_CARD.md").write_text(card(name, records, weights), "utf-8")


def card(name: str, records: Sequence[PromptRecord], weights: Path) -> str:
    """Return the card of one model."""
    parameters = f"{_parameters(weights / name) / 1e6:.2f} M"
    return FRAME.format(
        title=f"{TITLES.get(name, 'Target')} of the trio",
        about=_wrapped(
            f"{ABOUT[name]} {PURPOSE}".format(**_sizes(weights / name), parameters=parameters)
        ),
        parameters=parameters,
        training=_wrapped(f"{TRAINING} {_training(weights, name)}", indent="  "),
        tables=tables(records),
    )


def _sizes(folder: Path) -> dict[str, Any]:
    """Return the fields of a model's config, and its captured layers in words."""
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    *most, last = map(str, fields.get("eagle_aux_hidden_state_layer_ids", [0]))
    return {**fields, "aux": f"{', '.join(most)} and {last}"}


def _tau_table(records: Sequence[PromptRecord], conditions: Sequence[str]) -> str:
    lines = [
        "| condition | tau EAGLE-3 | tau EAGLE-3.1 | ratio, 95 % interval over prompts |",
        "|---|---|---|---|",
    ]
    for condition in conditions:
        old, new = (_select(records, condition, drafter) for drafter in TITLES)
        ratio, low, high = tau_ratio(new, old)
        taus = f"{summarize(old).tau:.2f} | {summarize(new).tau:.2f}"
        lines.append(f"| {condition} | {taus} | {ratio:.2f} ({low:.2f} to {high:.2f}) |")
    return "\n".join(lines) + "\n"


def _depth_table(records: Sequence[PromptRecord], condition: str, drafter: str) -> str:
    summary = summarize(_select(records, condition, drafter))
    depths = range(1, len(summary.acceptance) + 1)
    lines = [
        f"### {TITLES[drafter]}, {condition} ({summary.rounds} rounds)\n",
        _row("depth", (str(depth) for depth in depths)),
        "|---|" + "---|" * len(depths),
    ]
    for name, label in ROWS.items():
        lines.append(_row(label, (f"{value:.3f}" for value in _values(summary, name))))
    return "\n".join(lines) + "\n"


def _values(summary: Summary, name: str) -> tuple[float, ...]:
    return summary.acceptance if name == "acceptance" else summary.means[name]


def _row(label: str, cells: Iterable[str]) -> str:
    return f"| {label} | " + " | ".join(cells) + " |"


def _select(records: Sequence[PromptRecord], condition: str, drafter: str) -> list[PromptRecord]:
    return [one for one in records if (one.condition, one.drafter) == (condition, drafter)]


def _training(weights: Path, name: str) -> str:
    """Return the last figures that training logged for this model, in words."""
    text = (weights / "training.jsonl").read_text(encoding="utf-8")
    logged = [json.loads(line) for line in text.splitlines()]
    last = [entry for entry in logged if entry["stage"] == name][-1]
    if name == "target":
        return f"{last['step']} steps; held-out loss {last['held_out_nats']:.2f} nats per token."
    agreement = ", ".join(f"{value:.2f}" for value in last["agreement"])
    return (
        f"{last['step'] + 1} steps, training-time test of depth {len(last['agreement'])}; in the "
        f"last batch the top token was the target's at {agreement} of the slots, by depth."
    )


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 99, subsequent_indent=indent, break_on_hyphens=False)


def _parameters(folder: Path) -> int:
    """Return the number of parameters in a model's file."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    return sum(_product(size) for size in sizes)


def _product(size: Sequence[int]) -> int:
    return size[0] * _product(size[1:]) if size else 1

"""Drafters beyond the shipped pair, with random weights: one for each option of EAGLE-3."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support.engine_process.job import Job, K

from driftscope.inspect.reference.config import DecoderConfig, DrafterConfig
from driftscope.inspect.reference.drafter import ReferenceDrafter
from driftscope_lab.training.checkpoints import save_drafter
from verification.truth import RECORD

LAYER = DecoderConfig(num_hidden_layers=1, intermediate_size=320)
TWO_LAYERS = replace(LAYER, num_hidden_layers=2)
NARROW, DRAFT_VOCABULARY = 192, 384
PLAIN = DrafterConfig(layer=LAYER)
VARIANTS = {
    "norm_before_fc": replace(PLAIN, norm_before_fc=True),
    "norm_before_residual": replace(PLAIN, norm_before_residual=True),
    "draft_vocabulary": replace(PLAIN, draft_vocab_size=DRAFT_VOCABULARY),
    "two_layers": replace(PLAIN, layer=TWO_LAYERS),
    "narrow": replace(
        PLAIN, layer=replace(LAYER, hidden_size=NARROW), target_hidden_size=LAYER.hidden_size
    ),
    "qwen3": replace(PLAIN, qk_norm=True),
    "speculators": replace(PLAIN, norm_before_residual=True, draft_vocab_size=DRAFT_VOCABULARY),
    "all": DrafterConfig(
        layer=replace(TWO_LAYERS, hidden_size=NARROW),
        target_hidden_size=LAYER.hidden_size,
        fc_norm=True,
        norm_before_fc=True,
        norm_before_residual=True,
        norm_output=True,
        draft_vocab_size=DRAFT_VOCABULARY,
    ),
}
COVERING_OPTIONS = ("norm_before_fc", "qwen3", "speculators", "all")
"""Variants that cover each option at least once in few engines; `make kinds` runs all."""
RUNNERS = {"all": "v2"}
"""Runner of each variant; V1 for the rest."""
MAX_TOKENS = 16
SEED = 7
GAINS = {"q_proj": 1.5, "k_proj": 1.5, "lm_head": 4.0, "embed_tokens": LAYER.hidden_size**0.5}
"""Standard deviation of a matrix's output for input of unit variance; 1 for the rest.

At 1.5 the attention scores' own deviation is about 2: far from uniform, far from one-hot. At 4 the
best token of a thousand leads by more than the error of float32. Larger gains elsewhere would
double float32's rounding at each depth, in the reference as in vLLM.
"""
NORM_SPREAD = 0.2
"""Deviation of the norms' weights from 1."""


def random_drafter(config: DrafterConfig) -> ReferenceDrafter:
    """Return a drafter with random weights, identical on every call."""
    generator = torch.Generator().manual_seed(SEED)
    drafter = ReferenceDrafter(config)
    for name, weight in drafter.named_parameters():
        values = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 1:
            weight.data.copy_(1 + NORM_SPREAD * values)
        else:
            gain = GAINS.get(name.split(".")[-2], 1.0)
            weight.data.copy_(values * gain / weight.shape[1] ** 0.5)
    if size := config.draft_vocab_size:
        known = torch.randperm(config.layer.vocab_size, generator=generator)[:size].sort().values
        drafter.d2t.copy_(known - torch.arange(size))
    return drafter


def speculators_format(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the config in the format of the speculators library.

    `norm_before_residual` is omitted: in that format its absence means that it is on.
    """
    names = ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "fc_norm", "norm_output")
    left_out = (*names, "norm_before_residual", "eagle_config", "architectures")
    method = {"proposal_type": "greedy", "speculative_tokens": K}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [method],
            "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {k: v for k, v in fields.items() if k not in left_out},
        **{name: fields[name] for name in names},
    }


def variant_jobs(folder: Path) -> dict[str, Job]:
    """Return one job for each variant, whose weights are written below `folder`."""
    jobs = {}
    for name, config in VARIANTS.items():
        save_drafter(random_drafter(config), folder / name)
        if name == "speculators":
            path = folder / name / "config.json"
            path.write_text(json.dumps(speculators_format(json.loads(path.read_text()))))
        jobs[name] = Job(
            drafter=str(folder / name),
            runner=RUNNERS.get(name, "v1"),
            probe=RECORD,
            sampling={"max_tokens": MAX_TOKENS},
        )
    return jobs

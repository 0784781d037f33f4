"""Drafters beyond the shipped pair, with random weights, one for each option of the EAGLE-3 family.

`python tests/vllm_engine/variants.py` (`make variants`) runs the engines and prints the table.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from driftscope_probes.reference.config import DecoderConfig, DrafterConfig
from driftscope_probes.reference.model import Drafter, save_drafter
from vllm_engine.job import Job, run_jobs
from vllm_engine.truth import RECORD, print_table

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
RUNNERS = {"all": "v2"}
"""V1 for the rest."""
MAX_TOKENS = 16
SEED = 7
MATRIX_GAIN, LOGIT_GAIN, NORM_SPREAD = 1.5, 6.0, 0.2
"""Standard deviations of what a matrix makes of unit-variance input, and of the norms' weights.

At 1.5 the attention scores' own deviation is about 2: far from even, far from one-hot. At 6 the
best token of a thousand leads by more than float32 can get wrong.
"""


def random_drafter(config: DrafterConfig) -> Drafter:
    """The same weights at each call."""
    generator = torch.Generator().manual_seed(SEED)
    drafter = Drafter(config)
    for name, weight in drafter.named_parameters():
        values = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 1:
            weight.data.copy_(1 + NORM_SPREAD * values)
        elif name.startswith("embed_tokens"):
            weight.data.copy_(values)
        else:
            gain = LOGIT_GAIN if name.startswith("lm_head") else MATRIX_GAIN
            weight.data.copy_(values * gain / weight.shape[1] ** 0.5)
    if size := config.draft_vocab_size:
        known = torch.randperm(config.layer.vocab_size, generator=generator)[:size].sort().values
        drafter.d2t.copy_(known - torch.arange(size))
    return drafter


def variant_jobs(folder: Path) -> dict[str, Job]:
    """One job for each variant, whose weights are written below `folder`."""
    jobs = {}
    for name, config in VARIANTS.items():
        save_drafter(random_drafter(config), folder / name)
        jobs[name] = Job(
            drafter=str(folder / name),
            runner=RUNNERS.get(name, "v1"),
            probe=RECORD,
            sampling={"max_tokens": MAX_TOKENS},
        )
    return jobs


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="driftscope-variants-") as folder:
        jobs = variant_jobs(Path(folder) / "weights")
        print_table(run_jobs(jobs, Path(folder)))


if __name__ == "__main__":
    main()

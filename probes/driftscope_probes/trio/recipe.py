"""Every size and constant of the trio's training, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope_probes.reference.config import DecoderConfig, DrafterConfig

TARGET = DecoderConfig()
"""3.2 M parameters."""

AUX_LAYERS = (1, 2, 3)
DRAFT_LAYER = DecoderConfig(num_hidden_layers=1, intermediate_size=512)
DRAFTERS = {
    "eagle3": DrafterConfig(layer=DRAFT_LAYER, aux_layers=AUX_LAYERS),
    "eagle31": DrafterConfig(
        layer=DRAFT_LAYER, aux_layers=AUX_LAYERS, fc_norm=True, norm_output=True
    ),
}
"""1.2 M parameters each, alike but for the norms of EAGLE-3.1."""

BF16_AUTOCAST = True
"""Matrix products in bf16. A step of the target took 1.26 s against 1.63 s in float32, one of a
drafter 0.47 s against 0.74 s (one core with AVX512-BF16). Part of the recipe: it changes the
weights.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecipe:
    """Muon on the matrices, AdamW on embedding and norms; warm up, hold, then fall linearly."""

    steps: int = 600
    tokens_per_step: int = 4096
    lengths: tuple[int, ...] = (512, 512, 512, 1024)
    """Row length of each step, in turn."""
    learning_rate: float = 6e-3
    muon_weight_decay: float = 0.05
    warmup_steps: int = 40
    hold_share: float = 0.5
    final_share: float = 0.02
    log_every: int = 20
    validate_every: int = 100
    validation_tokens: int = 24 * 512
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRecipe:
    """Text that the target writes for the drafters: batches of equal prompt length, half greedy."""

    batches: int = 16
    batch_size: int = 128
    length: int = 256
    temperature: float = 0.7
    prompt_tokens: tuple[int, int] = (30, 170)
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterRecipe:
    """Training-time test: the loss is summed over `depths`, each `decay` times the one before."""

    steps: int = 800
    batch_size: int = 8
    length: int = 256
    depths: int = 3
    decay: float = 0.8
    learning_rate: float = 2e-3
    muon_learning_rate: float = 5e-3
    warmup_steps: int = 30
    final_share: float = 0.04
    log_every: int = 20
    save_every: int = 100
    seed: int = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The whole training."""

    target: TargetRecipe = TargetRecipe()
    sampling: SamplingRecipe = SamplingRecipe()
    drafters: DrafterRecipe = DrafterRecipe()


FULL = Recipe()
QUICK = Recipe(
    target=TargetRecipe(
        steps=6, tokens_per_step=512, lengths=(256,), validate_every=6, validation_tokens=512
    ),
    sampling=SamplingRecipe(batches=1, batch_size=8, length=128, prompt_tokens=(0, 100)),
    drafters=DrafterRecipe(steps=6, batch_size=4, length=128),
)
"""Shows that the pipeline runs; the weights are worth nothing."""

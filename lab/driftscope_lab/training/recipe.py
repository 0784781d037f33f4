"""All sizes and constants of the trio's training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from driftscope.inspect.reference.config import DecoderConfig, DrafterConfig

TARGET = DecoderConfig(
    num_hidden_layers=6,
    intermediate_size=448,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
)
"""Model of 3.5 M parameters, deep and with heads enough that a sink may form."""
AUX_LAYERS = (2, 3, 5)
"""Captured layers: a low, a middle and a high one."""
_DRAFT_LAYER = replace(TARGET, num_hidden_layers=1)
DRAFTERS = {
    "eagle3": DrafterConfig(layer=_DRAFT_LAYER, aux_layers=AUX_LAYERS),
    "eagle31": DrafterConfig(
        layer=_DRAFT_LAYER, aux_layers=AUX_LAYERS, fc_norm=True, norm_output=True
    ),
}
"""Drafters of 1.1 M parameters each."""

BF16_AUTOCAST = True
"""Whether matrix products run in bf16. A step of the target took 1.26 s instead of 1.63 s in
float32, a step of a drafter 0.47 s instead of 0.74 s (one core with AVX512-BF16). This is part of
the recipe, because it changes the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecipe:
    """Muon on matrices, AdamW on embedding and norms, or AdamW on all; the rate warms up, holds,
    then falls."""

    steps: int = 600
    tokens_per_step: int = 4096
    lengths: tuple[int, ...] = (512, 512, 512, 1024)
    """Row length of each step, in turn."""
    learning_rate: float = 6e-3
    muon: bool = True
    muon_weight_decay: float = 0.05
    adamw_weight_decay: float = 0.0
    warmup_steps: int = 40
    hold_share: float = 0.5
    final_share: float = 0.02
    log_every: int = 20
    validate_every: int = 100
    validation_tokens: int = 24 * 512
    checkpoint_every: int = 0
    """Number of steps between checkpoints; 0: no checkpoints."""
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
    """Training-time test: losses are summed over `depths`, weighted by `decay`^(depth-1)."""

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
    checkpoint_every: int = 0
    reuse_last_layer: bool = False
    """Whether a drafter's layer starts as a copy of the target's last layer, whose sizes it then
    has; otherwise at random."""
    seed: int = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of the whole training."""

    target: TargetRecipe = TargetRecipe()
    copying: TargetRecipe | None = None
    """Stage before `target` in which the target learns copying rules only, so that a sink forms;
    None: there is none."""
    copying_share: float = 0.0
    """Share of rows of copying rules that stays in the stage of `target`."""
    sampling: SamplingRecipe = SamplingRecipe()
    drafters: DrafterRecipe = DrafterRecipe()
    target_model: DecoderConfig = TARGET
    drafter_models: Mapping[str, DrafterConfig] = field(default_factory=lambda: DRAFTERS)

    def shortened(self, steps: int) -> Recipe:
        """Return a smoke test: `steps` steps of target and drafters, smallest batches."""
        target, drafters, copying = self.target, self.drafters, self.copying
        return replace(
            self,
            target=replace(
                target,
                steps=steps,
                tokens_per_step=max(target.lengths),
                validate_every=steps,
                validation_tokens=target.lengths[0],
                checkpoint_every=min(1, target.checkpoint_every),
            ),
            copying=copying and replace(copying, steps=steps, tokens_per_step=copying.lengths[0]),
            sampling=replace(self.sampling, batches=1, batch_size=4),
            drafters=replace(
                drafters,
                steps=steps,
                batch_size=2,
                checkpoint_every=min(1, drafters.checkpoint_every),
            ),
        )


TRIO = Recipe(
    copying=TargetRecipe(
        steps=450,
        tokens_per_step=3072,
        lengths=(64,),
        learning_rate=5e-3,
        muon_weight_decay=0.1,
        warmup_steps=60,
        hold_share=1.0,
        log_every=50,
        validate_every=150,
        validation_tokens=48 * 64,
    ),
    copying_share=0.2,
    target=TargetRecipe(
        steps=2400,
        tokens_per_step=4096,
        lengths=(128, 256, 512, 128, 256, 1024, 256, 2048),
        learning_rate=3e-3,
        muon_weight_decay=0.1,
        warmup_steps=60,
        hold_share=0.5,
        log_every=50,
        validate_every=250,
        validation_tokens=64 * 128,
        checkpoint_every=500,
    ),
    sampling=SamplingRecipe(batches=24, batch_size=64, length=512, prompt_tokens=(48, 256)),
    drafters=DrafterRecipe(steps=700, batch_size=4, length=512, depths=4, reuse_last_layer=True),
)
"""Recipe for two CPU cores: conversations of many kinds, code and prose."""

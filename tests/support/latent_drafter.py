"""A drafter with latent attention for the shipped target: the shipped one, its attention rewritten.

Ranks as wide as the input make both down-projections the identity, and heads that share keys get
copies. Positions are lost but for a small random part, so that it accepts less than the original.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from driftscope.inspect.reference.config import DrafterConfig, LatentConfig
from driftscope.inspect.reference.drafter import Drafter, load_drafter, save_drafter
from driftscope_lab.trio import trio_path

WIDE, HEADS, HEAD, TURNED = 512, 8, 32, 32
SIZES = LatentConfig(
    q_lora_rank=WIDE,
    kv_lora_rank=WIDE,
    qk_nope_head_dim=HEAD,
    qk_rope_head_dim=TURNED,
    v_head_dim=HEAD,
)


def latent_config(base: DrafterConfig) -> DrafterConfig:
    """Return the config with latent attention."""
    layer = replace(base.layer, head_dim=SIZES.qk_rope_head_dim)
    return replace(base, layer=layer, latent=SIZES)


@torch.no_grad()
def latent_drafter(folder: Path) -> Path:
    """Write the drafter into `folder`."""
    torch.manual_seed(0)
    base = load_drafter(trio_path() / "eagle31")
    drafter = Drafter(latent_config(base.config))
    kept = {name: each for name, each in base.state_dict().items() if ".self_attn." not in name}
    drafter.load_state_dict(kept, strict=False)
    _write_attention(drafter.midlayer.self_attn, base.midlayer.self_attn)
    save_drafter(drafter, folder)
    return folder


def _write_attention(new: torch.nn.Module, old: torch.nn.Module) -> None:
    queries, keys, values = (
        each.weight.view(-1, HEAD, WIDE) for each in (old.q_proj, old.k_proj, old.v_proj)
    )
    shared = [each.repeat_interleave(HEADS // len(each), 0) for each in (keys, values)]
    new.q_b_proj.weight.view(HEADS, HEAD + TURNED, WIDE)[:, :HEAD] = queries
    # Products are divided by the root of a head's size, which is larger than before.
    new.q_b_proj.weight *= ((HEAD + TURNED) / HEAD) ** 0.5
    new.kv_b_proj.weight.copy_(torch.cat(shared, 1).flatten(0, 1))
    new.q_a_proj.weight.copy_(torch.eye(WIDE))
    new.kv_a_proj_with_mqa.weight[:WIDE] = torch.eye(WIDE)
    new.o_proj.weight.copy_(old.o_proj.weight)

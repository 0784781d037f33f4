"""A multi-token prediction head in MiMo's layout for the shipped target, made in seconds.

MiMo's layers are Llama's with biases on queries, keys and values. Here the biases are zero, so that
the shipped target is a MiMo target as it is, and its float64 reference holds.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from support.eagle1_drafter import config_of, fit, prompt_texts
from torch import Tensor, nn

from driftscope.inspect.reference.config import DrafterConfig
from driftscope.inspect.reference.drafter import Context, Drafter, LaterLayer
from driftscope.inspect.reference.layers import RMSNorm
from driftscope.inspect.reference.model import Target, load_target
from driftscope.inspect.trial.passages import Teacher
from driftscope_lab.trio import encode, trio_path

_NAMES = {"fc.": "input_proj.", "midlayer.": "", "norm.": "final_layernorm."}
"""Prefix of a tensor in the reference drafter -> prefix in a checkpoint of MiMo."""


class MtpHead(Drafter):
    """MiMo's head: `fc` reads the normed state and the normed embedding, and what the final norm
    returns is fed to the next depth.

    Source: vllm.model_executor.models.mimo_mtp 0.32, sglang.srt.models.mimo_mtp 0.5.23.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(replace(config, eagle1=False, norm_output=True))
        size, eps = config.layer.hidden_size, config.layer.rms_norm_eps
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.midlayer = LaterLayer(config)
        self.token_layernorm, self.hidden_layernorm = RMSNorm(size, eps), RMSNorm(size, eps)

    def fuse(self, aux: tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]
        """Return the target's last state."""
        (state,) = aux
        return state

    def context(self, embedding: Tensor, fused: Tensor, before: Context | None = None) -> Context:
        """See Drafter; slot 0 does not see the embedding of its token."""
        if before is None:
            embedding = embedding.clone()
            embedding[:, 0] = 0
        return super().context(embedding, fused, before)

    def _with_embedding(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        normed = self.hidden_layernorm(hidden), self.token_layernorm(embedding)
        both: Tensor = self.fc(torch.cat(normed, -1))
        return both


def mtp_checkpoint(folder: Path) -> Path:
    """Write the shipped target with a head into `folder`, as a checkpoint of MiMo."""
    torch.manual_seed(0)
    path = trio_path() / "target"
    target, teacher = load_target(path), Teacher(path)
    head = MtpHead(config_of(target))
    _start(head, target)
    prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
    fit(head, target, [*teacher.passages(prompts, set(head.config.aux_layers))])
    weights = load_file(path / "model.safetensors")
    weights = {name: each.float() for name, each in weights.items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights |= {f"model.mtp_layers.0.{_name(n)}": x for n, x in _own(head).items()}
    weights |= {
        name.replace("weight", "bias"): torch.zeros(len(each))
        for name, each in weights.items()
        if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj")
    }
    folder.mkdir(parents=True)
    save_file({n: x.contiguous() for n, x in weights.items()}, folder / "model.safetensors")
    fields = json.loads((path / "config.json").read_text()) | {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def load_mtp(folder: Path, dtype: torch.dtype = torch.float64) -> tuple[Target, MtpHead]:
    """Return the shipped target and the head of a checkpoint that `mtp_checkpoint` has written."""
    target = load_target(trio_path() / "target", dtype)
    head = MtpHead(config_of(target))
    stored = load_file(folder / "model.safetensors")
    own = {name: stored[f"model.mtp_layers.0.{_name(name)}"] for name in _own(head)}
    head.load_state_dict({**own, "lm_head.weight": stored["lm_head.weight"]})
    return target, head.to(dtype).eval()


def _start(head: MtpHead, target: Target) -> None:
    """Give the head the target's final norm and output."""
    with torch.no_grad():
        head.norm.weight.copy_(target.model.norm.weight)  # type: ignore[union-attr,arg-type]
        head.lm_head.weight.copy_(target.model.embed_tokens.weight)


def _own(head: MtpHead) -> dict[str, Tensor]:
    """Return the tensors that are not the target's."""
    return {
        name: each.detach()
        for name, each in head.state_dict().items()
        if not name.startswith("lm_head.")
    }


def _name(name: str) -> str:
    for prefix, of_mimo in _NAMES.items():
        if name.startswith(prefix):
            return of_mimo + name.removeprefix(prefix)
    return name

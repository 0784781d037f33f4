"""A multi-token prediction head in MiMo's layout for the shipped target, made in seconds.

MiMo's layers are Llama's with biases on queries, keys and values. Those of the target are zero
here, so that the shipped target is a MiMo target as it is, and its float64 reference holds.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from support.eagle1_drafter import eagle1_config, fit, prompt_texts
from torch import Tensor

from driftscope.inspect.reference.config import FINAL_STATE, DrafterConfig
from driftscope.inspect.reference.drafter import Drafter, Target, load_target
from driftscope.inspect.trial.target import Teacher
from driftscope_lab.trio import encode, trio_path


def mtp_config(target: Target, *, normed: bool) -> DrafterConfig:
    """Return the config of a head of one layer that reads the target's state after the final norm,
    as in SGLang, if `normed`, or before it, as in vLLM."""
    return replace(
        eagle1_config(target),
        aux_layers=(FINAL_STATE if normed else target.config.num_hidden_layers,),
        eagle1=False,
        mtp=True,
        norm_output=True,
        attention_bias=True,
    )


def mtp_checkpoint(folder: Path, *, normed: bool) -> Path:
    """Write the shipped target with a head into `folder`, as a checkpoint of MiMo; see
    `mtp_config`."""
    torch.manual_seed(0)
    path = trio_path() / "target"
    target, teacher = load_target(path), Teacher(path)
    head = Drafter(mtp_config(target, normed=normed))
    _start(head, target)
    prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
    fit(head, target, [*teacher.passages(prompts, set(head.config.aux_layers))])
    weights = load_file(path / "model.safetensors")
    weights = {name: each.float() for name, each in weights.items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    own = {f"model.mtp_layers.0.{mimo_name(n)}": x for n, x in _own(head).items()}
    biases = {
        name.replace("weight", "bias"): torch.zeros(len(each))
        for name, each in weights.items()
        if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj")
    }
    weights |= biases | own
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


@functools.cache
def load_mtp(
    folder: Path, dtype: torch.dtype = torch.float64, *, normed: bool
) -> tuple[Target, Drafter]:
    """Return the shipped target and the head of a checkpoint that `mtp_checkpoint` has written."""
    target = load_target(trio_path() / "target", dtype)
    head = Drafter(mtp_config(target, normed=normed))
    stored = load_file(folder / "model.safetensors")
    own = {name: stored[f"model.mtp_layers.0.{mimo_name(name)}"] for name in _own(head)}
    head.load_state_dict({**own, "lm_head.weight": stored["lm_head.weight"]})
    return target, head.to(dtype).eval()


def _start(head: Drafter, target: Target) -> None:
    """Give the head the target's final norm and output."""
    with torch.no_grad():
        head.norm.weight.copy_(target.model.norm.weight)  # type: ignore[union-attr,arg-type]
        head.lm_head.weight.copy_(target.model.embed_tokens.weight)


def _own(head: Drafter) -> dict[str, Tensor]:
    """Return the tensors that are not the target's."""
    return {
        name: each.detach()
        for name, each in head.state_dict().items()
        if not name.startswith("lm_head.")
    }


def mimo_name(name: str) -> str:
    """Return the name in a checkpoint of MiMo of a tensor of the reference drafter."""
    for ours, theirs in (("fc.", "input_proj."), ("midlayer.", ""), ("norm.", "final_layernorm.")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name

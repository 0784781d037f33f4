"""MTP heads inside a target's checkpoint: which tensors are theirs, in the layout of each family.

Layouts are those that vLLM 0.32 loads: deepseek_mtp.py and glm4_moe_mtp.py, qwen3_next_mtp.py and
qwen3_5_mtp.py, mimo_mtp.py, mimo_v2_mtp.py, ernie_mtp.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Fields of a config that say how many heads there are."""
MIMO = "MiMo"
"""Family whose heads the reference drafter runs."""
_BODY = r"^(?:(?:model\.)?language_model\.)?(?:model\.)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """Names of a family's heads. A tensor's name is cut into the number of its head, if the family
    numbers them, and the rest."""

    family: str
    pattern: str
    """Regular expression of a head's tensors, with the groups `head` and `rest`, and `part` if a
    name has a part of the rest before the number."""
    norms: tuple[str, ...]
    """Norms that every head has, [H] each."""
    projection: str
    """Matrix that reads embedding and state, [H, 2H]."""
    shared: bool = False
    """Whether norms and projection are those of all heads together."""
    after_layers: bool = False
    """Whether heads are numbered on from the target's layers."""


LAYOUTS = (
    MtpLayout(
        family="MiMo-V2",
        pattern=_BODY + r"mtp\.layers\.(?P<head>\d+)\.(?P<rest>.+)$",
        norms=("enorm.weight", "hnorm.weight", "final_layernorm.weight"),
        projection="eh_proj.weight",
    ),
    MtpLayout(
        family="Qwen3-Next, Qwen3.5",
        pattern=_BODY + r"mtp\.(?:layers\.(?P<head>\d+)\.)?(?P<rest>.+)$",
        norms=("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight"),
        projection="fc.weight",
        shared=True,
    ),
    MtpLayout(
        family=MIMO,
        pattern=_BODY + r"mtp_layers\.(?P<head>\d+)\.(?P<rest>.+)$",
        norms=(
            "token_layernorm.weight",
            "hidden_layernorm.weight",
            "final_layernorm.weight",
        ),
        projection="input_proj.weight",
    ),
    MtpLayout(
        family="ERNIE 4.5",
        pattern=_BODY + r"mtp_(?P<part>[a-z_]+)\.(?P<head>\d+)\.(?P<rest>.+)$",
        norms=("emb_norm.weight", "hidden_norm.weight"),
        projection="linear_proj.weight",
    ),
    MtpLayout(
        family="DeepSeek, GLM",
        pattern=_BODY + r"layers\.(?P<head>\d+)\.(?P<rest>.+)$",
        norms=("enorm.weight", "hnorm.weight"),
        projection="eh_proj.weight",
        after_layers=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpHeads:
    """The heads of a checkpoint: names of tensors as stored, by number of the head and by the rest
    of the name."""

    layout: MtpLayout
    heads: Mapping[int, Mapping[str, str]]
    shared: Mapping[str, str]
    """Tensors of all heads together."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names as stored, sorted."""
        parts = (self.shared, *self.heads.values())
        return tuple(sorted(name for part in parts for name in part.values()))

    def of(self, head: int) -> Mapping[str, str]:
        """Return the tensors that a head runs with."""
        return {**self.shared, **self.heads[head]}


def heads_wanted(config: Mapping[str, Any]) -> int | None:
    """Return how many heads a config says that there are; None if it says nothing."""
    nested = config.get("text_config")
    for fields in (config, nested if isinstance(nested, dict) else {}):
        for name in COUNTS:
            value = fields.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def find_heads(config: Mapping[str, Any], names: Collection[str]) -> MtpHeads | None:
    """Return the heads of a checkpoint; None if no tensor is one of a known layout."""
    nested = config.get("text_config")
    fields = {**config, **nested} if isinstance(nested, dict) else config
    layers = fields.get("num_hidden_layers")
    for layout in LAYOUTS:
        first = layers if layout.after_layers else 0
        if not isinstance(first, int):
            continue
        heads, shared = dict[int, dict[str, str]](), dict[str, str]()
        for number, rest, name in _matching(layout, names):
            if number is None:
                shared[rest] = name
            elif number >= first:
                heads.setdefault(number - first, {})[rest] = name
        ours = {**shared, **{rest: n for head in heads.values() for rest, n in head.items()}}
        if layout.projection in ours or any(norm in ours for norm in layout.norms):
            return MtpHeads(layout=layout, heads=heads, shared=shared)
    return None


def _matching(layout: MtpLayout, names: Collection[str]) -> Iterator[tuple[int | None, str, str]]:
    """Yield the number of the head, the rest of the name, and the name of each tensor."""
    pattern = re.compile(layout.pattern)
    for name in names:
        if found := pattern.match(name):
            groups = found.groupdict()
            head, part = groups["head"], groups.get("part")
            rest = groups["rest"] if part is None else f"{part}.{groups['rest']}"
            yield None if head is None else int(head), rest, name

"""A drafter and its target as files: format, settings as an engine reads them, tensors, sizes.

Layouts of MTP heads are those that vLLM 0.32 loads: deepseek_mtp.py and glm4_moe_mtp.py,
qwen3_next_mtp.py and qwen3_5_mtp.py, mimo_mtp.py, mimo_v2_mtp.py, ernie_mtp.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from driftscope.boundary.files import read_text
from driftscope.boundary.json_document import written_property
from driftscope.errors import CheckpointError
from driftscope.inspect.files import (
    CAREFUL,
    Opening,
    StoredTensor,
    TensorFiles,
    find_tensors,
    open_folder,
    read_config,
    weight_pickles,
)
from driftscope.inspect.reference.config import engine_fields


class Family(StrEnum):
    """Kind of decoder layer that a drafter has."""

    LLAMA = "Llama"
    QWEN3 = "Qwen3"
    MLA = "DeepSeek, latent attention"
    EAGLE1 = "Llama, of EAGLE-1"
    MTP = "of the target that it is part of"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """A recognised format."""

    name: str
    family: Family | None = None
    """Family of the decoder; None where only the checks that suit every checkpoint are made."""
    speculators: bool = False
    """Whether the config is in the format of the speculators library."""

    @property
    def checked(self) -> bool:
        """Whether config and weights are compared."""
        return self.family is not None


EAGLE3, EAGLE1 = "EAGLE-3", "EAGLE-1 or EAGLE-2"
_LLAMA3 = frozenset(
    {
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
    }
)
_ARCHITECTURES: Mapping[str, Family] = {
    **dict.fromkeys(_LLAMA3, Family.LLAMA),
    "Eagle3Qwen3ForCausalLM": Family.QWEN3,
    "Eagle3DeepseekV2ForCausalLM": Family.MLA,
    "Eagle3DeepseekV3ForCausalLM": Family.MLA,
}
"""Architectures that are checked whole. Source: the model registry of vLLM 0.32."""
EAGLE1_IN_SGLANG = "LlamaForCausalLMEagle"
_EAGLE1 = frozenset({"EagleLlamaForCausalLM", EAGLE1_IN_SGLANG})
"""Names of the architecture in vLLM and in SGLang."""
_OTHERS = (
    ("LlamaForCausalLMEagle4", "EAGLE-4"),
    ("DFlash", "DFlash"),
    ("DSpark", "DSpark"),
    ("Peagle", "P-EAGLE"),
    ("PEagle", "P-EAGLE"),
    ("Medusa", "Medusa"),
    ("MTP", "MTP head"),
    ("Eagle", EAGLE1),
)
"""Parts of an architecture's name, and the format that they mean; the first that matches counts."""
_SPECULATORS = {"llama": Family.LLAMA, "qwen3": Family.QWEN3}


def recognise(config: Mapping[str, Any], names: Collection[str]) -> CheckpointFormat:
    """Return the format of a checkpoint with this config and these tensors.

    Raises CheckpointError for one that is no drafter of a known kind.
    """
    kind = config.get("speculators_model_type")
    if kind is not None:
        return _speculators(config, str(kind))
    listed = config.get("architectures") or ()
    architectures = [str(each) for each in listed] if isinstance(listed, list | tuple) else []
    for architecture in architectures:
        if architecture in _ARCHITECTURES:
            return CheckpointFormat(name=EAGLE3, family=_ARCHITECTURES[architecture])
        if architecture in _EAGLE1:
            return CheckpointFormat(name=EAGLE1, family=Family.EAGLE1)
        for part, name in _OTHERS:
            if part in architecture:
                return CheckpointFormat(name=name)
    return _by_content(config, set(names), architectures)


def _speculators(config: Mapping[str, Any], kind: str) -> CheckpointFormat:
    layer = config.get("transformer_layer_config")
    model = layer.get("model_type") if isinstance(layer, dict) else None
    if kind != "eagle3":
        return CheckpointFormat(name=f"speculators format, {kind}", speculators=True)
    if not isinstance(layer, dict) or model not in _SPECULATORS:
        raise CheckpointError(
            f"config.json: transformer_layer_config.model_type is {model!r}; vLLM serves "
            f"{' and '.join(_SPECULATORS)} in the speculators format"
        )
    return CheckpointFormat(
        name=f"{EAGLE3}, speculators format", family=_SPECULATORS[str(model)], speculators=True
    )


def _by_content(
    config: Mapping[str, Any], names: set[str], architectures: list[str]
) -> CheckpointFormat:
    """Recognise a checkpoint whose architecture says nothing, such as those of the EAGLE
    repository."""
    if any(name.startswith(("midlayer.", "model.midlayer.")) for name in names):
        latent = config.get("kv_lora_rank") is not None
        return CheckpointFormat(name=EAGLE3, family=Family.MLA if latent else Family.LLAMA)
    if "medusa_num_heads" in config:
        return CheckpointFormat(name="Medusa")
    if heads_wanted(config) or find_heads(config, names):
        return CheckpointFormat(name="target with MTP heads", family=Family.MTP)
    if "fc.weight" in names and any(name.startswith("layers.0.") for name in names):
        return CheckpointFormat(name=EAGLE1, family=_family_of_eagle1(names))
    named = ", ".join(architectures) or "none"
    raise CheckpointError(
        f"config.json: architectures is {named}, which is no drafter that inspect knows; give the "
        "drafter's folder first and the target's with --target"
    )


def _family_of_eagle1(names: set[str]) -> Family | None:
    """Return the family of an EAGLE-1 drafter that names its target's architecture; None for one
    whose attention is not that of Llama."""
    others = ("q_norm.weight", "kv_a_proj_with_mqa.weight", "q_proj.bias")
    return None if any(name.endswith(others) for name in names) else Family.EAGLE1


def common_name(name: str) -> str:
    """Return a tensor's name without the prefixes by which formats differ: `model.` is dropped and
    `midlayer.` is `layers.0.`."""
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with the fields of its text model, if that has its own, at the top level."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


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
    for fields in (config, _text_fields(config)):
        for name in COUNTS:
            value = fields.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def find_heads(config: Mapping[str, Any], names: Collection[str]) -> MtpHeads | None:
    """Return the heads of a checkpoint; None if no tensor is one of a known layout."""
    layers = _text_fields(config).get("num_hidden_layers")
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


AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
_USUAL_STATES = 3
_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_MLA_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _size(folder: Path, fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"{folder / 'config.json'}: {name} is {value!r}; a positive whole number is needed"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFiles:
    """A drafter checkpoint.

    `raw` is config.json as written and `fields` the fields that an engine sees, converted from the
    speculators format; `tensors` are by their common name, see `common_name`.
    """

    folder: Path
    format: CheckpointFormat
    raw: Mapping[str, Any]
    fields: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        """The nested `eagle_config`; empty if there is none."""
        nested = self.fields.get("eagle_config")
        return nested if isinstance(nested, dict) else {}

    @property
    def hidden_size(self) -> int:
        """Width of the drafter's own states."""
        return self.size("hidden_size")

    @property
    def target_hidden_size(self) -> int:
        """Width of one captured state, as the config gives it."""
        return self.size("target_hidden_size", self.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Size of the target's vocabulary, as the drafter's config gives it."""
        return self.size("vocab_size")

    @property
    def draft_vocab_size(self) -> int:
        """Size of the drafter's own vocabulary."""
        return self.size("draft_vocab_size", self.vocab_size)

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return self.size("num_hidden_layers", 1)

    @property
    def aux_layers(self) -> tuple[int, ...] | None:
        """Captured layers that the config names; None if it names none."""
        named = self.fields.get(AUX_LAYERS) or self.eagle_config.get(AUX_LAYERS)
        return tuple(int(each) for each in named) if named else None

    @property
    def aux_states(self) -> int:
        """Number of captured layers, as vLLM counts them."""
        nested = self.eagle_config.get(AUX_LAYERS)
        usual = len(self.aux_layers or nested or ()) or _USUAL_STATES
        return self.size("num_aux_hidden_states", usual)

    @property
    def norm_before_fc(self) -> bool:
        """Whether one norm over all captured states is asked for, in either place."""
        return bool(self.eagle_config.get("norm_before_fc", self.fields.get("norm_before_fc")))

    @property
    def quantized(self) -> bool:
        """Whether the config says that the weights are quantised."""
        return bool(self.fields.get("quantization_config"))

    @property
    def for_sglang(self) -> bool:
        """Whether config.json names an architecture that SGLang alone knows."""
        return EAGLE1_IN_SGLANG in (self.raw.get("architectures") or ())

    def flag(self, name: str) -> bool:
        """Return a norm flag as an engine reads it."""
        return self.norm_before_fc if name == "norm_before_fc" else bool(self.fields.get(name))

    def size(self, name: str, usual: int | None = None) -> int:
        """Return a size; `usual` if it is absent or null. Raises CheckpointError if it is neither
        given nor a positive whole number."""
        if usual is not None and self.fields.get(name) is None:
            return usual
        return _size(self.folder, self.fields, name)

    def named(self, prefix: str) -> dict[str, StoredTensor]:
        """Return the tensors whose common name starts with `prefix`."""
        return {name: each for name, each in self.tensors.items() if name.startswith(prefix)}


def open_drafter(name: str, opening: Opening = CAREFUL) -> DrafterFiles:
    """Open a drafter checkpoint: a folder, or a repository in the local cache.

    Raises CheckpointError for one that is damaged or of no known kind.
    """
    folder = open_folder(name, opening)
    raw = read_config(folder)
    files = find_tensors(folder, opening)
    found = recognise(raw, files.names)
    if found.family is Family.MTP:
        return _target_with_heads(folder, found, raw, files)
    tensors = files.tensors()
    drafter = DrafterFiles(
        folder=folder,
        format=found,
        raw=raw,
        fields=engine_fields(raw) if found.checked else raw,
        tensors={common_name(name): tensor for name, tensor in sorted(tensors.items())},
    )
    if found.checked:
        _check_config(drafter)
    return drafter


def _target_with_heads(
    folder: Path, found: CheckpointFormat, raw: Mapping[str, Any], files: TensorFiles
) -> DrafterFiles:
    """Return a target with MTP heads, of whose tensors only the heads' are opened, under their own
    names."""
    heads = find_heads(raw, files.names)
    stored = {name: files.tensor(name) for name in (heads.names if heads else ())}
    lost = [name for name, tensor in stored.items() if tensor is None]
    if lost:
        raise CheckpointError(
            f"{folder}: its index names {lost[0]}, which no shard holds; copy the checkpoint again"
        )
    drafter = DrafterFiles(
        folder=folder,
        format=found,
        raw=raw,
        fields=_text_fields(raw),
        tensors={name: tensor for name, tensor in stored.items() if tensor is not None},
    )
    _ = drafter.hidden_size
    return drafter


def _check_config(drafter: DrafterFiles) -> None:
    sizes = (*_SIZES, *(_MLA_SIZES if drafter.format.family is Family.MLA else ()))
    for size in sizes:
        drafter.size(size)
    for place in (drafter.fields.get(AUX_LAYERS), drafter.eagle_config.get(AUX_LAYERS)):
        if place and not (isinstance(place, list) and all(isinstance(x, int) for x in place)):
            raise CheckpointError(
                f"{drafter.folder / 'config.json'}: {AUX_LAYERS} is {place!r}; a list of whole "
                "numbers is needed"
            )


_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
_HEADS = ("lm_head.weight", "output_layer.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFiles:
    """A target checkpoint; `fields` are those of its text model."""

    folder: Path
    raw: Mapping[str, Any]
    fields: Mapping[str, Any]
    files: TensorFiles | None
    """None if the folder holds no weights that may be read, which is enough for most checks."""
    pickled: bool = False
    """Whether the weights are pickles that may be loaded."""

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return _size(self.folder, self.fields, "num_hidden_layers")

    @property
    def hidden_size(self) -> int:
        """Width of its states."""
        return _size(self.folder, self.fields, "hidden_size")

    @property
    def vocab_size(self) -> int:
        """Size of its vocabulary."""
        return _size(self.folder, self.fields, "vocab_size")

    @property
    def quantized(self) -> bool:
        """Whether the config says that the weights are quantised."""
        return bool(self.raw.get("quantization_config") or self.fields.get("quantization_config"))

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Ids of the tokens that end an answer, from the config."""
        value = self.fields.get("eos_token_id", self.raw.get("eos_token_id"))
        values = value if isinstance(value, list) else [value]
        return tuple(each for each in values if isinstance(each, int))

    def need_weights(self) -> None:
        """Raise CheckpointError, with the reason, if there are no weights that may be read."""
        if self.files is None:
            find_tensors(self.folder)

    def embedding(self) -> StoredTensor | None:
        """Return the token embedding; None if no file of it is there."""
        return self._find(_EMBEDDINGS)

    def head(self) -> StoredTensor | None:
        """Return the output head, which is the embedding if both are tied."""
        found = self._find(_HEADS)
        return found or (self.embedding() if self.fields.get("tie_word_embeddings") else None)

    def _find(self, endings: tuple[str, ...]) -> StoredTensor | None:
        if self.files is None:
            return None
        names = [name for name in self.files.names if name.endswith(endings)]
        return self.files.tensor(min(names, key=len)) if names else None


def open_target(name: str, opening: Opening = CAREFUL) -> TargetFiles:
    """Open a target checkpoint: a folder, or a repository in the local cache.

    Raises CheckpointError for one whose config cannot be read.
    """
    folder = open_folder(name, opening)
    raw = read_config(folder)
    safe = any(folder.glob("*.safetensors*"))
    pickled = not safe and opening.read_pickle is not None and bool(weight_pickles(folder))
    files = find_tensors(folder, opening) if safe or pickled else None
    target = TargetFiles(
        folder=folder, raw=raw, fields=_text_fields(raw), files=files, pickled=pickled
    )
    _ = target.layers, target.hidden_size, target.vocab_size
    return target


_CARDS = ("README.md", "MODEL_CARD.md")
_LICENCE = re.compile(r"^license:\s*(\S.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a drafter's weights."""

    parameters: int
    """Number of floating-point numbers; for quantised weights, of stored elements."""
    bytes: int
    target_bytes: int | None
    """Size of the target's weight files that are there; None without any."""
    licence: str | None
    """Licence that the model card names."""

    @written_property
    def share(self) -> float | None:
        """Bytes relative to the target's; None if these are not known."""
        return self.bytes / self.target_bytes if self.target_bytes else None


def sizes_of(drafter: DrafterFiles, target: TargetFiles | None) -> Sizes:
    """Return the sizes of a drafter."""
    tensors = drafter.tensors.values()
    floats = [each.elements for each in tensors if each.is_float or drafter.quantized]
    return Sizes(
        parameters=sum(floats),
        bytes=sum(each.bytes for each in tensors),
        target_bytes=_bytes(target.files) if target and target.files else None,
        licence=_licence(drafter.folder),
    )


def _bytes(files: TensorFiles) -> int | None:
    return sum(file.stat().st_size for file in files.files if file.exists()) or None


def _licence(folder: Path) -> str | None:
    for name in _CARDS:
        try:
            found = _LICENCE.search(read_text(folder / name))
        except (OSError, ValueError):
            continue
        if found:
            return found.group(1).strip("'\"")
    return None

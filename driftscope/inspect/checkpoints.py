"""A drafter and its target as files: format, settings as an engine reads them, tensors, sizes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driftscope.boundary.files import read_json, read_text
from driftscope.boundary.json_document import written_property
from driftscope.errors import CheckpointError, Unknown, nearest_kind
from driftscope.inspect.drafter_classes import (
    AUX_LAYERS,
    CLASSES,
    IN_SGLANG,
    PARALLEL,
    SPECULATORS,
    DrafterClass,
    Family,
    architectures_of,
    captured_layers,
    drafter_architecture,
    engine_fields,
    names_drafter,
    row_of,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """A recognised format, or what was recognised of an unknown one."""

    name: str
    row: DrafterClass | None = None
    """Row of the table of classes; None if there is none."""
    speculators: bool = False
    """Whether the config is in the format of the speculators library."""
    architecture: str | None = None
    """Name that vLLM looks up in its registry; None if it finds none."""
    unknown: Unknown | None = None
    """The parts of a checkpoint of an unknown class that are known; None if the class is known."""

    @property
    def family(self) -> Family | None:
        """Family of the decoder; None for an unknown layout."""
        return self.row.family if self.row else None

    @property
    def parallel(self) -> bool:
        """Whether it drafts all tokens at once from captured layers."""
        if self.row is not None:
            return self.row.parallel
        return PARALLEL.search(self.architecture or "") is not None


_TARGETS = ("ForCausalLM", "ForConditionalGeneration")
"""Ends of the names of targets' architectures."""
_FEW_NAMES = 4


def recognise(config: Mapping[str, Any], names: Collection[str]) -> CheckpointFormat:
    """Return the format of a checkpoint with this config and these tensors: the class that vLLM
    looks up for it, by the method that its tensors imply if its architecture is its target's.

    Raises CheckpointError for a target without a drafter, and for a config that vLLM refuses.
    """
    kind, named = config.get("speculators_model_type"), architectures_of(config)
    layers = SPECULATORS.get(str(kind))
    if layers and drafter_architecture(config) is None:
        raise CheckpointError(
            f"config.json: transformer_layer_config.model_type is {_layer_type(config)!r}; vLLM "
            f"serves {' and '.join(layers)} in the speculators format"
        )
    method = _implied_method(config, names)
    served = next((IN_SGLANG[name] for name in named if name in IN_SGLANG), None)
    architecture = served or drafter_architecture(config, method)
    row = row_of(architecture)
    if row is None:
        drafts = method or kind or names_drafter(architecture)
        return _unknown(config, names, architecture if drafts else None)
    if row.family in _P_EAGLE and (
        MASK_FIELDS & config.keys() or any(common_name(name) == MASK_STATE for name in names)
    ):
        row = row_of(_P_EAGLE[row.family]) or row
    if row.family is not Family.MTP:
        name = f"{row.name}, speculators format" if kind is not None else row.name
        return CheckpointFormat(
            name=name, row=row, speculators=kind is not None, architecture=architecture
        )
    if named[:1] != (architecture,) and not (heads_wanted(config) or find_heads(config, names)):
        raise _no_drafter(named)
    name = f"target with {row.name} ({architecture})"
    return CheckpointFormat(name=name, row=row, architecture=architecture)


_P_EAGLE = {Family.LLAMA: "PEagleDraftModel", Family.QWEN3: "PeagleQwen3ForCausalLM"}
"""Family of EAGLE-3 -> class of the table that drafts in parallel with it, under its name too."""
MASK_FIELDS, MASK_STATE = frozenset({"pard_token", "ptd_token_id"}), "mask_hidden"
"""Fields and tensor by which an EAGLE-3 drafter is P-EAGLE."""


def _layer_type(config: Mapping[str, Any]) -> Any:
    layer = config.get("transformer_layer_config")
    return layer.get("model_type") if isinstance(layer, dict) else None


def _implied_method(config: Mapping[str, Any], names: Collection[str]) -> str | None:
    """Return the method with which such tensors are served; None if they do not say, or if the
    config names a drafter's class, which does."""
    if names_drafter(next(iter(architectures_of(config)), None)):
        return None
    if "medusa_num_heads" in config:
        return "medusa"
    if "dflash_config" in config:
        return "dflash"
    return method_of_tensors(names)


def method_of_tensors(names: Collection[str]) -> str | None:
    """Return the method of an EAGLE drafter with such tensors; None for other tensors."""
    common = {common_name(name) for name in names}
    midlayer = any(name.startswith(("midlayer.", "model.midlayer.")) for name in names)
    if midlayer or "layers.0.hidden_norm.weight" in common:
        return "eagle3"
    return "eagle" if common & {"fc.weight", "eagle_linear.weight"} else None


def _unknown(
    config: Mapping[str, Any], names: Collection[str], architecture: str | None
) -> CheckpointFormat:
    """Return the format of a checkpoint whose layout is not known. Raises CheckpointError for a
    target without a drafter."""
    named, heads = architectures_of(config), heads_wanted(config)
    first = named[0] if named else None
    if architecture is None and not heads and first and first.endswith(_TARGETS):
        raise _no_drafter(named)
    common = {common_name(name) for name in names}
    recognised = [f"architecture {first or 'not named'}"]
    if architecture not in (None, first):
        recognised.append(f"vLLM looks up {architecture} for it")
    if heads:
        recognised.append(f"{heads} MTP heads by its config")
    drafts = [name for name in sorted(names) if any(part in name for part in _OF_HEADS)]
    drafts = drafts or sorted(names)
    shown = ", ".join(drafts[:_FEW_NAMES]) + (", ..." if len(drafts) > _FEW_NAMES else "")
    return CheckpointFormat(
        name=f"architecture {first or 'not named'}",
        architecture=architecture,
        speculators="speculators_model_type" in config,
        unknown=Unknown(
            what=f"a drafter of architecture {first or 'without a name'}",
            instead="nothing is judged",
            recognised=recognised,
            not_recognised=(f"its {len(drafts)} tensors ({shown or 'none'})",),
            nearest=nearest_kind(
                ((row.name, row.marks) for row in CLASSES if row.marks), common.__contains__
            ),
            adding="install vLLM or SGLang beside driftscope and leave out --files-only, or add a "
            "row to driftscope/inspect/drafter_classes.py",
        ),
    )


_OF_HEADS = ("mtp", "nextn", "eagle")
"""Parts of the names of tensors that are a head's in most layouts."""


def _no_drafter(named: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"config.json: architectures is {', '.join(named) or 'none'}, a model without a drafter "
        "in it; give the drafter's folder first and the target's with --target. Of a plain model "
        "that drafts (method draft_model) nothing can be wired wrongly but its vocabulary"
    )


def common_name(name: str) -> str:
    """Return a tensor's name without the prefixes by which formats differ: `model.` is dropped and
    `midlayer.` is `layers.0.`."""
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with the fields of its text model, if that has its own, at the top level."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Fields of a config that say how many heads there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpHeads:
    """The heads of a checkpoint: names of tensors as stored, by number of the head and by the rest
    of the name."""

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
    for fields in (config, text_fields(config)):
        for name in COUNTS:
            value = fields.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def find_heads(config: Mapping[str, Any], names: Collection[str]) -> MtpHeads | None:
    """Return the heads of a checkpoint of a class that vLLM drafts with; None if no tensor is one
    of theirs.

    Their names have a part that begins with `mtp`, and a number after it if there may be several;
    or they are layers that are numbered on from the target's.
    """
    row, last = row_of(drafter_architecture(config)), text_fields(config).get("num_hidden_layers")
    if row is None or row.family is not Family.MTP:
        return None
    heads, shared = dict[int, dict[str, str]](), dict[str, str]()
    for name in names:
        if found := _OF_MTP.search(name):
            number, part = found["number"], found["part"]
            rest = found["rest"] if part in _WHOLE_HEADS else f"{part}.{found['rest']}"
            (shared if number is None else heads.setdefault(int(number), {}))[rest] = name
            continue
        layer = _OF_LAYER.search(name)
        if layer and isinstance(last, int) and (head := int(layer["number"]) - last) >= 0:
            heads.setdefault(head, {})[layer["rest"]] = name
    return MtpHeads(heads=heads, shared=shared) if heads or shared else None


_WHOLE_HEADS = ("mtp", "mtp_layers")
_OF_MTP = re.compile(
    r"(?:^|\.)(?P<part>mtp\w{0,40})\.(?:layers\.)?(?:(?P<number>\d{1,4})\.)?(?P<rest>.+)$"
)
_OF_LAYER = re.compile(
    r"^(?:(?:model\.)?language_model\.)?(?:model\.)?layers\.(?P<number>\d{1,4})\.(?P<rest>.+)$"
)


_USUAL_STATES = 3
_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_MLA_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _size(folder: Path, fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 1:
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
        nested: Mapping[str, Any] = self.fields.get("eagle_config") or {}
        return nested

    @property
    def hidden_size(self) -> int:
        """Width of the drafter's own states."""
        return self.size("hidden_size")

    @property
    def target_hidden_size(self) -> int:
        """Width of one captured state, as the config gives it."""
        narrow = self.size("target_hidden_size", self.hidden_size)
        return self.size("backbone_hidden_size", narrow)

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
    def reads_captured(self) -> bool:
        """Whether it reads captured layers of the target, not its last state."""
        if self.format.family in (Family.EAGLE1, Family.MTP, Family.HEADS):
            return False
        if self.format.family is None and not self.format.parallel:
            return False
        nested = {**self.eagle_config, **self.dflash_config}
        return bool(nested.get("use_aux_hidden_state", self.fields.get("use_aux_hidden_state", 1)))

    @property
    def dflash_config(self) -> Mapping[str, Any]:
        """The nested `dflash_config`; empty if there is none."""
        nested: Mapping[str, Any] = self.fields.get("dflash_config") or {}
        return nested

    @property
    def aux_layers(self) -> tuple[int, ...] | None:
        """Captured layers that the config names, as vLLM counts them; None if it names none."""
        nested = self.eagle_config.get(AUX_LAYERS)
        return captured_layers(self.fields) or (tuple(map(int, nested)) if nested else None)

    @property
    def layers_field(self) -> tuple[str, int]:
        """Name of the field with the captured layers, and the number by which vLLM counts later."""
        if self.format.family not in (Family.BLOCKS, None) or self.fields.get(AUX_LAYERS):
            return AUX_LAYERS, 0
        dspark = "dspark_target_layer_ids"
        return (dspark if self.fields.get(dspark) else "target_layer_ids"), 1

    @property
    def aux_states(self) -> int:
        """Number of captured layers for which vLLM builds `fc`; 0 if it builds none."""
        if not self.reads_captured:
            return 0
        nested, top = self.eagle_config.get(AUX_LAYERS), self.fields.get(AUX_LAYERS)
        if self.format.family in (Family.BLOCKS, None):
            return len(self.aux_layers or ()) or self.layers
        if self.format.family is Family.QWEN3:  # the others read the nested list alone
            nested = top or nested
        return self.size("num_aux_hidden_states", len(nested or ()) or _USUAL_STATES)

    @property
    def named_states(self) -> int:
        """Number of captured layers that the config names; `aux_states` if it names none."""
        return len(self.aux_layers) if self.aux_states and self.aux_layers else self.aux_states

    @property
    def norm_before_fc(self) -> bool:
        """Whether one norm over all captured states is asked for, in either place."""
        return bool(self.eagle_config.get("norm_before_fc", self.fields.get("norm_before_fc")))

    @property
    def quantized(self) -> bool:
        """Whether the config says that the weights are quantised."""
        return bool(self.quantization)

    @property
    def quantization(self) -> Mapping[str, Any]:
        """Settings of the quantisation, of the config or of ModelOpt's own file; empty without."""
        for place in (self.fields, self.raw):
            if found := place.get("quantization_config"):
                return found if isinstance(found, dict) else {"quant_method": found}
        try:
            found = read_json(self.folder / "hf_quant_config.json").get("quantization")
        except (OSError, ValueError, AttributeError):
            return {}
        # ModelOpt writes null where only the cache is quantised.
        return found if isinstance(found, dict) and found.get("quant_algo") else {}

    @property
    def for_sglang(self) -> bool:
        """Whether config.json names an architecture that SGLang alone knows."""
        return any(name in IN_SGLANG for name in architectures_of(self.raw))

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
        return {name: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def open_drafter(name: str, opening: Opening = CAREFUL) -> DrafterFiles:
    """Open a drafter checkpoint: a folder, or a repository in the local cache. Of an unknown layout
    no tensor is opened, and of a target with MTP heads the heads' alone, under their own names.

    Raises CheckpointError for one that is damaged, or holds no drafter.
    """
    folder = open_folder(name, opening)
    raw = read_config(folder)
    files = find_tensors(folder, opening)
    prefix = foreign_prefix(files.names)
    found = recognise(raw, [name.removeprefix(prefix) for name in files.names])
    fields, tensors, sizes = raw, dict[str, StoredTensor](), tuple[str, ...]()
    if found.family is Family.MTP:
        heads, fields, sizes = find_heads(raw, files.names), dict(text_fields(raw)), _SIZES[:1]
        for wanted in heads.names if heads else ():
            tensor = files.tensor(wanted)
            if tensor is None:
                raise CheckpointError(
                    f"{folder}: its index names {wanted}, which no shard holds; copy the "
                    "checkpoint again"
                )
            tensors[wanted] = tensor
    elif found.family is not None:
        fields, tensors = dict(_drafter_fields(raw)), _by_common_name(files)
        sizes = ("hidden_size", "vocab_size") if found.family is Family.HEADS else _SIZES
        sizes += _MLA_SIZES if found.family is Family.MLA else ()
    drafter = DrafterFiles(folder=folder, format=found, raw=raw, fields=fields, tensors=tensors)
    for size in sizes:
        drafter.size(size)
    return drafter


def _by_common_name(files: TensorFiles) -> dict[str, StoredTensor]:
    found, named = files.tensors(), dict[str, StoredTensor]()
    prefix = foreign_prefix(found)
    for name, tensor in sorted(found.items()):
        other = named.setdefault(common_name(name.removeprefix(prefix)), tensor)
        if other is not tensor:
            raise CheckpointError(
                f"{tensor.path}: {other.name} and {name} are the same tensor for engines, which "
                "keep the one that they load last; leave the one that is right"
            )
    return named


def foreign_prefix(names: Collection[str]) -> str:
    """Return what wrappers of the trainer have put before each name of a drafter with `fc`, such as
    `module.`; "" if there is nothing, or what formats have there."""
    inner = next((name for name in names if name.endswith(".fc.weight")), "")
    prefix = re.sub(r"\bmodel\.$", "", inner.removesuffix("fc.weight"))
    if prefix.startswith("mtp") or not all(name.startswith(prefix) for name in names):
        return ""
    return prefix


def with_tensors(drafter: DrafterFiles, opening: Opening = CAREFUL) -> DrafterFiles:
    """Return a drafter of an unknown layout with its tensors and the fields that an engine sees.

    Raises CheckpointError like `open_drafter`.
    """
    tensors = _by_common_name(find_tensors(drafter.folder, opening))
    return replace(drafter, fields=_drafter_fields(dict(drafter.raw)), tensors=tensors)


def _drafter_fields(raw: dict[str, Any]) -> Mapping[str, Any]:
    """Return the fields that an engine sees."""
    return text_fields(engine_fields(raw))


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
        return tuple(layer for layer in values if isinstance(layer, int))

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

    def final_norm(self) -> StoredTensor | None:
        """Return the weights of the norm before the head; None if no file of it is there."""
        return self._find(("model.norm.weight",))

    def _find(self, endings: tuple[str, ...]) -> StoredTensor | None:
        if self.files is None:
            return None
        names = [name for name in self.files.names if name.endswith(endings)]
        try:
            return self.files.tensor(min(names, key=len)) if names else None
        except CheckpointError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise


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
        folder=folder, raw=raw, fields=text_fields(raw), files=files, pickled=pickled
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
    floats = [tensor.elements for tensor in tensors if tensor.is_float or drafter.quantized]
    return Sizes(
        parameters=sum(floats),
        bytes=sum(tensor.bytes for tensor in tensors),
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

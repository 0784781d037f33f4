"""A drafter checkpoint as files: its settings as an engine reads them, and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.errors import CheckpointError
from driftscope.inspect.files.checkpoint import (
    TensorFiles,
    find_tensors,
    open_folder,
    read_config,
)
from driftscope.inspect.files.checkpoint_format import (
    EAGLE1_IN_SGLANG,
    CheckpointFormat,
    Family,
    common_name,
    recognise,
)
from driftscope.inspect.files.mtp_heads import find_heads
from driftscope.inspect.files.opening import CAREFUL, Opening
from driftscope.inspect.files.safetensors_file import StoredTensor
from driftscope.inspect.reference.config import engine_fields

AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
_USUAL_STATES = 3
_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_MLA_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


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
        value = self.fields.get(name)
        if value is None and usual is not None:
            return usual
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"{self.folder / 'config.json'}: {name} is {value!r}; a positive whole number is "
                "needed"
            )
        return value

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
    nested = raw.get("text_config")
    drafter = DrafterFiles(
        folder=folder,
        format=found,
        raw=raw,
        fields={**raw, **nested} if isinstance(nested, dict) else raw,
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

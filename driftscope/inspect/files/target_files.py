"""A target checkpoint as files: its config, its embedding and its head. Nothing else is read, so
that the shards with its layers need not be there."""

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
from driftscope.inspect.files.opening import CAREFUL, Opening
from driftscope.inspect.files.pickle_names import weight_pickles
from driftscope.inspect.files.safetensors_file import StoredTensor

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
        return self._size("num_hidden_layers")

    @property
    def hidden_size(self) -> int:
        """Width of its states."""
        return self._size("hidden_size")

    @property
    def vocab_size(self) -> int:
        """Size of its vocabulary."""
        return self._size("vocab_size")

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

    def _size(self, name: str) -> int:
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"{self.folder / 'config.json'}: {name} is {value!r}; a positive whole number is "
                "needed"
            )
        return value


def open_target(name: str, opening: Opening = CAREFUL) -> TargetFiles:
    """Open a target checkpoint: a folder, or a repository in the local cache.

    Raises CheckpointError for one whose config cannot be read.
    """
    folder = open_folder(name, opening)
    raw = read_config(folder)
    nested = raw.get("text_config")
    fields = {**raw, **nested} if isinstance(nested, dict) else raw
    safe = any(folder.glob("*.safetensors*"))
    pickled = not safe and opening.read_pickle is not None and bool(weight_pickles(folder))
    files = find_tensors(folder, opening) if safe or pickled else None
    target = TargetFiles(folder=folder, raw=raw, fields=fields, files=files, pickled=pickled)
    _ = target.layers, target.hidden_size, target.vocab_size
    return target

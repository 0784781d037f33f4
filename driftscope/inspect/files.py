"""Opens a model folder: its config, and its tensors by name, none of which is read before needed.

Safetensors are read without torch, whose import takes longer than all file checks together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.boundary.bounds import (
    MAX_DIMENSIONS,
    MAX_FILE_NAME_BYTES,
    MAX_HEADS,
    MAX_JSON_BYTES,
    MAX_K,
    MAX_LAYERS,
    MAX_TEXT_CHARS,
    MAX_TOKENS,
)
from driftscope.boundary.files import first_line, open_regular, parse_bounded_json, read_bytes
from driftscope.boundary.text import dumps
from driftscope.errors import CheckpointError

_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldKind:
    """Type of a field."""

    wanted: str
    """Words for what is valid."""
    fits: Callable[[Any], bool]


def _whole(most: int, least: int = 0) -> FieldKind:
    """Return the kind of a whole number; configs of layers of several kinds have a list of them."""

    def fits(value: Any) -> bool:
        values = value if isinstance(value, list) else [value]
        return len(values) <= MAX_LAYERS and all(
            type(one) is int and least <= one <= most for one in values
        )

    return FieldKind(wanted=f"a whole number from {least} to {most}", fits=fits)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, str) and len(one) <= MAX_TEXT_CHARS for one in value
    )


_SIZE, _HEADS, _LAYERS = _whole(MAX_TOKENS), _whole(MAX_HEADS), _whole(MAX_LAYERS)
_DRAFTED = _whole(MAX_K // 8)
_NUMBER = FieldKind(wanted="a number", fits=lambda value: type(value) in (int, float))
_LAYER_IDS = FieldKind(
    wanted="a list of whole numbers",
    fits=lambda value: isinstance(value, list) and _whole(MAX_LAYERS, -MAX_LAYERS).fits(value),
)
_OBJECT = FieldKind(wanted="an object", fits=lambda value: isinstance(value, dict))
_TEXT = FieldKind(wanted="a text", fits=lambda value: isinstance(value, str))
_NAMES = FieldKind(wanted="a list of texts", fits=_texts)

_KINDS = {
    _SIZE: "hidden_size target_hidden_size backbone_hidden_size intermediate_size vocab_size "
    "draft_vocab_size truncated_vocab_size head_dim markov_rank kv_lora_rank q_lora_rank "
    "qk_nope_head_dim qk_rope_head_dim v_head_dim max_position_embeddings",
    _HEADS: "num_attention_heads num_key_value_heads",
    _LAYERS: "num_hidden_layers num_aux_hidden_states num_nextn_predict_layers "
    "mtp_num_hidden_layers num_mtp_modules",
    _DRAFTED: "num_heads medusa_num_heads medusa_num_layers",
    _NUMBER: "rms_norm_eps rope_theta partial_rotary_factor rotary_pct rotary_emb_fraction factor "
    "mscale mscale_all_dim attention_factor low_freq_factor high_freq_factor beta_fast beta_slow "
    "original_max_position_embeddings",
    _LAYER_IDS: "eagle_aux_hidden_state_layer_ids aux_hidden_state_layer_ids layer_ids "
    "target_layer_ids dspark_target_layer_ids",
    _OBJECT: "eagle_config dflash_config transformer_layer_config text_config rope_scaling "
    "rope_parameters",
    _TEXT: "model_type speculators_model_type rope_type",
    _NAMES: "architectures ignore exclude_modules modules_to_not_convert ignored_layers exclude "
    "llm_int8_skip_modules",
}
FIELDS = {name: kind for kind, names in _KINDS.items() for name in names.split()}
"""Kind of each field that is read by its name, at whatever place of the config it stands."""


def checked_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without those fields of the table that are null, which means absent.

    Raises ValueError that names the first field of another type or out of its bound.
    """
    fields = {}
    for name, value in content.items():
        kind = FIELDS.get(name)
        if kind is not None and value is None:
            continue
        if kind is not None and not kind.fits(value):
            shown = dumps(value)
            shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
            raise ValueError(f"{name} is {shown}, not {kind.wanted}")
        fields[name] = checked_fields(value) if isinstance(value, dict) else value
    return fields


_LENGTH_BYTES = 8
_BLOCK_ELEMENTS = 1 << 22
"""Number of elements that are converted at once: 16 MiB as float32."""
IN_TORCH = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Type as safetensors names it -> as torch does."""
_NUMPY = {
    name: np.dtype("<u2" if name == "BF16" else kind).newbyteorder("<")
    for name, kind in IN_TORCH.items()
    if not kind.startswith("float8")
}
"""Types that can be read; the others, 8-bit floats for example, are only counted."""
FLOATS = ("F64", "F32", "F16", "BF16")
_BYTES = {"F8_E4M3": 1, "F8_E5M2": 1, **{name: kind.itemsize for name, kind in _NUMPY.items()}}


def is_readable(dtype: str) -> bool:
    """Return whether numbers of a type can be read."""
    return dtype in _NUMPY


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file: its header entry, and access to its content."""

    name: str
    dtype: str
    """Type as the format names it, such as BF16."""
    shape: tuple[int, ...]
    path: Path
    begin: int
    """First byte in the file."""
    bytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the content can be read as floating-point numbers."""
        return self.dtype in FLOATS

    @property
    def is_readable(self) -> bool:
        """Whether the content can be read at all."""
        return is_readable(self.dtype)

    def array(self) -> NDArray[Any]:
        """Return the whole content: float32 (float64 for F64), or integers as stored."""
        parts = list(self.blocks())
        return np.concatenate(parts) if parts else np.zeros(self.shape, np.float32)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the content in blocks of whole rows, so that a large tensor needs little memory.

        Raises CheckpointError for a type that cannot be read.
        """
        if not self.is_readable:
            raise CheckpointError(f"{self.path}: {self.name} has type {self.dtype}, not readable")
        if not self.elements:
            return
        rows = self.flat().reshape(self.shape or (1,))
        step = max(1, _BLOCK_ELEMENTS // max(1, math.prod(self.shape[1:])))
        for start in range(0, len(rows), step):
            yield _converted(np.asarray(rows[start : start + step]), self.dtype)

    def rows(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows at `index`, all of which must exist."""
        return _converted(np.asarray(self.flat().reshape(self.shape)[index]), self.dtype)

    def flat(self) -> NDArray[Any]:
        """Return the elements in a row, as stored, mapped from the file."""
        return np.memmap(
            self.path, _NUMPY[self.dtype], mode="r", offset=self.begin, shape=(self.elements,)
        )


def _refuse_pointer(path: Path, head: bytes) -> None:
    if head == b"version ":
        raise CheckpointError(
            f"{path}: is a pointer of Git LFS without the weights; fetch them: git lfs pull"
        )


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one file by name.

    Raises CheckpointError for a file that is missing, truncated or not in the format.
    """
    try:
        with open_regular(path) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            size = os.fstat(descriptor).st_size
            head = file.read(_LENGTH_BYTES)
            _refuse_pointer(path, head)
            length = int.from_bytes(head, "little")
            if not 0 < length <= size - _LENGTH_BYTES:
                raise CheckpointError(
                    f"{path}: not a safetensors file, or its header is cut off; copy it again"
                )
            if length > MAX_JSON_BYTES:
                raise CheckpointError(
                    f"{path}: its header has {length} bytes, more than {MAX_JSON_BYTES}; save the "
                    "weights in shards"
                )
            entries = parse_bounded_json(file.read(length))
        start = _LENGTH_BYTES + length
        tensors = [
            _entry(path, name, entry, start)
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
    except OSError as error:
        raise CheckpointError(f"{path}: {first_line(error)}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: the header is not that of a safetensors file ({first_line(error)})"
        ) from error
    _check_layout(path, start, size, tensors)
    return {tensor.name: tensor for tensor in tensors}


def _entry(path: Path, name: str, entry: dict[str, Any], start: int) -> StoredTensor:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    whole = all(type(number) is int and number >= 0 for number in (begin, end, *shape))
    if not whole or len(shape) > MAX_DIMENSIONS or begin > end:
        raise ValueError(f"entry of {name}")
    tensor = StoredTensor(
        name=name,
        dtype=str(entry["dtype"]),
        shape=shape,
        path=path,
        begin=start + begin,
        bytes=end - begin,
    )
    width = _BYTES.get(tensor.dtype)
    if width and tensor.elements * width != end - begin:
        raise ValueError(f"entry of {name}")
    return tensor


def _check_layout(path: Path, start: int, size: int, tensors: list[StoredTensor]) -> None:
    """Raise CheckpointError unless the tensors fill the file, one behind the other, as the format
    demands, and unless its own library, with which engines read, opens it."""
    at = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.bytes)):
        if tensor.begin != at:
            raise CheckpointError(
                f"{path}: {tensor.name} does not begin where the tensor before it ends, so that "
                "engines refuse the file; save the weights again"
            )
        at += tensor.bytes
    if at > size:
        raise CheckpointError(
            f"{path}: truncated: its header describes {at} bytes, and it has {size}; copy it again"
        )
    if at < size:
        raise CheckpointError(
            f"{path}: {size - at} bytes follow its last tensor, and engines refuse the file; save "
            "the weights again"
        )
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:  # files can be checked without the extra
        return
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: safetensors refuses it ({first_line(error)})") from error


def _converted(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if dtype == "F16" else values


Reader = Callable[[Path], Mapping[str, StoredTensor]]
"""Function that returns the tensors of one file by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Permissions, none of which is given unless the user asks for it."""

    read_pickle: Reader | None = None
    """Reader of PyTorch pickles; None refuses them."""
    download: bool = False
    """Whether a repository that is not in the local cache is downloaded."""


CAREFUL = Opening()
"""Neither pickles nor downloads."""


PICKLE_INDEX, PICKLE = "pytorch_model.bin.index.json", "pytorch_model.bin"
SHARDS = "pytorch_model-*.bin"
KINDS = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OF_TRAINERS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler", "random_states")
"""Beginnings of the names of files that hold a trainer's state, not weights."""


def weight_pickles(folder: Path) -> tuple[Path, ...]:
    """Return the pickles that may hold weights: those of transformers if there are any."""
    if (folder / PICKLE).exists():
        return (folder / PICKLE,)
    shards = tuple(sorted(folder.glob(SHARDS)))
    others = sorted(path for kind in KINDS for path in folder.glob(kind))
    return shards or tuple(path for path in others if not path.name.startswith(_OF_TRAINERS))


_WANTED = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors")
"""Files of a repository that are downloaded."""


def in_cache(name: str) -> Path | None:
    """Return the folder of a repository in the local cache; None if it has none."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:
        return None
    try:
        config = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not the form of a repository's id
        return None
    return Path(config).parent if isinstance(config, str) else None


def downloaded(name: str, opening: Opening) -> Path:
    """Return the folder of a repository after the files that the cache lacks were downloaded.

    Raises CheckpointError with the reason if that fails.
    """
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise CheckpointError(
            f"{name}: --download needs huggingface_hub: pip install 'driftscope[inspect]'"
        ) from None
    wanted = [*_WANTED, *((PICKLE_INDEX, *KINDS) if opening.read_pickle else ())]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # whatever the network, the hub or the disk answers
        raise CheckpointError(f"{name}: cannot be downloaded ({first_line(error)})") from error


INDEX = "model.safetensors.index.json"
_MISTRAL = "consolidated*.safetensors"
"""Name of the weights in Mistral's own format, which may stand beside the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFiles:
    """Files of a checkpoint by tensor. Headers are read when a tensor is asked for, so that shards
    that nothing asks for may be absent."""

    files: tuple[Path, ...]
    by_name: Mapping[str, Path] | None
    """File of each tensor, from the index; None without an index."""
    read: Reader = read_header
    """Reader of one file."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, sorted."""
        if self.by_name is not None:
            return tuple(sorted(self.by_name))
        return tuple(sorted(name for file in self.files for name in self.read(file)))

    def tensor(self, name: str) -> StoredTensor | None:
        """Return a tensor; None if the checkpoint has none of this name.

        Raises CheckpointError if the shard that should hold it is missing or damaged.
        """
        if self.by_name is None:
            return next(
                (found for file in self.files if (found := self.read(file).get(name))), None
            )
        path = self.by_name.get(name)
        return None if path is None else self.read(path).get(name)

    def tensors(self) -> dict[str, StoredTensor]:
        """Return all tensors by name. Raises CheckpointError like `tensor`, and for one that two
        files hold."""
        found: dict[str, StoredTensor] = {}
        for file in self.files:
            read = self.read(file)
            for name in sorted(found.keys() & read.keys()):
                raise CheckpointError(
                    f"{file}: holds {name}, and so does {found[name].path.name}; engines load "
                    "both files, and keep one of the two; leave the one that is right"
                )
            found |= read
        missing = sorted(set(self.by_name or ()) - set(found))
        if missing:
            raise CheckpointError(
                f"{self.files[0].parent / INDEX}: names {missing[0]}, which no shard holds; "
                "copy the checkpoint again"
            )
        return found


def open_folder(name: str, opening: Opening = CAREFUL) -> Path:
    """Return the folder of a model: a directory, or a repository in the local cache of
    huggingface_hub, which is filled if `opening` permits. Raises CheckpointError if there is
    none."""
    if Path(name).is_dir():
        return Path(name)
    if Path(name).exists():
        gguf = "; GGUF is not read" if name.endswith(".gguf") else ""
        raise CheckpointError(
            f"{name}: is a file; give the folder with config.json and *.safetensors{gguf}"
        )
    found = downloaded(name, opening) if opening.download else in_cache(name)
    if found is None:
        raise CheckpointError(
            f"{name}: no such folder, and not a repository in the local cache; nothing is "
            "downloaded without --download"
        )
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json, see `checked_fields`.

    Raises CheckpointError if it is missing, no object, or has a field that cannot be right.
    """
    path = folder / "config.json"
    try:
        written = read_bytes(path, limit=MAX_JSON_BYTES)
        if written.decode()[:1] == "\ufeff":
            raise ValueError("begins with a byte order mark, which transformers refuses")
        content = parse_bounded_json(written)
    except FileNotFoundError:
        if (folder / "adapter_config.json").exists():
            find_tensors(folder)  # which says that it holds an adapter
        raise CheckpointError(f"{path}: missing; a checkpoint needs it") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is not readable ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: is not a JSON object")
    try:
        return checked_fields(content)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


_ADAPTER = "adapter_model.safetensors"
_OTHERS = {
    "adapter_*": ", but an adapter; merge it into the model that it was trained on (peft: "
    "merge_and_unload)",
    "*.distcp": ", but shards of FSDP; put them together (torch.distributed.checkpoint.format_utils"
    ": dcp_to_torch_save), and save the tensors",
    "zero_to_fp32.py": ", but what DeepSpeed saved; put it together (zero_to_fp32.py)",
    "*.gguf": ", but a GGUF file, which is not read",
}
"""Pattern of files that hold weights in another form -> what a folder with them holds."""


def find_tensors(folder: Path, opening: Opening = CAREFUL) -> TensorFiles:
    """Return the safetensors files of a folder; if there are none, its pickles if `opening`
    permits them.

    Raises CheckpointError if there is nothing that may be read.
    """
    if (folder / INDEX).exists():
        return _indexed(folder / INDEX, read_header)
    every = sorted(folder.glob("*.safetensors"))
    files = [path for path in every if not path.match(_MISTRAL)] or every
    if files and not (len(files) == 1 and files[0].name == _ADAPTER):
        return TensorFiles(files=tuple(files), by_name=None)
    pickles, read = weight_pickles(folder), opening.read_pickle
    if not pickles:
        there = next((words for part, words in _OTHERS.items() if any(folder.glob(part))), "")
        raise CheckpointError(f"{folder}: holds no *.safetensors file with a model{there}")
    first = pickles[0]
    with open_regular(first) as descriptor:
        _refuse_pointer(first, os.read(descriptor, _LENGTH_BYTES))
    if read is None:
        raise CheckpointError(
            f"{first}: is a pickle, which is not opened because loading it can run code; save "
            "the weights as model.safetensors, or give --allow-pickle to load tensors alone"
        )
    if (folder / PICKLE_INDEX).exists():
        return _indexed(folder / PICKLE_INDEX, read)
    if len(pickles) > 1 and not first.match(SHARDS):
        raise CheckpointError(
            f"{folder}: holds several pickles ({first.name}, {pickles[1].name}); leave "
            "the one with the weights"
        )
    return TensorFiles(files=pickles, by_name=None, read=read)


def _indexed(index: Path, read: Reader) -> TensorFiles:
    def fits(file: object) -> bool:
        return isinstance(file, str) and 0 < len(file.encode()) <= MAX_FILE_NAME_BYTES

    try:
        entries = parse_bounded_json(read_bytes(index, limit=MAX_JSON_BYTES))["weight_map"]
        if not all(map(fits, entries.values())):
            raise ValueError("a shard without a name")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: is no index of shards ({first_line(error)})") from error
    if any(Path(file).name != file for file in entries.values()):
        raise CheckpointError(f"{index}: names a shard outside its folder")
    by_name = {name: index.parent / file for name, file in entries.items()}
    return TensorFiles(files=tuple(sorted(set(by_name.values()))), by_name=by_name, read=read)

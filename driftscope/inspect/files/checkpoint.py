"""Opens a model folder: its config, and its tensors by name, none of which is read before it is
needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.boundary.file_input import first_line, read_json
from driftscope.errors import CheckpointError
from driftscope.inspect.files.safetensors_file import StoredTensor, read_header

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFiles:
    """Which file holds which tensor. Headers are read when a tensor is asked for, so that shards
    that nothing asks for may be absent."""

    files: tuple[Path, ...]
    by_name: Mapping[str, Path] | None
    """File of each tensor, from the index; None without an index."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, sorted."""
        if self.by_name is not None:
            return tuple(sorted(self.by_name))
        return tuple(sorted(name for file in self.files for name in read_header(file)))

    def tensor(self, name: str) -> StoredTensor | None:
        """Return a tensor; None if the checkpoint has none of this name.

        Raises CheckpointError if the shard that should hold it is missing or damaged.
        """
        if self.by_name is None:
            return next(
                (found for file in self.files if (found := read_header(file).get(name))), None
            )
        path = self.by_name.get(name)
        return None if path is None else read_header(path).get(name)

    def tensors(self) -> dict[str, StoredTensor]:
        """Return all tensors by name. Raises CheckpointError like `tensor`."""
        found: dict[str, StoredTensor] = {}
        for file in self.files:
            found |= read_header(file)
        missing = sorted(set(self.by_name or ()) - set(found))
        if missing:
            raise CheckpointError(
                f"{self.files[0].parent / INDEX}: names {missing[0]}, which no shard holds; "
                "copy the checkpoint again"
            )
        return found


def open_folder(name: str) -> Path:
    """Return the folder of a model: a directory, or a repository in the local cache of
    huggingface_hub. Nothing is downloaded. Raises CheckpointError if there is none."""
    if Path(name).is_dir():
        return Path(name)
    if Path(name).exists():
        raise CheckpointError(f"{name}: is a file; give the folder that holds its config.json")
    found = _in_cache(name)
    if found is None:
        raise CheckpointError(
            f"{name}: no such folder, and not a repository in the local cache; nothing is "
            f"downloaded (huggingface-cli download {name} does)"
        )
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json. Raises CheckpointError if it is missing or no object."""
    path = folder / "config.json"
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; a checkpoint needs it") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is not JSON ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: is not a JSON object")
    return content


def find_tensors(folder: Path) -> TensorFiles:
    """Return the safetensors files of a folder.

    Raises CheckpointError if there are none, and names pickles, which are not opened: loading one
    can run code.
    """
    index = folder / INDEX
    if index.exists():
        by_name = _read_index(index)
        return TensorFiles(files=tuple(sorted(set(by_name.values()))), by_name=by_name)
    single = folder / SINGLE
    files = (single,) if single.exists() else tuple(sorted(folder.glob("*.safetensors")))
    if files:
        return TensorFiles(files=files, by_name=None)
    pickles = sorted(path.name for kind in PICKLES for path in folder.glob(kind))
    if pickles:
        raise CheckpointError(
            f"{folder / pickles[0]}: is a pickle, which is not opened because loading it can run "
            "code; save the weights as model.safetensors"
        )
    raise CheckpointError(f"{folder}: holds no *.safetensors file")


def _read_index(path: Path) -> dict[str, Path]:
    try:
        entries = read_json(path)["weight_map"]
        names = {str(name): str(file) for name, file in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is no index of shards ({first_line(error)})") from error
    if any(Path(file).name != file for file in names.values()):
        raise CheckpointError(f"{path}: names a shard outside its folder")
    return {name: path.parent / file for name, file in names.items()}


def _in_cache(name: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:
        return None
    try:
        config = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not the form of a repository's id
        return None
    return Path(config).parent if isinstance(config, str) else None

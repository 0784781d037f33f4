"""Opens a model folder: its config, and its tensors by name, none of which is read before it is
needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.boundary.files import first_line, read_json
from driftscope.errors import CheckpointError
from driftscope.inspect.files import pickle_names
from driftscope.inspect.files.hub_repository import downloaded, in_cache
from driftscope.inspect.files.opening import CAREFUL, Opening, Reader
from driftscope.inspect.files.pickle_names import weight_pickles
from driftscope.inspect.files.safetensors_file import StoredTensor, read_header

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFiles:
    """Which file holds which tensor. Headers are read when a tensor is asked for, so that shards
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
        """Return all tensors by name. Raises CheckpointError like `tensor`."""
        found: dict[str, StoredTensor] = {}
        for file in self.files:
            found |= self.read(file)
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
        raise CheckpointError(f"{name}: is a file; give the folder that holds its config.json")
    found = downloaded(name, opening) if opening.download else in_cache(name)
    if found is None:
        raise CheckpointError(
            f"{name}: no such folder, and not a repository in the local cache; nothing is "
            "downloaded without --download"
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


def find_tensors(folder: Path, opening: Opening = CAREFUL) -> TensorFiles:
    """Return the safetensors files of a folder; if there are none, its pickles if `opening`
    permits them.

    Raises CheckpointError if there is nothing that may be read.
    """
    if (folder / INDEX).exists():
        return _indexed(folder / INDEX, read_header)
    single = folder / SINGLE
    files = (single,) if single.exists() else tuple(sorted(folder.glob("*.safetensors")))
    if files:
        return TensorFiles(files=files, by_name=None)
    pickles = weight_pickles(folder)
    if not pickles:
        raise CheckpointError(f"{folder}: holds no *.safetensors file")
    return _pickled(pickles, opening.read_pickle)


def _pickled(files: tuple[Path, ...], read: Reader | None) -> TensorFiles:
    if read is None:
        raise CheckpointError(
            f"{files[0]}: is a pickle, which is not opened because loading it can run code; save "
            "the weights as model.safetensors, or give --allow-pickle to load tensors alone"
        )
    index = files[0].parent / pickle_names.INDEX
    if index.exists():
        return _indexed(index, read)
    if len(files) > 1 and not files[0].match(pickle_names.SHARDS):
        raise CheckpointError(
            f"{files[0].parent}: holds several pickles ({files[0].name}, {files[1].name}); leave "
            "the one with the weights"
        )
    return TensorFiles(files=files, by_name=None, read=read)


def _indexed(index: Path, read: Reader) -> TensorFiles:
    by_name = _read_index(index)
    return TensorFiles(files=tuple(sorted(set(by_name.values()))), by_name=by_name, read=read)


def _read_index(path: Path) -> dict[str, Path]:
    try:
        entries = read_json(path)["weight_map"]
        names = {str(name): str(file) for name, file in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is no index of shards ({first_line(error)})") from error
    if any(Path(file).name != file for file in names.values()):
        raise CheckpointError(f"{path}: names a shard outside its folder")
    return {name: path.parent / file for name, file in names.items()}

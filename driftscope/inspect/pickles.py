"""Reads PyTorch pickles, which can hold code: only tensors in plain containers are accepted."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from driftscope.boundary.files import first_line
from driftscope.errors import CheckpointError
from driftscope.inspect.files import IN_TORCH, StoredTensor, is_readable

if TYPE_CHECKING:
    from torch import Tensor

_INNER = ("state_dict", "model_state_dict", "model", "module")
"""Keys under which trainers keep the weights in a pickle."""
_TYPES = {torch_name: name for name, torch_name in IN_TORCH.items()}
_FORBIDDEN = re.compile(r"GLOBAL ([\w.]+)")
_SAVE = "save the weights as model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTensor(StoredTensor):
    """A tensor whose content is in memory, or mapped into it."""

    content: NDArray[Any]
    """All elements in a row, as stored; bfloat16 as 16-bit integers."""

    def flat(self) -> NDArray[Any]:
        """Return the elements in a row."""
        return self.content


def read_pickle(path: Path) -> Mapping[str, StoredTensor]:
    """Return the tensors of a file by name, read with `weights_only`.

    Raises CheckpointError for a file that is missing or damaged, or holds more than tensors.
    """
    loaded = _load(path)
    from torch import Tensor

    inner = loaded if isinstance(loaded, dict) else {}
    for key in _INNER:
        if isinstance(inner.get(key), dict):
            inner = inner[key]
    state = {key: tensor for key, tensor in inner.items() if isinstance(tensor, Tensor)}
    if not state or not all(isinstance(key, str) for key in state):
        raise CheckpointError(f"{path}: holds no tensors by name; {_SAVE}")
    return {name: _stored(path, name, tensor) for name, tensor in state.items()}


def _load(path: Path) -> Any:
    import torch

    try:
        mapped = zipfile.is_zipfile(path)
        if mapped:
            with zipfile.ZipFile(path) as archive:
                if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                    raise CheckpointError(f"{path}: its parts are compressed; {_SAVE}")
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: {first_line(error)}") from error
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: refused: {_reason(error)}; {_SAVE}") from error
    except Exception as error:  # a damaged or hostile file can raise anything
        why = first_line(error).partition("Re-running")[0].strip()  # torch's advice is to run it
        raise CheckpointError(
            f"{path}: is no pickle of tensors, or is damaged ({why}); {_SAVE}"
        ) from error


def _reason(error: pickle.UnpicklingError) -> str:
    """Return why torch refuses a pickle, without its advice on how to load it anyway."""
    named = _FORBIDDEN.search(str(error))
    asks = f", and asks for {named[1]}" if named else ""
    return f"it holds more than tensors{asks}"


def _stored(path: Path, name: str, tensor: Tensor) -> LoadedTensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    kind = _TYPES.get(dtype, dtype)
    return LoadedTensor(
        name=name,
        dtype=kind,
        shape=tuple(tensor.shape),
        path=path,
        begin=0,
        bytes=tensor.numel() * tensor.element_size(),
        content=_content(path, name, tensor) if is_readable(kind) else np.zeros(0),
    )


def _content(path: Path, name: str, tensor: Tensor) -> NDArray[Any]:
    """Return the elements in a row. A view can name more elements than the file holds."""
    import torch

    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise CheckpointError(f"{path}: {name} is no dense tensor; {_SAVE}")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(f"{path}: {name} names more numbers than the file holds; {_SAVE}")
    row = tensor.detach().contiguous().reshape(-1)
    if row.dtype is torch.bfloat16:
        return row.view(torch.int16).numpy().view(np.uint16)
    found: NDArray[Any] = row.numpy()
    return found

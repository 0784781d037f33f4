"""Repositories of models: in the local cache of huggingface_hub, or downloaded into it."""

from __future__ import annotations

from pathlib import Path

from driftscope.boundary.files import first_line
from driftscope.errors import CheckpointError
from driftscope.inspect.files.opening import Opening
from driftscope.inspect.files.pickle_names import INDEX, KINDS

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
    wanted = [*_WANTED, *((INDEX, *KINDS) if opening.read_pickle else ())]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # whatever the network, the hub or the disk answers
        raise CheckpointError(f"{name}: cannot be downloaded ({first_line(error)})") from error

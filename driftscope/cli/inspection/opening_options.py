"""Permissions that the options of `driftscope inspect` give."""

from __future__ import annotations

from driftscope.cli.inspection.loaded_bench import EXTRA
from driftscope.cli.shared.extras import needs
from driftscope.inspect.files.opening import Opening


def opening_of(*, allow_pickle: bool, download: bool) -> Opening:
    """Return the permissions. Raises MissingExtraError if pickles are to be loaded without
    torch."""
    if not allow_pickle:
        return Opening(download=download)
    from driftscope.inspect.pickle_file import PickleReader

    with needs(EXTRA):
        import torch  # noqa: F401
    return Opening(read_pickle=PickleReader(), download=download)

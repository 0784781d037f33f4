"""A package that is not installed is said by the name of its extra."""

from __future__ import annotations

import pytest

from driftscope.cli.failures import needs
from driftscope.errors import UsageError


def test_a_missing_package() -> None:
    with (
        pytest.raises(UsageError, match=r"nowhere is not installed: pip install 'driftscope\[x\]'"),
        needs("x"),
    ):
        import nowhere  # type: ignore[import-not-found]  # noqa: F401


def test_a_module_of_ours_that_is_missing_is_a_bug_and_said_as_one() -> None:
    with pytest.raises(ModuleNotFoundError), needs("x"):
        import driftscope.nowhere  # type: ignore[import-not-found]  # noqa: F401

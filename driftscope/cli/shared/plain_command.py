"""Commands whose `--help` names values as a user would, instead of their types in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

_TYPE_SHOWN_BY = ("display_type", "display_type_rich")
"""Methods that name the type of an argument's value, in versions of typer that have them."""

_NO_BRACES = {ord(each): None for each in "{}"}


class PlainCommand(TyperCommand):
    """Command that takes no word after a flag, and says so."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, each with the words that its help shows."""
        return _without_types(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line: a name without brackets must be given."""
        return [each.translate(_NO_BRACES) for each in super().collect_usage_pieces(ctx)]


class PlainGroup(TyperGroup):
    """Group of commands whose own options are shown as those of `PlainCommand`."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, each with the words that its help shows."""
        return _without_types(super().get_params(ctx))


def _without_types(parameters: Sequence[Any]) -> Sequence[Any]:
    """Return `parameters` without types in their help. typer shows `<bool>` after a flag and
    `<list[Path]>` after the name of an argument."""
    for each in parameters:
        if isinstance(each, TyperArgument):
            for method in _TYPE_SHOWN_BY:
                setattr(each, method, _no_type)
        elif each.is_flag and each.metavar is None:
            each.metavar = ""
    return parameters


def _no_type(ctx: Any) -> str:  # noqa: ARG001
    return ""

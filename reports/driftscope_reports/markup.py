"""Elements that escape by construction: plain strings are escaped, only `Markup` passes unchanged.

Every label, model name and message comes from a trace and is untrusted.
"""

from __future__ import annotations

# ruff: noqa: S704
import html
from collections.abc import Iterable

from markupsafe import Markup

_VOID = {"meta", "br", "hr", "input"}


Child = str | Markup | None | Iterable["Child"]


def el(tag: str, *children: Child, **attributes: str | None) -> Markup:
    """Return an element. `class_` stands for class, `_` for `-`; an attribute that is None is
    omitted."""
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{shown}>")
    return Markup(f"<{tag}{shown}>{join(children)}</{tag}>")


def join(children: Child) -> Markup:
    """Return the children in sequence; plain strings are escaped."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(html.escape(children))
    return Markup("".join(join(child) for child in children))

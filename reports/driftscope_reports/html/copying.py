"""Text to paste into a shell, with a button that copies it."""

from __future__ import annotations

from driftscope_reports.markup import Markup, el

_TYPED = ("--", "driftscope ")
"""Beginnings of what can be typed; other options are words."""


def to_copy(text: str) -> Markup:
    """Return the text as code; the page's script shows the button."""
    code = el("code", text, class_="option", tabindex="0")
    if not text.startswith(_TYPED):
        return el("div", code, class_="command")
    button = el(
        "button",
        "Copy",
        type="button",
        class_="copy",
        hidden="",
        aria_label=f"Copy {text}",
    )
    return el("div", code, button, class_="command")

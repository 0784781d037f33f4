"""Templates of every page, and their frame: one HTML file that asks the network for nothing.

Everything that a web person edits is in `templates/` and `assets/`. Python renders a part of a page
in one of two ways, and both return `Markup`, which other templates take as it is:

    part("to_copy", "driftscope ls")                # a macro of templates/parts.jinja
    render("cards.jinja", findings=findings)        # a template of its own

A template uses the macros after `{% import "parts.jinja" as parts %}`, for example
`{{ parts.badge("✓ Healthy", "good") }}`. Strings are escaped wherever they are put in; only
`Markup` is not.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from driftscope.boundary.text import dumps
from driftscope.version import __version__

LICENCE = "plotly-basic.LICENSE"


@cache
def environment() -> Environment:
    """Return the templates' environment: it escapes every string, and a missing name is an
    error."""
    templates = Environment(
        loader=PackageLoader("driftscope_reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_printed,
    )
    templates.filters["with_code"] = with_code
    return templates


def with_code(words: str) -> Markup:
    """Return a sentence in which what stands between backticks is code, and no line ends within the
    name of an option, whose dashes a browser takes for a hyphen."""
    words = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(words)))
    return Markup(re.sub(r"(?<!\S)(--[a-z-]+)", r"<span class=unbroken>\1</span>", words))  # noqa: S704  escaped


def _printed(value: object) -> object:
    """Return what a template prints: nothing for None, and never the syntax of a list."""
    if isinstance(value, list | tuple | dict):
        raise TypeError(f"a template prints {value!r}; loop over it or join it")
    return "" if value is None else value


def render(template: str, **values: Any) -> Markup:
    """Return a template of `templates/`, rendered with these values."""
    return Markup(environment().get_template(template).render(**values))  # noqa: S704  escaped


def macro(template: str, name: str, *values: Any, **named: Any) -> Markup:
    """Return what a macro of a template makes of these values."""
    rendered: Markup = getattr(environment().get_template(template).module, name)(*values, **named)
    return rendered


def part(name: str, *values: Any, **named: Any) -> Markup:
    """Return what a macro of `templates/parts.jinja` makes of these values."""
    return macro("parts.jinja", name, *values, **named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of a page, which the frame surrounds."""

    title: str
    skip: str
    """Words of the link that skips the contents."""
    contents: Sequence[tuple[str, str]]
    """Id and name of each section; the first is where `skip` leads."""
    main: Sequence[Markup | None]
    figures: Mapping[str, object]
    """Every figure in `main` as `charts.plain` makes it, by the id of its picture."""
    stories: Sequence[object] = ()
    """Requests that the page's script can open, by run."""


def framed(content: Content) -> str:
    """Return the whole page."""
    packed, style = plotly(), asset("report.css")
    head, code = asset("head.js"), asset("report.js")
    page = render(
        "page.jinja",
        policy=policy(style, [head, code, gzip.decompress(packed).decode()]),
        title=content.title,
        style=style,
        head=head,
        skip=content.skip,
        contents=content.contents,
        main=Markup("\n").join(part for part in content.main if part),
        version=__version__,
        licence=asset(LICENCE),
        figures=script_json(content.figures),
        stories=script_json(content.stories),
        plotly=base64.b64encode(packed).decode(),
        script=code,
    )
    return page.encode("utf-8", "backslashreplace").decode()


def policy(style: str, scripts: list[str]) -> str:
    """Return the Content-Security-Policy, which allows no requests and only these scripts and
    styles.

    Plotly opens an empty style sheet, fills it rule by rule, and sets style attributes.
    """
    known = " ".join(_hash(code) for code in scripts)
    return (
        f"default-src 'none'; script-src {known}; style-src {_hash(style)} {_hash('')}; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def script_json(value: object) -> Markup:
    """Return data for a script element; nothing in it can end the element or begin a comment."""
    text = dumps(value, sort_keys=True, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704  escaped above


def colours() -> dict[str, str]:
    """Return the colours of the light palette by the name of their CSS variable."""
    light = asset("report.css").partition("@media")[0]
    return dict(re.findall(r"--([\w-]+): (#\w+);", light))


@cache
def plotly() -> bytes:
    """Return plotly's smallest bundle that draws these charts, compressed by gzip; the page unpacks
    it. It is compressed once, so that pages have the same bytes on every machine."""
    return (files("driftscope_reports") / "assets" / "plotly-basic.min.js.gz").read_bytes()


@cache
def asset(name: str) -> str:
    """Return the text of a file that ships with the package."""
    return (files("driftscope_reports") / "assets" / name).read_text(encoding="utf-8")

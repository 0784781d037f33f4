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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from driftscope.boundary import strict_json
from driftscope.version import __version__
from driftscope_reports.drawing.palette import DARK, LIGHT, VIRIDIS, variables
from driftscope_reports.drawing.plotly_figure import figure
from driftscope_reports.markup import script_json
from driftscope_reports.model import Picture

LICENCE = "plotly-basic.LICENSE"


@cache
def environment() -> Environment:
    """Return the templates' environment: it escapes every string, and a missing name is an
    error."""
    return Environment(
        loader=PackageLoader("driftscope_reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_printed,
    )


def _printed(value: object) -> object:
    """Return what a template prints: nothing for None, and never the syntax of a list."""
    if isinstance(value, list | tuple | dict):
        raise TypeError(f"a template prints {value!r}; loop over it or join it")
    return "" if value is None else value


def render(template: str, **values: Any) -> Markup:
    """Return a template of `templates/`, rendered with these values."""
    return Markup(environment().get_template(template).render(**values))  # noqa: S704  escaped


@cache
def _parts() -> Any:
    return environment().get_template("parts.jinja").module


def part(macro: str, *values: Any, **named: Any) -> Markup:
    """Return what a macro of `templates/parts.jinja` makes of these values."""
    made: Markup = getattr(_parts(), macro)(*values, **named)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of a page, which the frame surrounds."""

    title: str
    skip: str
    """Words of the link that skips the contents."""
    contents: Sequence[tuple[str, str]]
    """Id and name of each section; the first is where `skip` leads."""
    main: Sequence[Markup | None]
    pictures: Sequence[Picture]
    """All pictures in `main`."""
    stories: Sequence[object] = ()
    """Requests that the page's script can open, by run."""


def framed(content: Content) -> str:
    """Return the whole page."""
    packed, style, code = plotly(), stylesheet(), script()
    return render(
        "page.jinja",
        policy=policy(style, [code, gzip.decompress(packed).decode()]),
        title=content.title,
        style=style,
        skip=content.skip,
        contents=content.contents,
        main=Markup("\n").join(part for part in content.main if part),
        version=__version__,
        licence=asset(LICENCE),
        figures=script_json({p.id: figure(p.chart) for p in content.pictures}, id="figures"),
        stories=script_json(content.stories, id="stories"),
        plotly=base64.b64encode(packed).decode(),
        script=code,
    )


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


@cache
def stylesheet() -> str:
    """Return the page's CSS with its palettes."""
    return (
        asset("report.css")
        .replace("/*LIGHT*/", variables(LIGHT))
        .replace("/*DARK*/", variables(DARK))
    )


@cache
def script() -> str:
    """Return the page's own script, with the colour scale of its heatmaps."""
    return asset("report.js").replace("/*SCALE*/[]", strict_json.dumps(VIRIDIS))


@cache
def plotly() -> bytes:
    """Return plotly's smallest bundle that draws these charts, compressed by gzip; the page unpacks
    it. It is compressed once, so that pages have the same bytes on every machine."""
    return (files("driftscope_reports") / "assets" / "plotly-basic.min.js.gz").read_bytes()


def asset(name: str) -> str:
    """Return the text of a file that ships with the package."""
    return (files("driftscope_reports") / "assets" / name).read_text(encoding="utf-8")

"""Frame of a page: one HTML file with everything in it, which asks the network for nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from driftscope.boundary import strict_json
from driftscope.version import __version__
from driftscope_reports.drawing.palette import DARK, LIGHT, VIRIDIS, variables
from driftscope_reports.drawing.plotly_figure import figure
from driftscope_reports.html.parts.section import Picture
from driftscope_reports.markup import Child, Markup, el, script_json

_FOOTER = (
    "Made by driftscope {}. This file is complete: it loads nothing from the network. Pictures by "
    "plotly.js."
)
LICENCE = "plotly-basic.LICENSE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of a page, which the frame surrounds."""

    title: str
    skip: str
    """Words of the link that skips the contents."""
    contents: Sequence[tuple[str, str]]
    """Id and name of each section; the first is where `skip` leads."""
    main: Child
    pictures: Sequence[Picture]
    """All pictures in `main`."""


def framed(content: Content) -> str:
    """Return the whole page."""
    packed = plotly()
    scripts = [script(), gzip.decompress(packed).decode()]
    head = _head(content.title, stylesheet(), scripts)
    body = _body(content, packed, scripts[0])
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _body(content: Content, packed: bytes, code: str) -> Markup:
    return el(
        "body",
        el("a", content.skip, href=f"#{content.contents[0][0]}", class_="skip"),
        el("header", el("p", "driftscope", class_="brand"), _contents(content.contents)),
        el("main", content.main),
        _footer(),
        el("p", id="said", class_="hidden", role="status"),
        script_json({each.id: figure(each.chart) for each in content.pictures}, id="figures"),
        Markup(
            f'<script type="text/plain" id="plotly">{base64.b64encode(packed).decode()}</script>'
        ),
        Markup(f"<script>{code}</script>"),
    )


def _footer() -> Markup:
    return el(
        "footer",
        el("p", _FOOTER.format(__version__)),
        el("details", el("summary", "Licence of plotly.js"), el("p", asset(LICENCE))),
    )


def _head(title: str, style: str, scripts: list[str]) -> Markup:
    return el(
        "head",
        el("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy(style, scripts)}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        Markup(f"<style>{style}</style>"),
    )


def _contents(entries: Sequence[tuple[str, str]]) -> Markup:
    links = [el("li", el("a", name, href=f"#{where}")) for where, name in entries]
    return el("nav", el("ol", links), aria_label="Sections")


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


def stylesheet() -> str:
    """Return the page's CSS with its palettes."""
    return (
        asset("report.css")
        .replace("/*LIGHT*/", variables(LIGHT))
        .replace("/*DARK*/", variables(DARK))
    )


def script() -> str:
    """Return the page's own script, with the colour scale of the static pictures."""
    return asset("report.js").replace("/*SCALE*/[]", strict_json.dumps(VIRIDIS))


def plotly() -> bytes:
    """Return plotly's smallest bundle that draws these charts, compressed by gzip; the page unpacks
    it. It is compressed once, so that pages have the same bytes on every machine."""
    return (files("driftscope_reports") / "assets" / "plotly-basic.min.js.gz").read_bytes()


def asset(name: str) -> str:
    """Return the text of a file that ships with the package."""
    return (files("driftscope_reports") / "assets" / name).read_text(encoding="utf-8")

"""The README and the pages of docs/: length, links, and that generated pages are current."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from support.command import run_command
from support.doc_pages import field_docstrings, filled
from typer.main import get_command

import driftscope
from driftscope.cli.app import app
from driftscope.telemetry import settings as telemetry_settings
from driftscope_probes import settings as probe_settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETTINGS = (DOCS / "configuration.md").read_text(encoding="utf-8")
PAGES = sorted([*DOCS.rglob("*.md"), *(DOCS / "runbooks").glob("*.md")])
"""Pages of the site; docs/runbooks is a link to the folder that `driftscope dashboards` copies."""
EVERY = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
README_LINES = 150
"""Longest README, in lines, that a newcomer reads in three minutes."""
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _text(path: Path) -> str:
    """Return a page without its blocks of code."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def _anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(_text(path)))
    return {re.sub(r"\s+", "-", heading.strip()) for heading in headings}


def _linked(page: Path) -> list[tuple[str, Path, str]]:
    """Return each relative link of a page: as written, its file, its anchor."""
    links = [link for link in _LINK.findall(_text(page)) if "://" not in link]
    parts = [(link, *link.partition("#")[::2]) for link in links if not link.startswith("mailto:")]
    return [(link, page.parent / name if name else page, at) for link, name, at in parts]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link, target, anchor in _linked(page):
        assert target.exists(), f"{link}: no such file"
        assert not anchor or anchor in _anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_of_the_site_links_to_pages_of_the_site_only(page: Path) -> None:
    for link, target, _ in _linked(page):
        assert Path(os.path.normpath(target)).is_relative_to(DOCS), link


def test_every_page_is_in_the_navigation() -> None:
    def files(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        assert not isinstance(inner, int | None)
        return [name for line in inner for name in files(line)]  # type: ignore[attr-defined]

    nav = files(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(nav) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_every_command_has_a_page_that_shows_it() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not [name for name in _commands() if f"driftscope {name}" not in text]


def _commands() -> set[str]:
    names = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert len(names) > 10
    return names


def test_every_target_of_make_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in EVERY:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE))
        assert named <= targets, page


def test_every_command_that_is_shown_exists() -> None:
    known = _commands()
    for page in EVERY:
        text = page.read_text(encoding="utf-8")
        code = "\n".join([*_FENCE.findall(text), *re.findall(r"`[^`]+`", _FENCE.sub("", text))])
        shown = set(re.findall(r"(?:^`?|/)driftscope ([a-z]+)", code, re.MULTILINE))
        assert shown <= known, page


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "watch.md"], ids=lambda page: page.stem
)
def test_what_a_page_shows_of_a_command_is_what_it_prints(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text(encoding="utf-8")
    (command, example) = re.findall(
        r"^`driftscope ([a-z]+ reports/gallery/[^`]+)`.*?^```\n(.*?)^```", text, re.DOTALL | re.M
    )[0]
    (tmp_path / "reports").symlink_to(ROOT / "reports")
    done = run_command(*command.split(), cwd=tmp_path)
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert not [line for line in example.splitlines() if line.strip("\n .") and line not in printed]


def test_the_page_of_settings_has_every_variable_with_its_meaning() -> None:
    shown = dict(re.findall(r"^\| `DRIFTSCOPE_(\w+)` \| (.*) \| [^|]+ \|$", SETTINGS, re.MULTILINE))
    others = {"DISABLE", "STRICT"}
    assert set(shown) == {name.upper() for name in probe_settings.NAMES} - {"TEST_RAISE"} | others
    fields, exports = field_docstrings(probe_settings), field_docstrings(telemetry_settings)
    for name, meaning in shown.items():
        if name not in others:
            assert f"{meaning}." == fields.get(name.lower()) or f"{meaning}." == exports[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text, "make pages"


def test_the_public_names_are_those_that_the_documentation_lists() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `driftscope\.(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(driftscope.__all__)
    assert all(hasattr(driftscope, name) for name in driftscope.__all__)


def test_the_page_of_json_documents_names_every_kind() -> None:
    page = (DOCS / "json-report.md").read_text(encoding="utf-8")
    first = (row.split("|")[1] for row in re.findall(r"^\| `.*$", page, re.MULTILINE))
    named = {kind for cell in first for kind in re.findall(r"`(\w+)`", cell)}
    schema = json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))
    assert named - {"kind"} == {kind["properties"]["kind"]["const"] for kind in schema["oneOf"]}


_PLACE = re.compile(r"`((?:driftscope|probes|reports|lab|tests|benchmarks|examples)/[\w./*-]+)`")


@pytest.mark.parametrize("page", EVERY, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_is_named_exists(page: Path) -> None:
    named = _PLACE.findall(page.read_text(encoding="utf-8"))
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_architecture_page_names_modules_that_exist() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## The probe\n")[1].split("\n## ")[0]
    modules = re.findall(r"`([\w/]+\.py)`", section)
    assert len(modules) > 10
    assert not [name for name in modules if not (ROOT / "probes/driftscope_probes" / name).exists()]

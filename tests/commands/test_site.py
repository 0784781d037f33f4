"""The documentation as a site: it builds strictly, and works from a folder without a network."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.chromium import chromium
from support.command import run_python

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("no mkdocs-material: the site was not built")
    folder = tmp_path_factory.mktemp("docs") / "site"
    build = ("-m", "mkdocs", "build", "--strict", "--site-dir", folder)
    done = run_python(*build, cwd=ROOT, NO_MKDOCS_2_WARNING="1")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        assert (site / page.relative_to(docs)).with_suffix(".html").stat().st_size > 1000
    assert "driftscope pays trio" in (site / "changelog.html").read_text(encoding="utf-8")


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"(https?:)?//")
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.browser
def test_search_works_in_pages_opened_as_files(site: Path) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "extending" / "add-a-suite.html").as_uri())
        page.locator(".md-search__input").click()
        page.locator(".md-search__input").press_sequentially("jackknife")
        found = page.locator(".md-search-result__link").first
        found.wait_for(timeout=20_000)
        assert str(found.get_attribute("href")).endswith(("definitions.html", "statistics.html"))
        assert all(url.startswith(("file:", "data:")) for url in asked), asked

"""A framed page carries everything with it, and its policy allows only that."""

from __future__ import annotations

import re

from driftscope_reports.html.page_frame import Content, framed, policy
from driftscope_reports.markup import el


def _page(title: str = "Title") -> str:
    content = Content(
        title=title, skip="Skip", contents=[("a", "First")], main=el("p", "words"), pictures=()
    )
    return framed(content)


def test_the_page_names_no_address() -> None:
    page = re.sub(r"<(script|style)\b.*?</\1>", "", _page(), flags=re.DOTALL)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"#a"}


def test_the_policy_allows_the_scripts_of_the_page_only() -> None:
    allowed = policy("p {}", ["one()"])
    assert "default-src 'none'" in allowed
    assert allowed != policy("p {}", ["two()"])
    assert "http" not in allowed


def test_the_title_is_escaped() -> None:
    assert "<title>a &lt;b&gt;</title>" in _page("a <b>")

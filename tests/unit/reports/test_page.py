"""A framed page carries everything with it, and its policy allows only that."""

from __future__ import annotations

import re

from driftscope_reports.page import Content, framed, part, policy, with_code


def _page(title: str = "Title") -> str:
    content = Content(
        title=title,
        skip="Skip",
        contents=[("a", "First")],
        main=[part("paragraph", "words")],
        figures={},
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


def test_a_part_escapes_what_is_put_into_it() -> None:
    assert part("paragraph", "<b>", "x") == '<p class="x">&lt;b&gt;</p>'
    assert part("paragraph", part("code", "<b>")) == "<p><code>&lt;b&gt;</code></p>"


def test_a_command_in_a_sentence_is_code() -> None:
    assert with_code("run `ls <a>`, & wait") == "run <code>ls &lt;a&gt;</code>, &amp; wait"

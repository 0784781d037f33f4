"""Classes of languages that fences name."""

from __future__ import annotations

import pytest
from support.answers import answers, fenced

from driftscope.regions.fence_languages import fence_tag, language_of
from driftscope.regions.text_regions import text_regions
from driftscope.vocabulary import Language, Region


@pytest.mark.parametrize(
    ("info", "language"),
    [
        ("python", Language.PYTHON),
        ("Python3", Language.PYTHON),
        ("{.py .numberLines}", Language.PYTHON),
        ("py title=a.js", Language.PYTHON),
        ("js{1,3}", Language.JAVASCRIPT),
        ("tsx", Language.JAVASCRIPT),
        ("java", Language.JAVA),
        ("c++", Language.C),
        ("cpp:src/main.cpp", Language.C),
        ("go", Language.GO),
        ("rs", Language.RUST),
        ("bash", Language.SHELL),
        ("sql", Language.SQL),
        ("css", Language.HTML),
        ("yaml", Language.JSON),
        ("jsonc", Language.JSON),
        ("diff", Language.OTHER),
        ("c#", Language.OTHER),
        ("Zweifelsfall", Language.OTHER),
        ("", Language.NONE),
        ("   ", Language.NONE),
    ],
)
def test_a_tag_has_its_class(info: str, language: str) -> None:
    assert language_of(fence_tag(info)) == language
    found = text_regions(f"See:\n```{info}\nx\n```\nDone.")
    assert [each.language for each in found] == [Language.NO_FENCE, language, Language.NO_FENCE]


def test_every_class_of_a_language_is_reached() -> None:
    tags = ("py", "js", "java", "c", "go", "rust", "sh", "sql", "html", "json", "diff", "")
    assert tuple(map(language_of, tags)) == Language.ALL[1:]


def test_only_fences_have_a_language() -> None:
    """Written answers: code and diffs have one, everything outside fences has none."""
    seen = set()
    for pieces in answers():
        text = "".join(piece for piece, _ in pieces)
        inside = _inside_fences(pieces)
        for each in text_regions(text):
            assert (each.language != Language.NO_FENCE) is inside[each.start], text
            seen.add((each.region, each.language))
    assert (Region.CODE, Language.PYTHON) in seen
    assert (Region.DIFF, Language.OTHER) in seen
    assert (Region.JSON, Language.JSON) in seen
    assert (Region.JSON, Language.NO_FENCE) in seen, "a tool call"


def _inside_fences(pieces: list[tuple[str, str]]) -> list[bool]:
    """Return for each character whether it is in a fence, by how the answer was written."""
    inside, flags = False, list[bool]()
    for piece, region in pieces:
        opens = piece.startswith(("```", "~~~"))
        inside = opens or (inside and region in (Region.CODE, Region.DIFF))
        flags += [inside] * len(piece)
    return flags


def test_a_fence_in_a_fence_has_the_language_of_the_outer_one() -> None:
    ((inner, _),) = fenced("x = 1\n", "python")
    found = text_regions(f"````html\n{inner}````\n")
    assert [(each.region, each.language) for each in found] == [(Region.CODE, Language.HTML)]


def test_a_special_token_in_a_fence_is_in_no_language() -> None:
    text = "```sql\nSELECT 1<|im_end|>"
    at = text.index("<|")
    found = [(each.region, each.language) for each in text_regions(text, [(at, len(text))])]
    assert found == [(Region.CODE, Language.SQL), (Region.TEMPLATE, Language.NO_FENCE)]


def test_two_fences_in_a_row_keep_their_languages() -> None:
    found = text_regions("```go\nx\n```\n```rust\ny\n```\n")
    assert [each.language for each in found] == [Language.GO, Language.RUST]

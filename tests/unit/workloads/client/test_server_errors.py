"""The words of a server's error are found wherever it puts them."""

from __future__ import annotations

import pytest

from driftscope.workloads.client.answer import words_of


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"error": "no such model"}', "no such model"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"message": "two\\nlines"}', "two lines"),
        (b"<html>\n  Bad gateway </html>", "<html> Bad gateway </html>"),
        (b'{"error": {"code": 7}}', '{"code":7}'),
        (b"[1, null]", "[1,null]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
        (b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}", "an error without a message"),
    ],
)
def test_words(content: bytes, words: str) -> None:
    assert words_of(content) == words

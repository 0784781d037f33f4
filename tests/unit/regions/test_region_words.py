"""Every kind of text has its words and its colour."""

from __future__ import annotations

import re
from importlib.resources import files

from driftscope.findings.rules_circumstances import WORDS
from driftscope.vocabulary import Region


def test_findings_have_words_for_every_region() -> None:
    assert tuple(WORDS) == Region.ALL


def test_an_opened_request_has_a_colour_and_a_letter_for_every_region() -> None:
    script = (files("driftscope_reports") / "assets" / "report.js").read_text(encoding="utf-8")
    table = re.search(r"const REGIONS = (.+?);", script, re.DOTALL)
    assert table is not None
    entries = re.findall(r'\["(\w+)", "(var\(--[\w-]+\))", "(\w)"\]', table[1])
    assert tuple(name for name, _, _ in entries) == Region.ALL
    assert len({fill for _, fill, _ in entries}) == len({sign for _, _, sign in entries})
    assert len({sign for _, _, sign in entries}) == len(Region.ALL)

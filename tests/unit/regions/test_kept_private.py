"""A run with regions holds neither text nor token ids of an answer."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.runs import Spec, manifest, rows

from driftscope.regions.answer_regions import answer_regions
from driftscope.regions.token_texts import TokenTexts
from driftscope.trace.reader import read_trace
from driftscope.trace.records import RequestRow
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import create_run

FIRST_ID = 1_234_567_000
WORDS = ("Zweifelsfall ", "```py\n", "hemmungslos = ", "4711\n", "```\n", "Kaleidoskop ")
ANSWER = [FIRST_ID + at for at in (0, 1, 2, 3, 4, 5, *[0] * 12)]


class Words:
    """A tokenizer whose words and ids occur nowhere else."""

    all_special_ids = ()

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(WORDS[each - FIRST_ID] for each in ids)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [WORDS[each - FIRST_ID] for each in ids]


def test_neither_text_nor_ids_are_in_any_file(tmp_path: Path) -> None:
    regions = answer_regions(TokenTexts(Words()), ANSWER, ANSWER)
    run, spec = tmp_path / "run", Spec(requests=2)
    create_run(run, manifest(spec))
    writer = TraceWriter(run, source="engine0-1")
    for row in rows(spec):
        if isinstance(row, RequestRow):
            row = replace(
                row,
                region_starts=regions.starts,
                region_codes=regions.codes,
                region_languages=regions.languages,
                region_boundaries=regions.boundaries,
                region_copies=regions.copies,
            )
        writer.put(row)
    writer.close()
    kept = read_trace(run).request.column("region_starts").to_pylist()
    assert kept == [regions.starts] * 2
    assert len(regions.starts) > 2
    assert regions.copies
    written = b"".join(path.read_bytes() for path in run.iterdir())
    for word in WORDS:
        assert word.strip().encode() not in written
    for token in set(ANSWER):
        assert struct.pack("<i", token) not in written
        assert str(token).encode() not in written

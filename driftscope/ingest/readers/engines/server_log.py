"""Logs of SGLang, vLLM, LMDeploy and llama.cpp servers.

Sources: SGLang 0.5.23 "Decode batch", vLLM 0.33 and LMDeploy 0.18 "SpecDecoding metrics",
llama.cpp#24536 "draft acceptance". Each line covers one log interval, or one request in llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from driftscope.ingest.fields import MOST_LENGTH, BadFigureError
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import RequestCounts
from driftscope.ingest.reader import Reader
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_SGLANG = re.compile(rf"Decode batch.*?accept len: {_NUMBER}")
_VLLM = re.compile(
    rf"SpecDecoding metrics:.*?[Mm]ean acceptance length: {_NUMBER}.*?"
    r"Accepted: ([0-9]+) tokens, Drafted: ([0-9]+) tokens"
)
_LLAMACPP = re.compile(
    rf"draft acceptance = {_NUMBER} \( *([0-9]+) accepted / *([0-9]+) generated\), "
    rf"mean acceptance length = {_NUMBER}"
)
_IDLE = 1.0
"""Length that SGLang prints for an idle batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    length: float
    accepted: int
    drafted: int

    @property
    def rounds(self) -> int:
        """Rounds that a length and accepted tokens imply."""
        return round(self.accepted / (self.length - 1.0)) if self.length > 1.0 else 0


def _recognises(file: ResultFile) -> bool:
    plain = file.document is None and not file.lines
    return plain and any(each.search(file.text) for each in (_SGLANG, _VLLM, _LLAMACPP))


def _read(file: ResultFile) -> Iterator[Figures]:
    if requests := [_line(m[4], m[2], m[3]) for m in _LLAMACPP.finditer(file.text)]:
        yield over_requests(
            [
                RequestCounts(rounds=e.rounds, accepted=e.accepted, drafted=e.drafted)
                for e in requests
            ],
            assumptions=("rounds are accepted tokens / (length - 1), rounded",),
        )
    elif lines := [_line(m[1], m[2], m[3]) for m in _VLLM.finditer(file.text)]:
        yield Figures(
            rounds=sum(each.rounds for each in lines) or None,
            accepted=sum(each.accepted for each in lines),
            drafted=sum(each.drafted for each in lines),
            assumptions=("rounds of a line are accepted tokens / (length - 1), rounded",),
        )
    else:
        lengths = [_length(match[1]) for match in _SGLANG.finditer(file.text)]
        known = [each for each in lengths if each != _IDLE]
        yield Figures(
            length=sum(known) / len(known) if known else None,
            assumptions=(
                "the mean of the lines: SGLang logs no counts; 1.00 is left out as an idle batch",
            ),
        )


def _line(length: str, accepted: str, drafted: str) -> _Line:
    return _Line(length=_length(length), accepted=int(accepted[:18]), drafted=int(drafted[:18]))


def _length(text: str) -> float:
    value = float(text)
    if value > MOST_LENGTH:
        raise BadFigureError(f"an acceptance length of {value:g}")
    return value


READER = Reader(
    name="server-log",
    title="log of an SGLang (0.5), vLLM (0.33), LMDeploy (0.18) or llama.cpp server",
    gives="acceptance length; tokens (not SGLang); an interval over requests (llama.cpp)",
    lacks="rates by position; rounds are rebuilt",
    recognises=_recognises,
    read=_read,
)

"""Responses of llama.cpp's server, or of mlx-vlm's: JSON, or a line per response.

Source: `timings` of tools/server. llama.cpp counts draft tokens, but no rounds; mlx-vlm has
draft_rounds (mlx-vlm#1788).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from driftscope.ingest.fields import count, inner, number
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import RequestCounts
from driftscope.ingest.reader import Reader
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile

NO_ROUNDS = (
    "llama.cpp counts no rounds in a response, so there is no acceptance length; its metrics page "
    "and its log have them"
)


def _timings(file: ResultFile) -> list[Mapping[str, Any]]:
    found = [inner(each, "timings") for each in file.objects]
    return [each for each in found if "predicted_ms" in each]


def _recognises(file: ResultFile) -> bool:
    return bool(_timings(file))


def _read(file: ResultFile) -> Iterator[Figures]:
    timings = _timings(file)
    tpot = [_tpot(each) for each in timings]
    drafting = [each for each in timings if "draft_n" in each]
    exact = drafting and all("draft_rounds" in each for each in drafting)
    if exact:
        yield over_requests([_counts(each) for each in drafting], number=len(timings), tpot_s=tpot)
        return
    yield Figures(
        requests=len(timings),
        drafted=_sum(drafting, "draft_n"),
        accepted=_sum(drafting, "draft_n_accepted"),
        tpot_s=sum(known) / len(known) if (known := [t for t in tpot if t is not None]) else None,
        assumptions=(NO_ROUNDS,),
    )


def _counts(timings: Mapping[str, Any]) -> RequestCounts:
    return RequestCounts(
        rounds=count(timings, "draft_rounds") or 0,
        accepted=count(timings, "draft_n_accepted") or 0,
        drafted=count(timings, "draft_n"),
    )


def _tpot(timings: Mapping[str, Any]) -> float | None:
    taken, tokens = number(timings, "predicted_ms"), count(timings, "predicted_n")
    return taken / tokens / 1000.0 if taken is not None and tokens else None


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> int | None:
    known = [each for each in (count(row, name) for row in rows) if each is not None]
    return sum(known) if known else None


READER = Reader(
    name="llamacpp-responses",
    title="llama.cpp or mlx-vlm server responses",
    gives="drafted and accepted tokens, time per token; with mlx-vlm an acceptance length",
    lacks="rounds in llama.cpp, rates by position",
    recognises=_recognises,
    read=_read,
)

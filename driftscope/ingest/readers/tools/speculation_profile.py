"""`speculation_profile.json` 1.0 of NVIDIA's Model-Optimizer (#2247, #2313, #2315, #2316).

mean_accept_length is over rounds, with the target's own token; measured: false marks a stub.
"""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.ingest.fields import BadFigureError, count, length, numbers
from driftscope.ingest.figures import Figures
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile

_MARGINAL = "marginal_accept_rates"


def _recognises(file: ResultFile) -> bool:
    return "num_speculative_tokens" in file.fields and "measured" in file.fields


def _read(file: ResultFile) -> Iterator[Figures]:
    fields = file.fields
    if fields.get("measured") is not True:
        raise BadFigureError("measured is not true: the profile is a stub without figures")
    rates = fields.get(_MARGINAL)
    yield Figures(
        k=count(fields, "num_speculative_tokens"),
        length=length(fields, "mean_accept_length"),
        length_by_request=length(fields, "mean_accept_length_per_request"),
        marginal=None if rates is None else numbers(rates, _MARGINAL, 1.0),
    )


READER = Reader(
    name="speculation-profile",
    title="speculation_profile.json 1.0 (NVIDIA Model-Optimizer)",
    gives="acceptance length over rounds and requests, rates by depth",
    lacks="tokens, times, intervals",
    recognises=_recognises,
    read=_read,
)

"""`acceptance_rate.json` of SPEED-Bench, NVIDIA Model-Optimizer's specdec_bench.

Keys of its histogram and rates are lengths with the target's own token: key 1 is a round of which
nothing was accepted, and depth i is key i + 1. Absent keys are lengths that did not occur.
"""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.ingest.fields import MOST_LENGTH, inner, number
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import accepted_in, histogram_of, marginal_of
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile

_HISTOGRAM = "Acceptance_Length_Histogram"


def _recognises(file: ResultFile) -> bool:
    return any("Average_AL" in each and "Request_AL" in each for each in file.objects)


def _read(file: ResultFile) -> Iterator[Figures]:
    for at, fields in enumerate(file.objects):
        lengths = histogram_of(fields.get(_HISTOGRAM), _HISTOGRAM)
        # Length 0 does not occur: a round yields at least the target's own token.
        accepted = lengths[1:] if lengths else None
        yield Figures(
            part=f"run {at + 1}" if len(file.objects) > 1 else "",
            requests=len(inner(fields, "Request_AL")) or None,
            rounds=sum(accepted) if accepted else None,
            accepted=accepted_in(accepted) if accepted else None,
            length_by_request=number(fields, "Average_AL", MOST_LENGTH),
            marginal=marginal_of(accepted) or None if accepted else None,
            assumptions=("Average_AL is the mean of turns, not of rounds",),
        )


READER = Reader(
    name="speed-bench",
    title="SPEED-Bench acceptance_rate.json",
    gives="acceptance length over rounds and over turns, rates by depth",
    lacks="drafted tokens, times, intervals",
    recognises=_recognises,
    read=_read,
)

"""Figures from other tools' files as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftscope.ingest.figures import Figures
from driftscope.ingest.reader import Reader
from driftscope.json_report.document import INGESTED, text


def to_json(found: Sequence[tuple[Path, Reader, tuple[Figures, ...]]]) -> str:
    """Return the figures of all files as text, newline at the end."""
    files = [
        {"file": path.name, "format": reader.name, "figures": [_figures(each) for each in every]}
        for path, reader, every in found
    ]
    return text(INGESTED, {"files": files})


def _figures(figures: Figures) -> dict[str, Any]:
    spread = figures.length_interval
    return {
        "part": figures.part,
        "period": figures.period,
        "k": figures.k,
        "requests": figures.requests,
        "rounds": figures.rounds,
        "drafted": figures.drafted,
        "accepted": figures.accepted,
        "mean_length": figures.length,
        "mean_length_interval": spread and {"low": spread.low, "high": spread.high},
        "mean_length_by_request": figures.length_by_request,
        "token_rate": figures.token_rate,
        "marginal": figures.marginal,
        "ttft_s": figures.ttft_s,
        "tpot_s": figures.tpot_s,
        "output_tokens_per_s": figures.output_per_s,
        "assumptions": figures.assumptions,
        "contradictions": figures.contradictions,
    }

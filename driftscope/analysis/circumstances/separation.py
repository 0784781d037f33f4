"""Rounds of a run by context length and label, each compared within strata of the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from driftscope.analysis.circumstances.label_origin import origin_of
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.statistics.strata import (
    ENOUGH_REQUESTS,
    Cells,
    context_within_label,
    labels_within_context,
)


def within_strata(run: Sums) -> dict[str, Any]:
    """Return the fields of `Groups` that compare ranges of context lengths and labels."""
    return strata_of(*cells_of(run))


def strata_of(cells: Cells, contexts: list[str], labels: list[str]) -> dict[str, Any]:
    """Compare the rounds in `cells` within strata; `contexts` and `labels` are names."""
    return {
        "context_within_label": context_within_label(cells, contexts, labels),
        "labels_within_context": tuple(
            pair
            for pair in labels_within_context(cells, contexts, labels)
            if origin_of(pair.first) == origin_of(pair.second)
        ),
        "contexts_of_labels": _contexts_of_labels(cells, contexts, labels),
    }


def cells_of(run: Sums) -> tuple[Cells, list[str], list[str]]:
    """Return the rounds in cells, the names of the ranges of context lengths, and the names of
    labels.

    Requests that did not finish have no known label, and are left out if others did finish.
    """
    request = run.requests.codes(run.in_context)
    rounds = run.rounds_of(run.in_context, request)
    known = run.requests.finished
    wanted = known[request] if known.any() else np.ones(len(request), dtype=np.bool_)
    mine = wanted & (rounds.rounds > 0)
    powers, context = np.unique(whole(run.in_context, "bucket")[mine], return_inverse=True)
    names, label = np.unique(run.requests.labels[request[mine]].astype(str), return_inverse=True)
    cells = Cells(
        request=run.clusters[request[mine]],
        label=label,
        context=context,
        tokens=rounds.comparable_tokens()[mine, 0],
        rounds=rounds.rounds[mine].astype(np.float64),
    )
    return cells, [f"{range_name(each)} tokens" for each in powers.tolist()], names.tolist()


def range_name(power: int) -> str:
    """Return the name of the range from 2^power to below 2^(power + 1)."""
    first, last = 2**power, 2 ** (power + 1) - 1
    return f"{first:,} to {last:,}" if last > first else f"{first}"


def _contexts_of_labels(
    cells: Cells, contexts: list[str], labels: list[str]
) -> dict[str, tuple[str, ...]]:
    there = np.zeros((len(labels), len(contexts)), dtype=np.int64)
    np.add.at(there, (cells.label, cells.context), 1)
    return {
        label: tuple(name for name, n in zip(contexts, row, strict=True) if n >= ENOUGH_REQUESTS)
        for label, row in zip(labels, there.tolist(), strict=True)
    }

"""Whether the rows of a run belong together; everything after this may rely on it."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from driftscope.analysis.chains import AUX, BY_DEPTH, MASSES
from driftscope.analysis.columns import floats, has_width, ints
from driftscope.errors import DamagedTraceError, MixedTraceError, NoDataError
from driftscope.trace.reader import Trace
from driftscope.trace.records import MASS_CLASSES


def check(trace: Trace) -> None:
    """Raise MixedTraceError, DamagedTraceError or NoDataError for a run that cannot be analysed.

    A round that drafted fewer than K tokens is legitimate: it ran close to a length limit.
    """
    _check_k(trace)
    _check_layers(trace)
    _check_rates(trace)
    _check_lists(trace)
    _check_heads(trace)
    _check_rounds(trace)


def _check_k(trace: Trace) -> None:
    drew = ints(trace.step, "chains") > 0
    lengths = {trace.manifest.k, *ints(trace.draft, "k"), *ints(trace.step, "k")[drew]}
    drafted = ints(trace.verify, "drafted")
    lengths |= {n for n in set(drafted.tolist()) if n > trace.manifest.k}
    if len(lengths) > 1:
        found = ", ".join(str(int(k)) for k in sorted(lengths))
        raise MixedTraceError(
            f"{trace.path}: chains of different lengths in one run (K = {found}); "
            "record one run directory per K and give them all to analyze"
        )


def _check_layers(trace: Trace) -> None:
    layers = sorted(set(ints(trace.draft, "layers").tolist()))
    if len(layers) > 1:
        raise MixedTraceError(
            f"{trace.path}: drafters of {' and '.join(map(str, layers))} layers in one run; "
            "record one run directory per drafter"
        )


def _check_rates(trace: Trace) -> None:
    rate = floats(trace.draft, "rate")
    if not bool(((rate > 0) & (rate <= 1)).all()):
        raise DamagedTraceError(
            f"{trace.path}: draft rows whose sampling rate is not above 0 and at most 1; "
            "the run's files are damaged"
        )


def _check_lists(trace: Trace) -> None:
    """Per-depth lists have K elements, masses K times the drafter's layers."""
    k, layers = trace.manifest.k, int(ints(trace.draft, "layers").max(initial=1))
    widths = {**dict.fromkeys(MASSES, k * layers), **dict.fromkeys(BY_DEPTH, k)}
    widths |= dict.fromkeys(AUX, len(trace.manifest.aux_layers))
    for name, width in widths.items():
        if not has_width(trace.draft, name, width):
            raise DamagedTraceError(
                f"{trace.path}: draft rows whose {name} is not {width} long; "
                "the run's files are damaged or not from one run"
            )


def _check_heads(trace: Trace) -> None:
    """Masses by head have K times layers times heads times classes elements."""
    lengths = pc.fill_null(pc.list_value_length(trace.draft.column("head_mass")), -1)
    k, layers, heads = (ints(trace.draft, name) for name in ("k", "layers", "heads"))
    found = np.asarray(lengths.to_numpy())
    if bool(((found >= 0) & (found != k * layers * heads * len(MASS_CLASSES))).any()):
        raise DamagedTraceError(
            f"{trace.path}: draft rows whose head_mass is not K times layers times heads times "
            f"{len(MASS_CLASSES)} long; the run's files are damaged or not from one run"
        )


def _check_rounds(trace: Trace) -> None:
    drafted, accepted = ints(trace.verify, "drafted"), ints(trace.verify, "accepted")
    if bool(((accepted > drafted) | (accepted < 0)).any()):
        raise DamagedTraceError(
            f"{trace.path}: verify rows with more tokens accepted than drafted; "
            "the run's files are damaged or not from one run"
        )
    if not bool((drafted > 0).any()):
        raise NoDataError(
            f"{trace.path}: no round in it ({trace.request.num_rows} requests, {len(drafted)} "
            "steps without a draft); send requests to the server while the probe is on, and check "
            "that speculation is configured"
        )

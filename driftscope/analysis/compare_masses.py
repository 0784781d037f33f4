"""Attention of two runs, compared at rounds that the target of both verified.

An engine may record chains that no target verifies, such as the last one of a request, and another
engine may not; their queries see other text. Where requests are paired, both runs must have a
verified chain at the same position of the same text, so that equal drafters have equal masses
there, whatever else each run recorded.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from driftscope.analysis.compare import MATTERS, NO_MASSES, MassComparison, differences_of, together
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.figures.verified_chains import (
    COMPARED,
    KEY,
    column,
    internals,
    look_at,
)
from driftscope.analysis.number_words import count
from driftscope.analysis.pairing import UNPAIRED, Pairing, pair_sides
from driftscope.analysis.query.query_engine import Codes, Matrix, floats, whole
from driftscope.analysis.statistics.ratio import ratio_of, ratio_over
from driftscope.metrics.attention import GENERATED, PROMPT, SELF, SINK
from driftscope.vocabulary import GENERATED_MASS, PROMPT_MASS, SELF_MASS, SINK_MASS

COLUMNS = {
    SINK.name: SINK_MASS,
    PROMPT.name: PROMPT_MASS,
    GENERATED.name: GENERATED_MASS,
    SELF.name: SELF_MASS,
}
"""Column of each class of attention that is compared."""
LEAST_ROUNDS = 2
"""Fewest rounds in common for which masses are compared."""
_POSITIONS = 1 << 40
"""More than the positions of a context."""


def compare_masses(first: Sums, second: Sums) -> MassComparison:
    """Compare the attention masses of two runs, averaged over layers and rounds; not if a run has
    no chains, or if they have no round in common."""
    runs, last = (first, second), min(first.shape.depths, second.shape.depths) - 1
    names = {
        name: mass
        for name, mass in COLUMNS.items()
        if not any(mass in run.shape.absent for run in runs)
    }
    if not names or not all(run.recorded.any() for run in runs):
        return NO_MASSES
    pairing = pair_sides(first.side, second.side)
    paired = pairing.how != UNPAIRED
    places = [(name, index) for name in names for index in dict.fromkeys((0, last))]
    wanted = _thinned(runs, pairing) if paired else (None, None)
    tables = [_chains(run, among, last) for run, among in zip(runs, wanted, strict=True)]
    if paired:
        tables = _in_common(tables, pairing)
    if min(table.num_rows for table in tables) < LEAST_ROUNDS:
        return NO_MASSES
    units = [run.requests.units.unit[whole(t, KEY[0])] for run, t in zip(runs, tables, strict=True)]
    if paired:
        units[1] = units[0]
        rate = floats(tables[0], "rate") * floats(tables[1], "rate")
        weights = [1.0 / rate, 1.0 / rate]
    else:
        weights = [1.0 / floats(table, "rate") for table in tables]
    values = [
        np.column_stack([floats(table, column(names[name], index)) for name, index in places])
        for table in tables
    ]
    sides = [
        ratio_over(ratio_of, (v * w[:, None], np.broadcast_to(w[:, None], v.shape)), unit)
        for v, w, unit in zip(values, weights, units, strict=True)
    ]
    return MassComparison(
        differences=together(
            differences_of(
                [(name, index + 1) for name, index in places],
                (sides[0], sides[1]),
                [MATTERS] * len(places),
                paired=paired,
            )
        ),
        rounds=(tables[0].num_rows, tables[1].num_rows),
        same_rounds=paired,
    )


def mass_sentence(masses: MassComparison) -> str:
    """Return that no difference of a point is shown, and over which rounds; "" if one is shown, or
    if nothing is compared."""
    if not masses.differences or any(row.differs for row in masses.differences):
        return ""
    first, second = masses.rounds
    rounds = (
        f"the {count(first, 'recorded round')} that both runs verified"
        if masses.same_rounds
        else f"{first:,} and {count(second, 'recorded round')} that were verified"
    )
    depth = max(row.depth or 1 for row in masses.differences)
    return f"Attention: no difference of a point at depths 1 and {depth}, over {rounds}."


def _thinned(runs: tuple[Sums, Sums], pairing: Pairing) -> tuple[Codes, Codes]:
    """Return the paired requests, evenly thinned to those that have COMPARED chains at most."""
    both = (pairing.first, pairing.second)
    chains = max(int(run.recorded[of].sum()) for run, of in zip(runs, both, strict=True))
    every = max(1, -(-chains // COMPARED))
    return both[0][::every], both[1][::every]


def _chains(run: Sums, among: Codes | None, last: int) -> pa.Table:
    """Return the verified chains of some requests, or of a sample, all of whose masses are
    finite, by request and position."""
    in_steps = look_at(run, among)
    names, depths = tuple(COLUMNS.values()), tuple(dict.fromkeys((0, last)))
    rows = run.tables.of_parts(lambda part: internals(run.shape, part, in_steps, names, depths))
    known = np.all(
        [np.isfinite(floats(rows, name)) for name in rows.column_names if name not in KEY], axis=0
    )
    return rows.filter(pa.array(known)).sort_by([(name, "ascending") for name in KEY])


def _in_common(tables: list[pa.Table], pairing: Pairing) -> list[pa.Table]:
    """Return the rows of the rounds that both runs verified, in the same order."""
    keys: list[Matrix] = []
    for table, of in zip(tables, (pairing.first, pairing.second), strict=True):
        request = whole(table, KEY[0])
        pair = np.full(max(int(of.max(initial=0)), int(request.max(initial=0))) + 1, -1)
        pair[of] = np.arange(len(of))
        keys.append(pair[request] * _POSITIONS + whole(table, KEY[1]))
    _, first, second = np.intersect1d(keys[0], keys[1], return_indices=True)
    return [tables[0].take(pa.array(first)), tables[1].take(pa.array(second))]

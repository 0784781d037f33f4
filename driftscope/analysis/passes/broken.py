"""Pass over chains with a value that is not a finite number."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.figures.chain_shape import Elements, Shape
from driftscope.analysis.passes.chains import deep_enough
from driftscope.analysis.query.record_views import Derived
from driftscope.metrics.attention import finite
from driftscope.vocabulary import BY_DEPTH, MASSES

if TYPE_CHECKING:
    import ibis.expr.types as ir


@cache
def broken(shape: Shape, derived: Derived, taken: tuple[str, ...]) -> ir.Table:
    """Count the chains that contain a value that is not a finite number but should be.

    A class of slots that does not apply, or a quantity that was not recorded, does not count: among
    the masses `taken` in the run, at least one class must have a number at every depth and layer,
    and none may be infinite. Rows are examined closely only if the sum of some list is not finite.
    """
    import ibis

    rows = deep_enough(shape)
    states = [name for name in BY_DEPTH if name in taken]
    masses = [name for name in MASSES if name in taken]
    lists = Elements(rows, dict(derived), shape)
    kept = {name for name in (*states, *masses, "fc_rms") if name not in dict(derived)}
    suspect = [rows[name] if name == "fc_rms" else rows[name].sums() for name in sorted(kept)]
    rows = rows.filter(ibis.or_(*(~finite(each).fill_null(True) for each in suspect)))
    lists = Elements(rows, dict(derived), shape)
    wrong = [_broken_state(lists, name, shape) for name in states]
    wrong += [_broken_masses(lists, masses, index) for index in range(shape.width(MASSES[0]))]
    return rows.aggregate(chains=ibis.or_(ibis.literal(False), *wrong).sum())


def _broken_state(lists: Elements, name: str, shape: Shape) -> ir.BooleanValue:
    import ibis

    each = [~finite(lists.at(name, index)).fill_null(True) for index in range(shape.depths)]
    return lists.there(name) & ibis.or_(*each)


def _broken_masses(lists: Elements, masses: list[str], index: int) -> ir.BooleanValue:
    """Return whether the masses at one depth and layer are broken. NaN sorts above all numbers, so
    the least of several is NaN only if all are."""
    import ibis

    if not masses:
        return ibis.literal(False)
    values = [lists.at(name, index) for name in masses]
    there = ibis.or_(*(lists.there(name) for name in masses))
    least = ibis.least(*values)
    infinite = ibis.or_(*(each.isinf().fill_null(False) for each in values))
    return there & (infinite | least.isnull() | least.isnan())

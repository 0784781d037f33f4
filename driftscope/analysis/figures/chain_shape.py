"""Shape of a run's chains: their lists, and checks that all rows belong together.

Everything after the checks may rely on them.
"""

from __future__ import annotations

import functools
import operator
import shlex
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from driftscope.analysis.figures.requests import requests_that_finished
from driftscope.analysis.query.query_engine import whole
from driftscope.analysis.query.record_views import Tables, chains_too_long, table, two_drafters
from driftscope.errors import DamagedTraceError, MixedTraceError, NoDataError
from driftscope.vocabulary import AUX, BY_DEPTH, DISTANCE_MASS, MASS_CLASSES, MASSES, Execution

if TYPE_CHECKING:
    import ibis.expr.types as ir


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lengths of a run's chains, and contents of their lists."""

    k: int
    """Number of tokens of the longest chain."""
    ks: tuple[int, ...]
    """Chain lengths that the run asked for, ascending; there are several if K follows the batch
    size or changed while the server ran."""
    shorter: tuple[int, ...] = ()
    """Numbers of tokens below `k` that rounds drafted, ascending. Close to a length limit a round
    drafts fewer tokens than K."""
    depths: int
    """Number of depths for which figures of chains are made: `k` in a run of one K. In a run of
    several K, the figures use only chains with at least this length, so that every depth is
    compared over the same chains."""
    layers: int
    """Number of drafter layers with attention, at least 1."""
    aux: int
    """Number of captured target layers."""
    sink_slots: tuple[int, ...]
    sinkless: bool
    """Whether the probe looked for a sink and found none, so that there is no sink class."""
    absent: tuple[str, ...] = ()
    """Lists that no row has."""
    executions: tuple[str, ...] = ()
    """Executions of the drafter over all recorded chains that name one."""
    rate: float | None = None
    """Sampling rate of all chains; None if it changed, or is not above 0 and at most 1."""

    @property
    def mixed(self) -> bool:
        """Whether the run has chains of several K."""
        return len(self.ks) > 1

    def width(self, name: str) -> int:
        """Return the number of elements of the list column `name` that figures use."""
        return self.aux if name in AUX else self.depths * self.per_depth(name)

    def per_depth(self, name: str) -> int:
        """Return the number of elements of the list column `name` per depth; it must not be one of
        AUX."""
        return self.layers if name in MASSES else 1

    def masses(self) -> tuple[str, ...]:
        """Return the classes of which some row may have a mass."""
        return tuple(name for name in MASSES if name not in self.absent)

    def lists(self) -> tuple[str, ...]:
        """Return the lists that some row may have."""
        return tuple(name for name in (*MASSES, *BY_DEPTH, *AUX) if name not in self.absent)


Index: TypeAlias = "int | ir.IntegerColumn"
"""Index of an element: one for all rows, or one per row."""


class Elements:
    """Access to the lists of `table`, which lacks the `derived` ones; see
    `driftscope.trace.segments`.

    Unless `careful`, every element that exists is assumed to be a finite number.
    """

    def __init__(
        self, table: ir.Table, derived: dict[str, str], shape: Shape, *, careful: bool = True
    ) -> None:
        self._table, self._derived, self._shape = table, derived, shape
        self._careful = careful
        self._others = [name for name in shape.masses() if name != "generated_mass"]

    def is_stored(self, name: str) -> bool:
        """Return whether the list is a column of its own."""
        return name not in self._derived

    def there(self, name: str) -> ir.BooleanColumn:
        """Return whether the row has the list."""
        import ibis

        if name == "generated_mass" and name in self._derived:
            return ibis.or_(*(self._table[other].notnull() for other in self._others))
        return self._table[self._source(name)].notnull()

    def number(self, name: str) -> ir.IntegerScalar:
        """Return how many rows have the list."""
        if name == "generated_mass" and name in self._derived:
            return self.there(name).sum()
        return self._table[self._source(name)].count()

    def length(self, name: str) -> ir.IntegerColumn:
        """Return the length of the list, null if the row has none. A list that was left out is as
        long as the list from which it follows."""
        import ibis

        if name == "generated_mass" and name in self._derived:
            return ibis.coalesce(*(self._table[other].length() for other in self._others))
        return self._table[self._source(name)].length()

    def wanted(self, name: str) -> ir.IntegerColumn | int:
        """Return the length that the list should have, which depends on the depths of the row's own
        chain."""
        if name in AUX or not self._shape.mixed:
            return self._shape.width(name)
        return self._table.k * self._shape.per_depth(name)

    def at(self, name: str, index: Index) -> ir.FloatingColumn:
        """Return the element at `index`, from 0; null if the row has no such list or element."""
        if name not in self._derived:
            # Spark accepts no 64-bit list index.
            place = index if isinstance(index, int) else index.cast("int32")
            return self._table[name][place].cast("float64")
        if name == "generated_mass":
            return self._complement(index)
        if name == "in_rms":
            import ibis

            # The fc's output at depth 1, then the state fed from the depth before.
            if not isinstance(index, int) or index:
                return self.at("fed_rms", index - 1)
            fc = self._table.fc_rms.cast("float32").cast("float64")
            return ibis.ifelse(self.there("in_rms"), fc, ibis.null("float64"))
        return self.at(self._source(name), index)

    def layers(self, name: str, depth: Index) -> list[ir.FloatingColumn]:
        """Return the elements of a mass at one depth (from 0), one per layer."""
        start = depth * self._shape.layers
        return [self.at(name, start + layer) for layer in range(self._shape.layers)]

    def _source(self, name: str) -> str:
        """Return the stored column from which `name` follows and which has the same length."""
        while name in self._derived:
            name = self._derived[name]
        return name

    def _complement(self, index: Index) -> ir.FloatingColumn:
        import ibis

        others = [self._table[name][index].cast("float64") for name in self._others]
        if not self._careful:  # a row without the list has null or 0 here, which adds nothing
            return ibis.greatest(1.0 - functools.reduce(operator.add, others), 0.0)
        zero = [ibis.ifelse(other.isnull() | other.isnan(), 0.0, other) for other in others]
        left = ibis.greatest(1.0 - sum(zero), 0.0)
        return ibis.ifelse(self.there("generated_mass"), left, ibis.null("float64"))


BY_HEAD = "head_mass"
OPTIONAL = ("sink_mass", "null_mass", *AUX, BY_HEAD, DISTANCE_MASS)
"""Lists that a drafter may lack, or whose recording may be switched off; files never leave them out
because they follow from others."""


@cache
def kinds_of_chains() -> ir.Table:
    """Return the chain lengths, layers and executions that occur, with their number of chains and
    the lowest and highest sampling rate."""
    rows = table("draft")
    kinds = rows.group_by("k", "layers", "execution")
    return kinds.aggregate(chains=rows.count(), low=rows.rate.min(), high=rows.rate.max())


@cache
def one_with(name: str) -> ir.Table:
    """Return one row that has a list, if there is any; an engine stops reading when it has found
    one."""
    rows = table("draft")
    return rows.filter(rows[name].notnull()).select("k").limit(1)


@cache
def captured_in(name: str) -> ir.Table:
    """Return the number of states in the list `name`, from one row that has it, if there is any."""
    rows = table("draft")
    return rows.filter(rows[name].notnull()).select(states=rows[name].length()).limit(1)


@cache
def kinds_of_steps() -> ir.Table:
    """Return the chain lengths of the steps that drafted."""
    steps = table("step")
    return steps.filter(steps.chains > 0).group_by("k").aggregate(rows=lambda t: t.count())


@cache
def lengths_of_rounds() -> ir.Table:
    """Return the numbers of tokens of which rounds verified a draft."""
    rows = table("verify")
    return rows.filter(rows.verified > 0).group_by("verified").aggregate(rows=lambda t: t.count())


def captured_states(tables: Tables) -> int:
    """Return the length of the lists in `AUX`, which is the number of layers that the manifest
    names.

    Older manifests may name none although the chains have states: for a drafter whose config names
    no layers, the probe did not yet read them from the engine. The length is then taken from the
    chains.
    """
    if tables.manifest.aux_layers:
        return len(tables.manifest.aux_layers)
    lengths = (whole(tables.engine.rows(captured_in(name)), "states") for name in AUX)
    return max((length for column in lengths for length in column.tolist()), default=0)


ENOUGH_CHAINS = 50
"""Number of chains that must reach a depth for it to be shown in a run of several K: with fewer,
the standard error of a mean is more than a seventh of the spread between chains."""


def shape_of(tables: Tables) -> Shape:
    """Return the shape of a run's chains, which may have several K.

    If K follows the batch size, or changes while the server runs, that is still one run. Raises
    MixedTraceError for chains longer than the run was configured for, and for chains of drafters
    with different numbers of layers: such files come from two runs.
    """
    manifest, rows = tables.manifest, tables.engine.rows
    kinds = rows(kinds_of_chains())
    by_k: Counter[int] = Counter()
    for length, number in zip(whole(kinds, "k"), whole(kinds, "chains"), strict=True):
        by_k[int(length)] += int(number)
    enough = min(ENOUGH_CHAINS, by_k.total() / 2)
    reached = [n for n in by_k if sum(by_k[longer] for longer in by_k if longer >= n) >= enough]
    rates = {rate for end in ("low", "high") for rate in kinds.column(end).to_pylist()}
    rate = rates.pop() if len(rates) == 1 else None
    asked = {*by_k, *whole(rows(kinds_of_steps()), "k").tolist()}
    verified = set(whole(rows(lengths_of_rounds()), "verified").tolist())
    ks = tuple(sorted(asked)) or (manifest.k,)
    k = max(*ks, *verified) if verified else ks[-1]
    if k > manifest.k:
        raise MixedTraceError(chains_too_long(tables, manifest.k, k))
    layers = sorted(set(whole(kinds, "layers").tolist()))
    if len(layers) > 1:
        raise MixedTraceError(two_drafters(tables, layers))
    return Shape(
        k=k,
        ks=ks,
        shorter=tuple(sorted(n for n in verified if n < k)),
        depths=max(reached) if len(ks) > 1 and by_k else k,
        layers=max(layers[0], 1) if layers else 1,
        aux=captured_states(tables),
        sink_slots=tuple(manifest.sink_slots),
        sinkless=manifest.sinkless,
        absent=tuple(name for name in OPTIONAL if not rows(one_with(name)).num_rows),
        executions=tuple(sorted(set(kinds.column("execution").to_pylist()) - {Execution.UNSEEN})),
        rate=rate if rate and 0 < rate <= 1 else None,
    )


def check_chains(tables: Tables, chains: pa.Table, shape: Shape) -> None:
    """Raise DamagedTraceError for rates and lists that no writer produces.

    Per-depth lists have as many elements as the chain has tokens; masses have that many times the
    drafter's layers.
    """
    if whole(chains, "bad_rates").sum():
        raise DamagedTraceError(
            f"{tables.path}: draft rows whose sampling rate is not above 0 and at most 1; "
            "the run's files are damaged"
        )
    for name in shape.lists():
        if whole(chains, f"{name}_misfits").sum():
            wanted = str(shape.width(name))
            if shape.mixed and name not in AUX:
                numbers = shape.per_depth(name)
                wanted = "K" if numbers == 1 else f"K times {numbers}"
            raise DamagedTraceError(
                f"{tables.path}: draft rows whose {name} is not {wanted} long; "
                "the run's files are damaged or not from one run"
            )
    if "bad_heads" in chains.column_names and whole(chains, "bad_heads").sum():
        raise DamagedTraceError(
            f"{tables.path}: draft rows whose head_mass is not K times layers times heads times "
            f"{len(MASS_CLASSES)} long; the run's files are damaged or not from one run"
        )


def check_rounds(tables: Tables, rounds: pa.Table) -> None:
    """Raise DamagedTraceError for impossible rounds, and NoDataError if there are no rounds."""
    if whole(rounds, "wrong").sum():
        raise DamagedTraceError(
            f"{tables.path}: verify rows with more tokens accepted than verified; "
            "the run's files are damaged or not from one run"
        )
    if not whole(rounds, "rounds").sum() and tables.conditions:
        raise NoDataError(
            f"{tables.path}: no round in it meets {' and '.join(map(str, tables.conditions))}; "
            f"`driftscope analyze {shlex.quote(str(tables.path))}` says what is in it"
        )
    if not whole(rounds, "rounds").sum():
        finished = tables.engine.rows(requests_that_finished()).num_rows
        undrafted = whole(rounds, "undrafted").sum()
        raise NoDataError(
            f"{tables.path}: no round in it ({finished} requests, {undrafted} "
            "steps without a draft); send requests to the server while the probe is on, and see "
            "its log for why the drafter drafts nothing"
        )

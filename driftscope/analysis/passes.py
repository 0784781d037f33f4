"""The passes over a run's rows: each yields sums by request or by group of requests.

Everything else in `driftscope.analysis` is arithmetic on these small tables. A query reads views of
the names of `driftscope.analysis.tables` and is built once per shape of run.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from driftscope.analysis.elements import Elements
from driftscope.analysis.shape import AUX, BY_DEPTH, MASSES, Shape
from driftscope.analysis.tables import PART, Derived, queried
from driftscope.metrics import attention
from driftscope.metrics.chains import finite, weight_of, weighted
from driftscope.trace.records import MASS_CLASSES, UndraftedReason

if TYPE_CHECKING:
    import ibis.expr.types as ir

REQUEST = ("replica", "request")
"""What names a request: replicas that know nothing of each other name them alike."""
BY_HEAD = "head_mass"
OPTIONAL = ("sink_mass", "null_mass", *AUX, BY_HEAD)
"""Lists that a drafter may lack, or that may not have been asked for; files never leave them out
for following from others."""
CLUSTERS = "clusters"
"""A view that says which cluster each request belongs to."""
SUSPECTS = "suspects"
"""A view of some requests, numbered, that are looked at more closely."""


def top(name: str, index: int) -> str:
    """The column of a mean's top."""
    return f"{name}_{index}_top"


def bottom(name: str, index: int) -> str:
    """The column of a mean's bottom."""
    return f"{name}_{index}_bottom"


def table(name: str, record: str | None = None) -> ir.Table:
    """The view `name`, which has the columns of a record."""
    import ibis

    return ibis.table(ibis.Schema.from_pyarrow(queried(record or name)), name=name)


def clusters(name: str = CLUSTERS) -> ir.Table:
    """A view that numbers requests."""
    import ibis

    columns = {"replica": "int64", "request": "string", "cluster": "int64"}
    return ibis.table(columns, name=name)


@cache
def kinds_of_chains() -> ir.Table:
    """Chain lengths and layers that occur."""
    return table("draft").group_by("k", "layers").aggregate(rows=lambda t: t.count())


@cache
def kinds_of_steps() -> ir.Table:
    """Chain lengths of the steps that drafted."""
    steps = table("step")
    return steps.filter(steps.chains > 0).group_by("k").aggregate(rows=lambda t: t.count())


@cache
def rows_with() -> ir.Table:
    """How many draft rows hold each list that most drafters lack."""
    rows = table("draft")
    return rows.aggregate(**{name: rows[name].count() for name in OPTIONAL})


@cache
def requests_of_chains() -> ir.Table:
    """The requests that have a recorded chain."""
    draft = table("draft")
    return draft.group_by(*REQUEST).aggregate(first_s=draft.time_s.min())


@cache
def requests_that_finished() -> ir.Table:
    """The request rows, a row each."""
    rows = table("request")
    return rows.select(
        *REQUEST, "label", "arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s",
        "temperature", "finish_reason", "time_s",
    ).order_by("time_s", *REQUEST)  # fmt: skip


@cache
def rounds(k: int) -> ir.Table:
    """Decode steps by request."""
    rows = table("verify")
    return rows.group_by(*REQUEST).aggregate(**_rounds(rows, k))


def _rounds(rows: ir.Table, k: int) -> dict[str, Any]:
    drafted, accepted = rows.drafted.fill_null(0), rows.accepted.fill_null(0)
    is_round = drafted > 0
    lost = rows.reason == UndraftedReason.STRUCTURED_OUTPUT
    meant = rows.reason.isin(UndraftedReason.DELIBERATE)
    return {
        "rounds": is_round.sum(),
        "drafted": drafted.sum(),
        "most_drafted": drafted.max(),
        "short": (is_round & (drafted < k)).sum(),
        "wrong": ((accepted > drafted) | (accepted < 0)).sum(),
        "undrafted": (~is_round).sum(),
        "structured": (~is_round & lost.fill_null(False)).sum(),
        "deliberate": (~is_round & meant.fill_null(False)).sum(),
        "first_s": rows.time_s.min(),
        "last_s": rows.time_s.max(),
        "prompt_end": rows.position.min(),
        **{f"accepted_{n}": (is_round & (accepted == n)).sum() for n in range(k + 1)},
    }


@cache
def drafted_more_than(k: int) -> ir.Table:
    """Chain lengths of rounds that are longer than `k`."""
    rows = table("verify")
    return rows.filter(rows.drafted > k).group_by("drafted").aggregate(rows=lambda t: t.count())


@cache
def duration() -> ir.Table:
    """Time of the first and the last decode step."""
    rows = table("verify")
    return rows.aggregate(first_s=rows.time_s.min(), last_s=rows.time_s.max())


@cache
def buckets() -> ir.Table:
    """The view of the buckets that a run is cut into."""
    import ibis

    return ibis.table({"bucket": "string"}, name="buckets")


@cache
def undrafted() -> ir.Table:
    """Decode steps without a draft, by reason."""
    rows = table("verify")
    none = rows.filter(rows.drafted.fill_null(0) == 0)
    return none.group_by("reason").aggregate(rows=lambda t: t.count())


@cache
def chains(shape: Shape, derived: Derived) -> ir.Table:
    """Recorded chains of one file layout by cluster: sums of all that was measured in them."""
    rows = table(PART, "draft")
    mine = rows.join(clusters(), REQUEST)
    lists = Elements(mine, dict(derived), shape)
    weight = 1.0 / mine.rate
    return mine.group_by("cluster").aggregate(
        chains=mine.count(),
        weight=weight.sum(),
        chunked=mine.chunked_prefill.fill_null(False).sum(),
        bad_rates=(~((mine.rate > 0) & (mine.rate <= 1)).fill_null(False)).sum(),
        **_bad_heads(mine, shape),
        **_presence(lists, shape, weight),
        **_masses(lists, shape, weight),
        **_by_depth(lists, shape, weight),
        **_no_drift(mine, lists, shape, weight),
    )


def _bad_heads(rows: ir.Table, shape: Shape) -> dict[str, Any]:
    """Rows whose masses by head do not fit their heads."""
    if BY_HEAD in shape.absent:
        return {}
    wanted = rows.k * rows.layers * rows.heads * len(MASS_CLASSES)
    return {"bad_heads": (rows.head_mass.length() != wanted).fill_null(False).sum()}


def _presence(lists: Elements, shape: Shape, weight: ir.NumericColumn) -> dict[str, Any]:
    """How many rows have each list, what they weigh, and how many are not as long as they should
    be."""
    import ibis

    out: dict[str, Any] = {}
    for name in shape.lists():
        there = lists.there(name)
        out[f"{name}_rows"] = there.sum()
        out[f"{name}_weight"] = ibis.ifelse(there, weight, ibis.null("float64")).sum()
        out[f"{name}_misfits"] = (lists.length(name) != shape.width(name)).sum()
    return out


def _masses(lists: Elements, shape: Shape, weight: ir.NumericColumn) -> dict[str, Any]:
    """By layer, and where there are several, their mean per chain too."""
    out: dict[str, Any] = {}
    for name in shape.masses():
        for index in range(shape.width(name)):
            out |= _mean(name, index, lists.at(name, index), weight)
        for depth in range(shape.k) if shape.layers > 1 else ():
            mean = attention.over_layers(lists.layers(name, depth))
            out |= _mean(f"{name}_mean", depth, mean, weight)
    return out


def _by_depth(lists: Elements, shape: Shape, weight: ir.NumericColumn) -> dict[str, Any]:
    import ibis

    out: dict[str, Any] = {}
    for name in shape.lists():
        if name in MASSES:
            continue
        for index in range(shape.width(name)):
            out |= _mean(name, index, lists.at(name, index), weight)
    first, last = lists.at("fed_rms", 0), lists.at("fed_rms", shape.k - 1)
    good = finite(first) & finite(last)
    for name, value in (("fed_first", first), ("fed_last", last)):
        out[name] = ibis.ifelse(good, value * weight, ibis.null("float64")).sum()
    return out


def _no_drift(
    rows: ir.Table, lists: Elements, shape: Shape, weight: ir.NumericColumn
) -> dict[str, Any]:
    import ibis

    if "self_mass" in shape.absent or ("sink_mass" in shape.absent and not shape.sinkless):
        return {}
    nothing = ibis.null("float64")
    null = _first(lists, shape, "null_mass")
    if shape.sinkless:
        sink = ibis.ifelse(finite(_first(lists, shape, "self_mass")), 0.0, nothing)
    else:
        sink = _first(lists, shape, "sink_mass")
    visible = attention.visible_sink(rows.position, shape.sink_slots)
    usable = ibis.ifelse(finite(sink), sink, nothing)
    each = attention.slot_weight(
        attention.free_slots(rows.position, visible), usable, null.fill_null(0.0)
    )
    out: dict[str, Any] = {}
    for depth in range(1, shape.k + 1):
        out |= _mean("no_drift", depth - 1, attention.no_drift_self(each, depth), weight)
    even = attention.even_share(rows.position, visible)
    even = ibis.ifelse(finite(sink), even, nothing)
    return out | _mean("even_sink", 0, even, weight)


def _first(lists: Elements, shape: Shape, name: str) -> ir.FloatingValue:
    """A mass at depth 1, over layers."""
    import ibis

    if name in shape.absent:
        return ibis.null("float64")
    return attention.over_layers(lists.layers(name, 0))


def _mean(
    name: str, index: int, value: ir.FloatingColumn, weight: ir.NumericColumn
) -> dict[str, Any]:
    return {
        top(name, index): weighted(value, weight),
        bottom(name, index): weight_of(value, weight),
    }


@cache
def broken(shape: Shape, derived: Derived, taken: tuple[str, ...]) -> ir.Table:
    """How many chains hold a value that is no finite number, and should.

    A class of slots that does not apply, or a quantity that was not taken, breaks nothing: of the
    masses `taken` in the run, some class has a number at every depth and layer, and none is
    infinite. Rows are looked at closely only where the sum of some list is no finite number.
    """
    import ibis

    rows = table(PART, "draft")
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

    each = [~finite(lists.at(name, index)).fill_null(True) for index in range(shape.k)]
    return lists.there(name) & ibis.or_(*each)


def _broken_masses(lists: Elements, masses: list[str], index: int) -> ir.BooleanValue:
    """NaN sorts above all numbers: the least of some is NaN where all are."""
    import ibis

    if not masses:
        return ibis.literal(False)
    values = [lists.at(name, index) for name in masses]
    there = ibis.or_(*(lists.there(name) for name in masses))
    least = ibis.least(*values)
    infinite = ibis.or_(*(each.isinf().fill_null(False) for each in values))
    return there & (infinite | least.isnull() | least.isnan())


@cache
def repeated_chains() -> ir.Table:
    """How many positions of a request were drafted more than once."""
    return _repeated(table("draft"))


@cache
def repeated_rounds() -> ir.Table:
    """How many positions of a request were verified more than once."""
    rows = table("verify")
    return _repeated(rows.filter(rows.drafted > 0))


def _repeated(rows: ir.Table) -> ir.Table:
    keys = rows.group_by(*REQUEST, "position").aggregate(rows=lambda t: t.count())
    return keys.filter(keys.rows > 1).aggregate(keys=lambda t: t.count())


@cache
def verified(repeated: bool) -> ir.Table:
    """Recorded chains beside the round that verified them, a row for each that was.

    The engine core writes a round later than the worker wrote its chain, or dies in between, so a
    round belongs to the latest chain of its request and position. A request's last chain is often
    never verified, and with sampling most rounds have no recorded chain. Positions that were not
    `repeated` need no search for the latest.
    """
    import ibis

    draft, rounds = table("draft"), table("verify")
    drawn = draft.select(
        *REQUEST, "position", "top1", "rate", "execution", drafted_s=draft.time_s, drawn=draft.k
    )
    done = rounds.filter(rounds.drafted > 0).select(*REQUEST, "position", "accepted", "time_s")
    key = (*REQUEST, "position")
    if not repeated:
        both = done.join(drawn, [*key, done.time_s >= drawn.drafted_s])
        return both.select(*key, "accepted", "top1", "rate", "execution", "drawn", "drafted_s")
    order = ibis.window(group_by=key, order_by="drafted_s")
    drawn = drawn.mutate(next_s=drawn.drafted_s.lead().over(order))
    both = done.join(drawn, [*key, done.time_s >= drawn.drafted_s])
    both = both.filter(both.next_s.isnull() | (both.time_s < both.next_s))
    latest = ibis.window(group_by=(*key, "drafted_s"), order_by=both.time_s.desc())
    both = both.mutate(place=ibis.row_number().over(latest))
    both = both.filter(both.place == 0)
    return both.select(*key, "accepted", "top1", "rate", "execution", "drawn", "drafted_s")


@cache
def number_verified(repeated: bool) -> ir.Table:
    """How many recorded chains have their round in the run."""
    return verified(repeated).aggregate(chains=lambda t: t.count())


@cache
def reliability(k: int, bins: int, repeated: bool) -> ir.Table:
    """Confidence and acceptance of verified chains by depth and bin of confidence.

    Only depths that verification reached: what the target made of a token after a rejected one is
    not known.
    """
    import ibis

    both = verified(repeated)
    both = both.filter(both.top1.notnull())
    depth = ibis.range(0, k).unnest()
    deep = both.select("accepted", "top1", weight=1.0 / both.rate, depth=depth)
    deep = deep.filter(deep.accepted >= deep.depth)
    sure = deep.top1[deep.depth].cast("float64")
    deep = deep.select("depth", "weight", hit=deep.accepted > deep.depth, sure=sure)
    deep = deep.filter(finite(deep.sure))
    deep = deep.mutate(bin=ibis.least((deep.sure * bins).floor().cast("int64"), bins - 1))
    return deep.group_by("depth", "bin").aggregate(
        tokens=deep.count(),
        weight=deep.weight.sum(),
        sure=(deep.sure * deep.weight).sum(),
        accepted=ibis.ifelse(deep.hit, deep.weight, 0.0).sum(),
    )


@cache
def executions() -> ir.Table:
    """How the drafter ran, over all recorded chains."""
    return table("draft").group_by("execution").aggregate(rows=lambda t: t.count())


@cache
def by_execution(k: int, repeated: bool) -> ir.Table:
    """Verified chains by execution and request."""
    both = verified(repeated)
    return both.group_by("execution", *REQUEST).aggregate(
        rounds=both.count(),
        drafted=both.drawn.sum(),
        short=(both.drawn < k).sum(),
        **{f"accepted_{n}": (both.accepted == n).sum() for n in range(k + 1)},
    )


@cache
def by_context(k: int) -> ir.Table:
    """Rounds by request and by the power of two below the length of the context."""
    import ibis

    rows = table("verify")
    rows = rows.filter(rows.drafted > 0)
    power = ibis.greatest(rows.position + 1, 1).log2().floor().cast("int64")
    rows = rows.mutate(bucket=power)
    return rows.group_by("bucket", *REQUEST).aggregate(**_rounds(rows, k))


@cache
def by_batch(k: int) -> ir.Table:
    """Rounds by request and by the power of two below the number of requests in their step."""
    rows = table("verify")
    place = ("replica", "step")
    sizes = rows.group_by(*place).aggregate(size=rows.count())
    rows = rows.filter(rows.drafted > 0).join(sizes, place)
    rows = rows.mutate(bucket=rows.size.log2().floor().cast("int64"))
    return rows.group_by("bucket", *REQUEST).aggregate(**_rounds(rows, k))


@cache
def whole_at_the_end(k: int, last: int) -> ir.Table:
    """Of the requests in SUSPECTS, how many of their `last` rounds were drafted and accepted
    whole."""
    import ibis

    rows = table("verify")
    rows = rows.filter(rows.drafted > 0).join(clusters(SUSPECTS), REQUEST)
    order = ibis.window(group_by="cluster", order_by=rows.time_s.desc())
    rows = rows.mutate(back=ibis.row_number().over(order))
    rows = rows.filter(rows.back < last)
    taken = (rows.drafted == k) & (rows.accepted >= k)
    return rows.group_by("cluster").aggregate(whole=taken.sum())


@cache
def steps() -> ir.Table:
    """What steps cost in all."""
    rows = table("step")
    return rows.aggregate(
        steps=rows.count(),
        probe_s=rows.probe_s.sum(),
        step_s=rows.step_s.sum(),
        drew=(rows.chains > 0).sum(),
        plain=((rows.chains > 0) & ~rows.recorded).sum(),
    )


@cache
def typical_step(recorded: bool, exact: bool) -> ir.Table:
    """Median times of steps that drafted, of unrecorded ones only unless `recorded`, without the
    probe's own; not `exact`: by a sketch that merges (t-digest)."""
    rows = table("step")
    rows = rows.filter(rows.chains > 0)
    rows = rows if recorded else rows.filter(~rows.recorded)
    step_s, draft_s = rows.step_s - rows.probe_s, rows.draft_s - rows.probe_s
    if exact:
        return rows.aggregate(step_s=step_s.median(), draft_s=draft_s.median())
    return rows.aggregate(step_s=step_s.approx_median(), draft_s=draft_s.approx_median())


BLOCK_STEPS = 1000
"""Neighbouring steps that stay together where not all are read."""


@cache
def steps_in_blocks(each: int) -> ir.Table:
    """Every `each`-th block of neighbouring steps, a row each."""
    rows = table("step")
    if each > 1:
        rows = rows.filter((rows.step // BLOCK_STEPS) % each == 0)
    return rows.select(
        "replica", "step", "time_s", "requests", "chains", "k", "recorded", "step_s", "draft_s",
        "probe_s", "gpu_draft_s", "gpu_probe_s",
    )  # fmt: skip

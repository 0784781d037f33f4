"""Sections on the drafter: every quantity over depth, what acceptance goes with, and whether
its confidence predicts acceptance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from driftscope.analysis.figures.attention_drift import (
    MARGIN,
    AttentionDrift,
    ByDistance,
    DriftAnswer,
)
from driftscope.analysis.figures.calibration import CalibrationAtDepth
from driftscope.analysis.figures.near_misses import NearMisses
from driftscope.analysis.figures.results import ByDepth
from driftscope.analysis.figures.verified_chains import answers
from driftscope.analysis.number_words import (
    NOTHING,
    between_percent,
    listed,
    number,
    percent,
    times,
)
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.strata import Association
from driftscope.analysis.statistics.strata import AssociationAnswer as Relation
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import capital
from driftscope.findings.rules_attention import CAVEAT, clauses, has_sink, shift_words
from driftscope.metrics import attention, hidden
from driftscope.metrics.acceptance import CONDITIONAL, MARGINAL, MEAN_LENGTH, WITHIN_REQUEST
from driftscope.metrics.confidence import (
    AUROC,
    BIAS,
    BRIER,
    ECE,
    NEAR_MISSES,
    RELIABILITY,
    SURVIVAL_ECE,
    TEMPERATURE,
    TOP1,
)
from driftscope.pipeline import Analysis
from driftscope.vocabulary import CHOOSES_LENGTH
from driftscope_reports.charts import (
    Axis,
    Band,
    Unit,
    area,
    bars,
    expectation,
    figure,
    line,
    scaled,
)
from driftscope_reports.model import (
    Picture,
    Section,
    about,
    axis_name,
    by_depth,
    by_run,
    by_run_table,
)
from driftscope_reports.page import part

_Runs = Sequence[RunSummary]


def drift(analysis: Analysis) -> Section:
    """Return acceptance, masses and hidden state by depth."""
    runs = analysis.runs
    layers = [p for i, run in enumerate(runs) for p in _layers(i, run, runs)]
    areas = [_masses(i, run, runs) for i, run in enumerate(runs) if run.attention.by_layer]
    areas += layers
    lines = [*_overlaid_masses(runs), *_hidden(runs)]
    inside = bool(areas or lines)
    missing = (
        None
        if inside
        else "Nothing was measured inside the drafter, so only acceptance can be shown; attention "
        "masses and hidden state are not applicable."
    )
    # Attention by distance of each run that recorded it, and its shift by depth.
    known = [(i, run, run.attention_drift) for i, run in enumerate(runs) if run.attention_drift]
    moved = [
        _by_distance(i, run, found, found.distances, runs)
        for i, run, found in known
        if found.distances is not None
    ]
    moved += _shifts(known, runs)
    # In short: whether attention drifts and the hidden state grows.
    found = [run.attention_drift for run in runs]
    drifts = [_DRIFTS[drift.answer if drift else DriftAnswer.CANNOT_TELL] for drift in found]
    conclusion = f"Attention drift over depth: {by_run(runs, drifts)}."
    growth = [times(run.hidden.growth) for run in runs]
    if any(factor != NOTHING for factor in growth):
        conclusion += f" Hidden state: {by_run(runs, growth)}."
    return Section(
        id="drift",
        name="The drift picture",
        lead="Point at a depth, or press the arrow keys in a picture, to mark that depth in all "
        "pictures of this page.",
        conclusion=conclusion,
        pictures=[*moved, *areas, *acceptance(runs), *lines],
        affects=("masses", "acceptance"),
        missing=missing,
    )


_DRIFTS = {
    DriftAnswer.DRIFT: "yes",
    DriftAnswer.NO_DRIFT: "no",
    DriftAnswer.CANNOT_TELL: "cannot tell",
}


# ---- acceptance


def marginal_acceptance(runs: _Runs, **how: Any) -> Picture:
    """Return the picture of the marginal rates by depth, with all runs in it; `how` as in
    `charts.figure`."""
    rates = [
        line(
            _pooled(run),
            run.acceptance.marginal,
            run=i,
            intervals=run.acceptance.marginal_interval or (),
        )
        for i, run in enumerate(runs)
    ]
    parts = [
        f"{percent(run.acceptance.marginal[0])} to {percent(run.acceptance.marginal[-1])}"
        for run in runs
    ]
    last = {run.k for run in runs}
    end = f"{axis_name(runs)} {last.pop()}" if len(last) == 1 else "the last one"
    return Picture(
        id="acceptance-marginal",
        title=f"From {axis_name(runs)} 1 to {end}, acceptance goes from {by_run(runs, parts)}",
        how="Share of the rounds drafting this deep that are accepted up to this depth, so the "
        "line can only fall. Bars are 95% intervals.",
        chart=by_depth(runs, rates, "of all rounds", unit=Unit.SHARE, **how),
        definitions=(MARGINAL, MEAN_LENGTH),
    )


def acceptance(runs: _Runs) -> list[Picture]:
    """Return the pictures of the conditional rates, and of acceptance by K."""
    conditional = [
        line(
            _pooled(run),
            run.acceptance.conditional,
            run=i,
            intervals=run.spread.get("conditional", ()),
        )
        for i, run in enumerate(runs)
    ]
    known, worst = [], []
    for run in runs:
        rates = [(r, d) for d, r in enumerate(run.acceptance.conditional, start=1) if r is not None]
        if rates:
            rate, depth = min(rates)
            known.append(run)
            worst.append((depth, percent(rate)))
    title = f"Acceptance given the previous {axis_name(runs)}"
    if len({depth for depth, _ in worst}) == 1:
        at = f"{worst[0][0]}: {by_run(known, [share for _, share in worst])}"
    else:
        at = by_run(known, [f"{depth}: {share}" for depth, share in worst])
    if worst:
        title = f"The hardest {axis_name(runs)} is {at} are accepted at it"
    return [
        Picture(
            id="acceptance-conditional",
            title=title,
            how="Share of the rounds accepted up to the previous depth that are also accepted at "
            "this one. At large depths only a few easy rounds remain, which keep it high: judge by "
            "the marginal rate.",
            chart=by_depth(runs, conditional, "of rounds accepted so far", unit=Unit.SHARE),
            definitions=(CONDITIONAL,),
        ),
        *(_by_k(run, runs) for run in runs if run.acceptance.by_k),
    ]


def _pooled(run: RunSummary) -> str:
    """Return the name of the line over all rounds. If rounds drafted several K, what decides K may
    decide acceptance as well, so the line holds for these rounds only."""
    if run.mixed:
        return f"{run.label}, as served"
    chosen = run.manifest.method in CHOOSES_LENGTH and run.recording.short_rounds
    return f"{run.label}, length chosen by the drafter" if chosen else run.label


def _by_k(run: RunSummary, runs: _Runs) -> Picture:
    """Return the picture of acceptance for each K that the run drafted."""
    parts = run.acceptance.by_k
    lines = [
        line(
            f"K = {p.k}",
            p.marginal,
            run=runs.index(run),
            look=look,
            intervals=p.marginal_interval or (),
        )
        for look, p in enumerate(parts)
    ]
    lengths = [f"{number(p.mean_length)} at K = {p.k}" for p in parts]
    return Picture(
        id=f"acceptance-by-k-{runs.index(run)}",
        title=about(run, runs, f"rounds yield {listed(lengths)}"),
        how="Acceptance of the rounds that drafted each K. Lines may differ because K follows the "
        "batch size, or because other requests were served when K was changed: that is an effect "
        "of the traffic, not of K alone.",
        chart=by_depth([run], lines, "of rounds with this K", unit=Unit.SHARE),
        definitions=(MARGINAL, MEAN_LENGTH),
    )


# ---- attention

CLASSES = {
    "self": ("the chain itself", attention.SELF, "/"),
    "generated": ("verified output", attention.GENERATED, ""),
    "prompt": ("prompt", attention.PROMPT, "."),
    "sink": ("sink", attention.SINK, "x"),
    "null": ("nothing (sink bias)", attention.NULL, "-"),
}
"""Classes of slots, the lowest area first: name, definition, and fill pattern."""
_ON = {"prompt": "the prompt", "sink": "the sink"}
"""Names of classes in a sentence, if they differ."""


def _masses(index: int, run: RunSummary, runs: _Runs) -> Picture:
    """Return the masses by depth of a run that has any, as areas."""
    own, kind = run.attention.self_mass, run.manifest.query_kind
    words = f"attention by {kind}"
    if own is not None:
        words = (
            f"at {kind} {run.depths} the chain's own draft tokens get {percent(own[-1])} of the "
            "attention"
        )
    areas = mass_areas({name: getattr(run.attention, f"{name}_mass") for name in CLASSES})
    return Picture(
        id=f"attention-{index}",
        title=about(run, runs, words),
        how="Share of the drafter's attention on its own draft tokens (bottom), on verified "
        "output, prompt and sink. Its own share grows by construction, because its tokens take "
        f"the nearest places.{_NO_SINK if has_sink(run) is False else ''}",
        chart=by_depth([run], areas, "share of attention", unit=Unit.SHARE),
        definitions=tuple(definition for _, definition, _ in CLASSES.values()),
        hero=True,
    )


_NO_SINK = " This drafter has no attention sink, so statements about sink loss do not apply."


def mass_areas(masses: Mapping[str, ByDepth | None]) -> list[Any]:
    """Return areas stacked to 1 from the masses by class, the chain's own at the bottom. They are
    cut where the stack has reached 1: the mean over only those layers to which a class applies can
    exceed its share of all layers."""
    traces: list[Any] = []
    base: list[float] = []
    for name, (words, _, pattern) in CLASSES.items():
        mass = masses.get(name)
        if mass is None:
            continue
        base = base or [0.0] * len(mass)
        fitting = [min(value, max(1.0 - low, 0.0)) for low, value in zip(base, mass, strict=True)]
        base = [a + b if math.isfinite(b) else a for a, b in zip(base, fitting, strict=True)]
        traces.append(area(words, fitting, colour=f"class-{name}", pattern=pattern))
    return traces


def _overlaid_masses(runs: _Runs) -> list[Picture]:
    """Return the chain itself and the sink of all runs as lines, because stacked areas cannot be
    compared between runs; [] if fewer than two have masses."""
    if sum(bool(run.attention.by_layer) for run in runs) < 2:
        return []
    out = []
    for name, read in _READ.items():
        words, definition, _ = CLASSES[name]
        known = [
            (i, run, v)
            for i, run in enumerate(runs)
            if (v := getattr(run.attention, f"{name}_mass"))
        ]
        drawn = [(i, run, v) for i, run, v in known if any(map(math.isfinite, v))]
        if not drawn:
            continue
        lines = [
            line(run.label, v, run=i, intervals=run.spread.get(f"{name}_mass", ()))
            for i, run, v in drawn
        ]
        ends = [f"{percent(v[0])} to {percent(v[-1])} ({run.label})" for _, run, v in drawn]
        out.append(
            Picture(
                id=f"masses-{name}",
                title=f"Attention on {_ON.get(name, words)}: {listed(ends)}",
                how=f"One of the classes above, with all runs in one picture. {read}",
                chart=by_depth(runs, lines, "share of attention", unit=Unit.SHARE),
                definitions=(definition,),
            )
        )
    return out


_READ = {
    "self": "It grows by construction, because the chain takes the nearest places.",
    "sink": "A line that falls to less than half is a lost sink; its height alone means nothing.",
}
"""Classes that are drawn once more with all runs, and how to read them."""


def _layers(index: int, run: RunSummary, runs: _Runs) -> list[Picture]:
    """Return the chain's own share by layer, for drafters with more than one layer."""
    by_layer = run.attention.by_layer.get("self_mass", ())
    if not by_layer or len(by_layer[0]) < 2:
        return []
    columns = list(zip(*by_layer, strict=True))
    lines = [line(f"layer {n}", values, run=index, look=n) for n, values in enumerate(columns)]
    ends = [(values[-1], n) for n, values in enumerate(columns) if math.isfinite(values[-1])]
    most = f"layer {max(ends)[1]} attends to it most" if ends else "by layer"
    return [
        Picture(
            id=f"attention-layers-{index}",
            title=about(run, runs, f"attention on the chain itself differs by layer; {most}"),
            how="One line per layer of the drafter: its share of attention on the chain's own "
            "draft tokens. If the lines are far apart, the mean over layers hides something.",
            chart=by_depth([run], lines, "on the chain itself", unit=Unit.SHARE),
            definitions=(attention.SELF,),
        )
    ]


# ---- attention drift

_POINTS = 100
"""Points of attention in the whole of it."""


def _by_distance(
    index: int, run: RunSummary, found: AttentionDrift, masses: ByDistance, runs: _Runs
) -> Picture:
    # The names of the bins: "3", "8 to 15", "64 on".
    inner = [
        f"{first}" if beyond == first + 1 else f"{first} to {beyond - 1}"
        for first, beyond in pairwise(masses.edges)
    ]
    places = [*inner, f"{masses.edges[-1]} on", "sink"]
    expected = expectation(
        f"{axis_name([run])} 1, expected at every {axis_name([run])}",
        [*masses.first, masses.sink[0]],
        x=places,
    )
    last = bars(
        f"{axis_name([run])} {found.depths}",
        places,
        [*masses.last, masses.sink[1]],
        run=index,
        pattern="",
    )
    return Picture(
        id=f"distance-{index}",
        title=about(run, runs, shift_words(found)),
        how="Each bar is the share of attention, at the last depth, on tokens that lie this many "
        f"places before the query. The dashed line is the same at {axis_name([run])} 1: a drafter "
        "without drift stays on it, however much it prefers recent tokens.",
        chart=figure(
            [last, expected],
            x_title="places before the query",
            y_title="share of attention",
            axis=Axis.CATEGORY,
            unit=Unit.SHARE,
        ),
        note=f"Between the two, {_POINTS * masses.variation[-1]:.1f} points of the attention lie "
        "elsewhere (total variation).",
        definitions=(attention.NEAR_SHIFT, attention.SINK),
    )


def _shifts(known: Sequence[tuple[int, RunSummary, AttentionDrift]], runs: _Runs) -> list[Picture]:
    drawn = [(i, run, found, found.near_shift) for i, run, found in known if found.near_shift]
    if not drawn:
        return []
    lines = [
        line(
            run.label,
            [_POINTS * estimate.value for estimate in estimates],
            run=i,
            intervals=[scaled(estimate.interval, _POINTS) for estimate in estimates],
        )
        for i, run, _, estimates in drawn
    ]
    margin = _POINTS * MARGIN
    return [
        Picture(
            id="near-shift",
            title=f"Attention that moves to near tokens, by {axis_name(runs)}",
            how="Points of attention on the nearest places beyond those at the first depth, with "
            "95% intervals. In the shaded band there is no drift; an interval above it at the last "
            "depth is drift.",
            chart=by_depth(
                [run for _, run, *_ in drawn],
                lines,
                "points of attention",
                level=0.0,
                band=Band(low=-margin, high=margin, text=f"within ±{margin:g} points: no drift"),
            ),
            definitions=(attention.NEAR_SHIFT,),
        )
    ]


# ---- hidden state

_SIZES = (
    ("fed_rms", hidden.FED_RMS, "The size of the state that each depth feeds to the next."),
    ("in_rms", hidden.IN_RMS, "The size of the state that enters the drafter's first layer."),
    ("prenorm_rms", hidden.PRENORM_RMS, "The size of the state after the drafter's last layer."),
    (
        "postnorm_rms",
        hidden.POSTNORM_RMS,
        "The size of the state after the final norm, which should be flat.",
    ),
)


def _hidden(runs: _Runs) -> list[Picture]:
    """Return the RMS by depth for each place where it was measured."""
    out = []
    for field, what, words in _SIZES:
        measured = [(i, run, getattr(run.hidden, field)) for i, run in enumerate(runs)]
        known = [(i, run, values) for i, run, values in measured if values is not None]
        if known:
            ratios = [times(v[-1] / v[0] if v[0] else None) for _, _, v in known]
            names = [f" ({run.label})" if len(runs) > 1 else "" for _, run, _ in known]
            ends = listed([f"{words}{name}" for words, name in zip(ratios, names, strict=True)])
            out.append(
                Picture(
                    id=f"hidden-{field.removesuffix('_rms')}",
                    title=f"{what.title}: {ends} from {axis_name(runs)} 1 to the last",
                    how=f"{words} A flat line is healthy, whatever its level.",
                    chart=by_depth(
                        runs,
                        [
                            line(run.label, values, run=i, intervals=run.spread.get(field, ()))
                            for i, run, values in known
                        ],
                        "RMS",
                    ),
                    definitions=(what, hidden.GROWTH),
                )
            )
    return out


# ---- what acceptance goes with


def effect(analysis: Analysis) -> Section:
    """Return what acceptance goes with inside the drafter."""
    runs = analysis.runs
    if not any(relation.alone for run in runs for relation in run.within_request):
        return Section(
            id="effect",
            name="What goes with acceptance",
            missing="Whether acceptance goes with the drafter's inside cannot be told: too little "
            "was measured inside the drafter.",
        )
    parts = [(run.label, words) for run in runs for words in clauses(run.within_request)]
    named = (f"{label}: {words}" if len(runs) > 1 else words for label, words in parts)
    sentence = f"{capital('; '.join(named))}." if parts else _NO_EFFECT
    return Section(
        id="effect",
        name="What goes with acceptance",
        conclusion=sentence,
        lead=CAVEAT,
        below=[_answers(runs), part("opens", "Definition", part("definitions", (WITHIN_REQUEST,)))],
    )


_NO_EFFECT = "Whether acceptance goes with anything inside the drafter cannot be told."
_MEASURES = {
    attention.SELF.name: "attention on the chain",
    hidden.GROWTH.name: "growth of the state",
}
"""Names of the measures."""


def _answers(runs: _Runs) -> Markup:
    """Return the estimates as a table, and how many requests would answer what is open."""
    rows = []
    for run in runs:
        for relation, answer in zip(run.within_request, answers(run.within_request), strict=True):
            alone, beyond = relation.alone, relation.beyond_confidence
            # One standard deviation of the measure in words.
            one_sd = NOTHING if alone is None else f"{_POINTS * alone.sd:.1f} points of attention"
            if alone is not None and relation.measure == hidden.GROWTH.name:
                one_sd = f"{math.expm1(alone.sd):.0%} more growth"
            rows.append(
                [
                    run.label,
                    _MEASURES.get(relation.measure, relation.measure),
                    {"less": "accepts less", "more": "accepts more"}.get(answer, answer),
                    _in_points(alone),
                    _in_points(beyond),
                    one_sd,
                    f"{alone.clusters:,}" if alone else NOTHING,
                    f"{alone.wanted_clusters:,}"
                    if alone and answer == Relation.CANNOT_TELL
                    else NOTHING,
                ]
            )
    head = [
        "run",
        "where this is higher",
        "acceptance",
        "points, with 95% interval",
        "beyond the drafter's confidence",
        "for each",
        "requests",
        "requests that would tell",
    ]
    return by_run_table(head, rows, caption="What acceptance goes with", runs=len(runs))


def _in_points(found: Association | None) -> str:
    if found is None:
        return NOTHING
    low, high = (_POINTS * end for end in (found.interval.low, found.interval.high))
    return f"{_POINTS * found.per_sd:+.1f} ({low:+.1f} to {high:+.1f})"


_HEAD = (
    *("run", "depth", "tokens", "confidence", "accepted", "points apart", "temperature", "AUROC"),
    *("Brier", "calibration error", "of the chain"),
)


def confidence(analysis: Analysis) -> Section:
    """Return whether confidence predicts acceptance, by depth and kind of text."""
    runs = [run for run in analysis.runs if run.confidence.calibration.by_depth]
    if not runs:
        return Section(
            id="confidence",
            name="The drafter's confidence",
            missing="Not applicable: no confidence of the drafter was recorded.",
        )
    # How far confidence is off at the first and the last depth, and how well it tells accepted
    # tokens from rejected ones there.
    sentences = []
    for run in runs:
        ends = [run.confidence.calibration.by_depth[at] for at in (0, -1)]
        off = " to ".join(f"{100 * at.bias:+.0f}" for at in ends)
        ranks = [number(at.auroc) for at in ends if at.auroc is not None]
        rank = f", AUROC {' to '.join(ranks)}" if ranks else ""
        sentences.append(f"{off} points{rank}")
    near = [(run, run.confidence.near_misses) for run in runs if run.confidence.near_misses]
    words = f" {near[0][1].words}" if len(near) == len(runs) == 1 and near[0][1] else ""
    drawn = []
    for i, run in enumerate(analysis.runs):
        depths = run.confidence.calibration.by_depth
        if depths:
            bands = [_around(at) for at in depths]
            name = f"{run.label}: " if len(runs) > 1 else ""
            sure, accepted = (
                [getattr(at, of) for at in depths] for of in ("confidence", "accepted")
            )
            drawn.append(line(f"{name}confidence", sure, run=i, look=2 * i))
            drawn.append(line(f"{name}accepted", accepted, run=i, look=2 * i + 1, intervals=bands))
    return Section(
        id="confidence",
        name="The drafter's confidence",
        conclusion=f"Confidence minus acceptance, from the first to the last depth: "
        f"{by_run(runs, sentences)}.{words}",
        pictures=[
            Picture(
                id="confidence-calibration",
                title="Confidence and acceptance by depth",
                how="Of the draft tokens that verification reached: how sure the drafter was of "
                "them, and how many were accepted, with the 95% interval of their difference. "
                "Where the lines are apart, a confidence threshold means something else than it "
                "says.",
                chart=by_depth(runs, drawn, "share", unit=Unit.SHARE),
                definitions=(
                    *(TOP1, BIAS, TEMPERATURE, AUROC, BRIER, RELIABILITY, ECE, SURVIVAL_ECE),
                ),
            ),
            *(near_misses_picture(found, "requests") for _, found in near[:1] if found),
        ],
        below=[_by_depth(analysis), _by_kind(analysis), _near_misses(analysis)],
    )


def near_misses_picture(found: NearMisses, clusters: str) -> Picture:
    """Return the picture of what rejected tokens came close to; intervals are over `clusters`."""
    wide = len(found.wider)
    drawn = bars(
        "share of the ends",
        [share.name for share in found.shares],
        [share.value for share in found.shares],
        intervals=[share.interval for share in found.shares],
        colours=["run-0" if at < wide else "same" for at in range(len(found.shares))],
    )
    return Picture(
        id="near-misses",
        title="How near the first wrong token was",
        how="Each bar is a share of the chains that end before K, at their first rejected token. "
        f"Lines are 95% intervals over {clusters}. Shares overlap. A tree of n branches holds the "
        "drafter's best n tokens, and more tokens are verified for it.",
        chart=figure(
            [drawn],
            x_title="where a chain ends",
            y_title="share of the ends",
            axis=Axis.CATEGORY,
            unit=Unit.SHARE,
        ),
        definitions=(NEAR_MISSES,),
    )


def _near_misses(analysis: Analysis) -> Markup | None:
    rows = [
        [run.label, share.what, percent(share.value), between_percent(share.interval).strip(" ()")]
        for run in analysis.runs
        if (found := run.confidence.near_misses) is not None
        for share in found.shares
    ]
    if not rows:
        return None
    head = ("run", "chains that end at", "share", "95% interval")
    caption = "What rejected tokens came close to"
    return by_run_table(head, rows, caption=caption, runs=len(analysis.runs))


def _around(at: CalibrationAtDepth) -> Interval | None:
    """Return the interval of acceptance at given confidence."""
    spread = at.bias_interval
    if spread is None:
        return None
    around = Interval.between(
        at.confidence - spread.high, at.confidence - spread.low, spread.clusters
    )
    return around and around.within(0.0, 1.0)


def _by_depth(analysis: Analysis) -> Markup:
    rows = [
        [
            run.label,
            f"{at.depth}",
            f"{at.tokens:,}",
            percent(at.confidence),
            percent(at.accepted),
            _with(at.bias, at.bias_interval, scale=100.0, form="+.1f"),
            _with(at.temperature, at.temperature_interval),
            _with(at.auroc, at.auroc_interval),
            number(at.brier),
            number(at.ece),
            number(at.survival_ece),
        ]
        for run in analysis.runs
        for at in run.confidence.calibration.by_depth
    ]
    return by_run_table(
        _HEAD, rows, caption="Calibration of the drafter's confidence", runs=len(analysis.runs)
    )


def _by_kind(analysis: Analysis) -> Markup | None:
    rows = [
        [
            run.label,
            of.kind,
            f"{of.tokens:,}",
            percent(of.confidence),
            percent(of.accepted),
            _with(of.bias, of.bias_interval, scale=100.0, form="+.1f"),
            percent(of.wasted),
        ]
        for run in analysis.runs
        for of in run.confidence.calibration.by_kind
    ]
    if not rows:
        return None
    head = ("run", "kind of text", "tokens", "confidence", "accepted", "points apart", "wasted")
    return by_run_table(head, rows, caption="Calibration by kind of text", runs=len(analysis.runs))


def _with(
    value: float | None, spread: Interval | None, *, scale: float = 1.0, form: str = ".2f"
) -> str:
    if value is None:
        return NOTHING
    ends = (
        "" if spread is None else f" ({scale * spread.low:{form}} to {scale * spread.high:{form}})"
    )
    return f"{scale * value:{form}}{ends}"

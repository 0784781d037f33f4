"""Rules and alerts on the metrics that an engine publishes itself, without driftscope's probe.

They record the series that driftscope's own rules record, so an engine needs one of both.
"""

from __future__ import annotations

from dataclasses import replace

from driftscope.metrics.acceptance import COUNTED, MEAN_LENGTH
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.engine_metrics import EngineMetrics
from driftscope.telemetry.dashboards import recording as r
from driftscope.telemetry.dashboards.alerts import Alert, alerts
from driftscope.telemetry.dashboards.recording_rule import Rule
from driftscope.telemetry.dashboards.reference import MODEL, Rates, length, length_rules
from driftscope.telemetry.dashboards.rule_options import Thresholds, Times

ALERTS = ("DriftscopeAcceptanceFell", "DriftscopeFleetOutlier", "DriftscopeNoReference")
"""Alerts that need acceptance length only."""
BY_POSITION = "DriftscopeDeadDepths"
"""Alert that needs acceptance by position, too."""
_STEPS = (
    (
        "`driftscope watch URL` on the server's metrics page shows acceptance by position, if the "
        "engine publishes it: a first depth that fell with the rest means that the drafter no "
        "longer fits its input."
    ),
    (
        "Compare the current deployment with the previous one: template, model names, versions, "
        "flags."
    ),
    (
        "These metrics cannot say why. Record one replica with driftscope's probe, and run "
        "`driftscope analyze` on the run directory."
    ),
    "Until the cause is found, use a smaller K, which costs less per rejected round.",
)
"""First steps when acceptance fell, without figures of the drafter."""


def engine_rules(
    engine: EngineMetrics, times: Times, thresholds: Thresholds
) -> tuple[tuple[Rule, ...], tuple[Alert, ...]]:
    """Return the recording rules and the alerts of an engine."""
    by_length = length(times, thresholds, _rates(engine, times.window, *MODEL))
    recorded = (
        *_of_engines(engine, times.window),
        *length_rules(by_length, times, thresholds),
    )
    wanted = (*ALERTS, *([BY_POSITION] if engine.accepted_at else ()))
    kept = (each for each in alerts(times, thresholds) if each.name in wanted)
    return recorded, tuple(
        replace(each, steps=(*_STEPS, each.steps[-1])) if each.name == ALERTS[0] else each
        for each in kept
    )


def _of_engines(engine: EngineMetrics, window: str) -> tuple[Rule, ...]:
    """Return the rules of single engines and of fleets."""
    rates = _rates(engine, window, *r.ENGINE)
    rules = [
        Rule(
            record=r.ROUNDS,
            expr=rates.count,
            meaning=i.ROUNDS.description,
            unit="{round}/s",
        ),
        Rule(
            record=r.LENGTH,
            expr=f"({rates.total}) / ({r.ROUNDS} > 0)",
            meaning=MEAN_LENGTH.meaning,
            unit=MEAN_LENGTH.unit,
        ),
        Rule(
            record=r.LENGTH_FLEET,
            unit="{token}",
            meaning="Median acceptance length of all engines with the same model.",
            expr=f"quantile by ({', '.join(r.ENGINE[2:])}) (0.5, {r.LENGTH})",
        ),
    ]
    if engine.accepted_at:
        reached = _rate(engine, engine.accepted_at, window, *r.ENGINE, engine.position)
        by_depth = f"{reached} / on ({', '.join(r.ENGINE)}) group_left () ({r.ROUNDS} > 0)"
        rules.append(
            Rule(
                record=r.REACHED,
                expr=by_depth,
                meaning=f"{COUNTED.meaning} Its label is the engine's `{engine.position}`, from 0.",
            )
        )
    return tuple(rules)


def _rates(engine: EngineMetrics, window: str, *by: str) -> Rates:
    """Return rounds and tokens per second by these labels, the target's own token included."""
    if engine.rounds:
        count = _rate(engine, engine.rounds, window, *by)
    else:
        count = _rate(engine, f'{engine.drafted_at}{{{engine.position}="0"}}', window, *by)
    if engine.accepted:
        total = f"{count} + {_rate(engine, engine.accepted, window, *by)}"
    else:
        # The first token of a request comes from its prompt, not from a round.
        first = f"({_rate(engine, str(engine.requests), window, *by)} or {count} * 0)"
        total = f"{_rate(engine, str(engine.generated), window, *by)} - {first}"
    return Rates(count=count, total=total)


def _rate(engine: EngineMetrics, series: str, window: str, *by: str) -> str:
    """Return the rate of a counter by these labels; the engine's label of the served model becomes
    that of driftscope's metrics."""
    rate = f"rate({series}[{window}])"
    if engine.model:
        rate = f'label_replace({rate}, "{MODEL[1]}", "$1", "{engine.model}", "(.+)")'
    return f"sum by ({', '.join(by)}) ({rate})"

"""Four Grafana dashboards: overview, drift by depth, fallback, fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.dashboards import recording as r
from driftscope.telemetry.dashboards.recording_rule import Rule
from driftscope.telemetry.dashboards.reference import length
from driftscope.telemetry.dashboards.rule_options import Thresholds, Times
from driftscope.telemetry.export.scrape import label_name

SCHEMA_VERSION = 39
"""Schema version of Grafana 11's dashboard model; newer versions migrate it on load."""
WIDTH, HEIGHT = 12, 8
"""Size of a panel on Grafana's grid of 24 columns."""
_UNITS = {"s": "s", "{token}": "short", "{round}/s": "ops", "{step}/s": "ops"}
_MODEL, _DRAFTER = label_name(i.MODEL), label_name(i.DRAFTER)
_REGION = label_name(i.REGION)
_CHOSEN_MODEL = f'{_MODEL}=~"$model"'
_CHOSEN = f'{_MODEL}=~"$model", {_DRAFTER}=~"$drafter", instance=~"$instance"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A time series panel, described in the words of the quantity it shows."""

    title: str
    exprs: tuple[tuple[str, str], ...]
    """Pairs of expression and legend."""
    description: str
    unit: str
    share: bool = False
    """Whether values are shares of 1."""


def dashboards(rules: Sequence[Rule], times: Times) -> dict[str, dict[str, Any]]:
    """Return every dashboard by file name."""
    by = {rule.record: rule for rule in rules}
    made = {
        "driftscope-overview": ("driftscope / overview", _overview(by, times)),
        "driftscope-drift": ("driftscope / drift by depth", _drift(by)),
        "driftscope-fallback": ("driftscope / fallback", _fallback(by, times)),
        "driftscope-fleet": ("driftscope / fleet", _fleet(by, times)),
    }
    return {uid: _dashboard(uid, title, panels) for uid, (title, panels) in made.items()}


def _of(rule: Rule, title: str, legend: str, *, where: str = "", share: bool = False) -> Panel:
    chosen = f"{_CHOSEN}, {where}" if where else _CHOSEN
    return Panel(
        title=title,
        exprs=((f"{rule.record}{{{chosen}}}", legend),),
        description=rule.meaning,
        unit=rule.unit,
        share=share,
    )


def _overview(by: dict[str, Rule], times: Times) -> list[Panel]:
    lengths = length(times, Thresholds())
    firing = f'ALERTS{{alertname=~"Driftscope.*", alertstate="firing", {_CHOSEN_MODEL}}}'
    chains = f"rate({r.name_of(i.CHAINS)}{{{_CHOSEN}}}[{times.window}])"
    dropped = f"rate({r.name_of(i.DROPPED)}{{{_CHOSEN}}}[{times.window}])"
    lost = f"sum by (driftscope_cause) ({dropped}) > 0"
    return [
        _of(by[r.LENGTH], "Acceptance length", "{{instance}}"),
        Panel(
            title="Acceptance length and its reference",
            exprs=(
                (f"{lengths.mean}{{{_CHOSEN_MODEL}}}", f"{{{{{_MODEL}}}}}"),
                (f"{lengths.reference}{{{_CHOSEN_MODEL}}}", f"reference of {{{{{_MODEL}}}}}"),
            ),
            description=by[lengths.reference].meaning,
            unit="{token}",
        ),
        Panel(
            title="Alerts",
            exprs=((f"count by (alertname, severity) ({firing})", "{{alertname}} ({{severity}})"),),
            description="Alerts of driftscope that fire for the chosen models, by name.",
            unit="1",
        ),
        _of(by[r.SPEEDUP], "Estimated speed against no speculation", "{{instance}}"),
        _of(by[r.TPOT], "Time per output token", "{{instance}}"),
        _of(by[r.TTFT], "Time to first token", "{{instance}}"),
        _both(by, (r.DRAFT_S, "draft"), (r.VERIFY_S, "verify"), title="Draft and verify time"),
        _of(by[r.ROUNDS], "Rounds", "{{instance}}"),
        _of(by[r.OVERHEAD_SHARE], "Probe cost, all in", "{{instance}}", share=True),
        Panel(
            title="Chains recorded, rows dropped",
            exprs=((chains, "recorded {{instance}}"), (lost, "dropped {{driftscope_cause}}")),
            description=f"{i.CHAINS.description} {i.DROPPED.description}",
            unit="ops",
        ),
        Panel(
            title="Export delay",
            exprs=((f"{r.name_of(i.BEHIND)}{{{_CHOSEN}}}", "{{driftscope_signal}} {{instance}}"),),
            description=i.BEHIND.description,
            unit="s",
        ),
        Panel(
            title="Sampling rate",
            exprs=((f"{r.name_of(i.RATE)}{{{_CHOSEN}}}", "{{driftscope_source}} {{instance}}"),),
            description=i.RATE.description,
            unit="1",
            share=True,
        ),
    ]


def _drift(by: dict[str, Rule]) -> list[Panel]:
    masses = [
        _of(
            by[r.MASS],
            f"Attention on {words}",
            "depth {{driftscope_depth}}",
            where=f'{r.CLASS}="{name}"',
            share=True,
        )
        for name, words in _CLASSES.items()
    ]
    states = [
        _of(
            by[r.RMS],
            f"Hidden RMS, {words}",
            "depth {{driftscope_depth}}",
            where=f'{r.PLACE}="{name}"',
        )
        for name, words in _PLACES.items()
    ]
    return [
        _of(by[r.REACHED], "Acceptance by depth", "depth {{driftscope_depth}}", share=True),
        *masses,
        _of(by[r.GROWTH], "Growth of the hidden state", "{{instance}}"),
        *states,
        _of(by[r.TOP1], "Confidence by depth", "depth {{driftscope_depth}}", share=True),
    ]


def _fallback(by: dict[str, Rule], times: Times) -> list[Panel]:
    accepted, rounds = (
        f"sum by ({_REGION}) (rate({r.name_of(each)}{{{_CHOSEN}}}[{times.window}]))"
        for each in (i.REGION_ACCEPTED, i.REGION_ROUNDS)
    )
    return [
        _of(by[r.REJECTED_SHARE], "Rejected rounds", "{{instance}}", share=True),
        _of(
            by[r.UNDRAFTED_SHARE], "Undrafted steps by reason", "{{driftscope_reason}}", share=True
        ),
        _of(by[r.STEPS], "Decode steps", "{{instance}}"),
        _of(by[r.LENGTH], "Acceptance length", "{{instance}}"),
        Panel(
            title="Acceptance length by kind of text",
            exprs=((f"1 + {accepted} / {rounds}", f"{{{{{_REGION}}}}}"),),
            description=f"{i.REGION_ACCEPTED.description} Divided by these rounds, plus 1.",
            unit="{token}",
        ),
        Panel(
            title="Rounds by kind of text",
            exprs=((rounds, f"{{{{{_REGION}}}}}"),),
            description=i.REGION_ROUNDS.description,
            unit="{round}/s",
        ),
    ]


def _fleet(by: dict[str, Rule], times: Times) -> list[Panel]:
    rate = f"sum by ({_MODEL}) (rate({r.name_of(i.ACCEPTED)}[{times.window}]))"
    return [
        _of(by[r.LENGTH], "Acceptance length by replica", "{{instance}}"),
        Panel(
            title="Median acceptance length by model",
            exprs=((r.LENGTH_FLEET, f"{{{{{_MODEL}}}}} with {{{{{_DRAFTER}}}}}"),),
            description=by[r.LENGTH_FLEET].meaning,
            unit="{token}",
        ),
        Panel(
            title="Replica compared with its fleet",
            exprs=(
                (
                    (
                        f"{r.LENGTH}{{{_CHOSEN}}} / on ({_MODEL}, {_DRAFTER}) group_left () "
                        f"{r.LENGTH_FLEET}"
                    ),
                    "{{instance}}",
                ),
            ),
            description="Acceptance length divided by the median of the engines with the same "
            "model and drafter.",
            unit="1",
        ),
        Panel(
            title="Accepted tokens by model",
            exprs=((rate, f"{{{{{_MODEL}}}}}"),),
            description=i.ACCEPTED.description,
            unit="ops",
        ),
        _of(by[r.GROWTH], "Hidden growth by replica", "{{instance}}"),
    ]


_CLASSES = {
    "sink": "the sink",
    "prompt": "the prompt",
    "generated": "the verified output",
    "self": "the chain itself",
}
_PLACES = {
    "in": "fed in",
    "prenorm": "before the final norm",
    "postnorm": "after the final norm",
    "fed": "fed to the next depth",
}


def _both(by: dict[str, Rule], *shown: tuple[str, str], title: str) -> Panel:
    return Panel(
        title=title,
        exprs=tuple((f"{name}{{{_CHOSEN}}}", f"{word} {{{{instance}}}}") for name, word in shown),
        description=" ".join(by[name].meaning for name, _ in shown),
        unit=by[shown[0][0]].unit,
    )


def _dashboard(uid: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    return {
        "uid": uid,
        "title": title,
        "description": "Generated by `driftscope dashboards`; needs the recording rules written "
        "with it.",
        "tags": ["driftscope", "speculative-decoding"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "panels": [_panel(at, panel) for at, panel in enumerate(panels)],
    }


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
    }
    narrower = {
        "model": "",
        "drafter": f'{{{_MODEL}=~"$model"}}',
        "instance": f'{{{_MODEL}=~"$model", {_DRAFTER}=~"$drafter"}}',
    }
    label = {"model": _MODEL, "drafter": _DRAFTER, "instance": "instance"}
    chosen = [
        {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values({r.name_of(i.ROUNDS)}{where}, {label[name]})",
            "refresh": 2,
            "hide": 0,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "sort": 1,
        }
        for name, where in narrower.items()
    ]
    return [source, *chosen]


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(at: int, panel: Panel) -> dict[str, Any]:
    unit = "percentunit" if panel.share else _UNITS.get(panel.unit, panel.unit)
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": at % 2 * WIDTH, "y": at // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "expr": expr,
                "legendFormat": legend,
                "range": True,
                "datasource": _SOURCE,
            }
            for n, (expr, legend) in enumerate(panel.exprs)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": "short" if unit == "1" else unit,
                "custom": {"lineWidth": 1, "fillOpacity": 0, "spanNulls": False},
            },
            "overrides": [],
        },
        "options": {
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }

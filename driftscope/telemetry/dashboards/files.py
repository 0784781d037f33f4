"""Write dashboards, rules and runbooks; the same settings give the same bytes."""

from __future__ import annotations

from pathlib import Path

from driftscope.boundary import strict_json
from driftscope.boundary.file_output import write_file
from driftscope.telemetry.dashboards.alerts import Alert, Thresholds, alerts, runbook
from driftscope.telemetry.dashboards.grafana import dashboards
from driftscope.telemetry.dashboards.recording import Rule, Times, rules

RULES = "prometheus/driftscope.rules.yml"


def write(
    folder: Path, times: Times, thresholds: Thresholds, *, runbooks: str = "runbooks"
) -> tuple[Path, ...]:
    """Write all files into `folder`, which is created if missing; raises OSError.

    `runbooks`: location of the runbook pages in the alerts' links, a URL or a folder.
    """
    recorded, alerting = rules(times), alerts(times, thresholds)
    content = {RULES: rules_file(recorded, alerting, times, runbooks)}
    for name, dashboard in dashboards(recorded, times).items():
        text = strict_json.dumps(dashboard, indent=1, sort_keys=True)
        content[f"grafana/{name}.json"] = f"{text}\n"
    for alert in alerting:
        content[f"runbooks/{alert.name}.md"] = runbook(alert)
    for name, text in content.items():
        path = folder / name
        write_file(path, text.encode(), parents=True)
    return tuple(folder / name for name in content)


def rules_file(
    recorded: tuple[Rule, ...], alerting: tuple[Alert, ...], times: Times, runbooks: str
) -> str:
    """Return Prometheus's rule file, which is YAML."""
    lines = [
        "# Made by `driftscope dashboards`; edit its options, not this file.",
        "groups:",
        "- name: driftscope",
        f"  interval: {times.evaluate}",
        "  rules:",
    ]
    for rule in recorded:
        lines += [f"  # {rule.meaning}", f"  - record: {rule.record}", f"    expr: {_q(rule.expr)}"]
    lines += ["- name: driftscope-alerts", f"  interval: {times.evaluate}", "  rules:"]
    for alert in alerting:
        page = f"{runbooks.rstrip('/')}/{alert.name}.md"
        lines += [
            f"  - alert: {alert.name}",
            f"    expr: {_q(alert.expr)}",
            *([f"    for: {times.hold}"] if alert.hold else []),
            "    labels:",
            f"      severity: {alert.severity}",
            "    annotations:",
            f"      summary: {_q(alert.summary)}",
            f"      description: {_q(alert.meaning)}",
            f"      runbook_url: {_q(page)}",
        ]
    return "\n".join(lines) + "\n"


def _q(text: str) -> str:
    """Return a YAML string; JSON strings are valid YAML."""
    return strict_json.dumps(text, ensure_ascii=False)

"""Documents of `probe`, `replay`, `watch`, `doctor`, `findings`, `ls` and of written files.

Figures keep all of their digits here: the documents describe one moment and are not compared to the
byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.boundary import strict_json
from driftscope.json_report.document import FILES, PROBE, REPLAY, RUNS, VERSIONS, WATCH, layout


def probe_to_json(target: str, processes: Sequence[Mapping[str, Any]]) -> str:
    """Return the status of a probe's processes as text."""
    return layout(_named(PROBE, {"target": target, "processes": list(processes)}))


def replay_to_json(outcome: Mapping[str, Any]) -> str:
    """Return the outcome of a replay as text."""
    return layout(_named(REPLAY, outcome))


def watch_to_line(figures: Mapping[str, Any]) -> str:
    """Return the figures of one look as a line of text."""
    return strict_json.dumps(_named(WATCH, figures), sort_keys=True) + "\n"


def runs_to_json(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return listed or removed runs as text."""
    return layout(_named(RUNS, {"runs": list(runs)}))


def files_to_json(written: Sequence[str], sent: Mapping[str, int] | None = None) -> str:
    """Return the files that a command wrote, and counts of what it sent, as text."""
    return layout(_named(FILES, {"written": list(written), "sent": dict(sent or {})}))


def checks_to_json(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return the checks of `doctor` as text: a list, which has no place for a kind."""
    return strict_json.dumps(list(checks), indent=1) + "\n"


def catalogue_to_json(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the findings of the catalogue by id, as text."""
    return layout(entries)


def _named(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "schema_version": VERSIONS[kind], **content}

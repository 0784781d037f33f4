"""Losses are exported before the first one happens: Prometheus sees a rise only from a value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.status_figures import record_status
from driftscope.telemetry.collect.tally import Tally
from driftscope.trace.format.status import DROP_CAUSES, HOOKS, Status

ROOT = Path(__file__).parents[4]
WRITTEN_IN = ("probes/driftscope_probes", "driftscope/trace/write")


def _by(tally: Tally, instrument: i.Instrument, attribute: str) -> dict[str, float]:
    return {
        dict(point.attributes)[attribute]: point.value
        for point in tally.snapshot().values()
        if point.name == instrument.name
    }


def _status(**values: object) -> Status:
    return Status(source="worker0-11", closed=False, flushed_s=1.0, **values)  # type: ignore[arg-type]


def test_every_cause_and_hook_begins_at_0() -> None:
    tally = Tally()
    record_status(tally, _status())
    assert _by(tally, i.DROPPED, i.CAUSE) == dict.fromkeys(DROP_CAUSES, 0)
    assert _by(tally, i.ERRORS, i.HOOK) == dict.fromkeys(HOOKS, 0)


def test_counts_and_unknown_names_are_kept() -> None:
    tally = Tally()
    record_status(tally, _status(dropped={"disk_error": 3, "later": 1}, errors={"masses": 2}))
    dropped = _by(tally, i.DROPPED, i.CAUSE)
    assert (dropped["disk_error"], dropped["later"], dropped["queue_full"]) == (3, 1, 0)
    errors = _by(tally, i.ERRORS, i.HOOK)
    assert (errors["masses"], errors["verify"]) == (2, 0)


def test_the_lists_are_those_of_the_code() -> None:
    """A hook or cause that is added to the probe or the writer is added to the lists."""
    hooks = set(_first_strings({"run", "succeeds", "count_error", "_count_error"}))
    assert hooks == set(HOOKS)
    causes = set(_first_strings({"count_dropped", "_count_lost"}))
    # One is a constant of the recorder, and the queue counts its own.
    assert causes | {"shadow_differs", "queue_full"} == set(DROP_CAUSES)


def _first_strings(names: set[str]) -> Iterator[str]:
    """Yield the literal first arguments of calls to these methods, also by functools.partial."""
    for folder in WRITTEN_IN:
        for path in (ROOT / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call):
                    yield from _string_of(call, names)


def _string_of(call: ast.Call, names: set[str]) -> Iterator[str]:
    for called, given in zip((call.func, *call.args), call.args, strict=False):
        named = isinstance(called, ast.Attribute) and called.attr in names
        if named and isinstance(given, ast.Constant) and isinstance(given.value, str):
            yield given.value

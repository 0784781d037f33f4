"""Requests of a replay as probes in the servers saw them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from driftscope.analysis.replays.replay_summary import Row
from driftscope.trace.read.reader import Trace

_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_CHOICE = re.compile(r"-\d+$")


def joined_with(rows: Sequence[Row], servers: Sequence[Trace]) -> tuple[int, list[Row]]:
    """Return how many of `rows` the servers know, and the rows with the servers' data added."""
    known = {name: seen for server in servers for name, seen in _seen(server).items()}
    out, joined = [], 0
    for row in rows:
        seen = known.get(row["response"] or "")
        joined += seen is not None
        out.append(row if seen is None else {**row, **_more(row, seen)})
    return joined, out


def _more(row: Row, seen: Row) -> dict[str, Any]:
    mine, theirs = row["ttft_s"], seen["ttft_s"]
    known = mine is not None and theirs is not None
    return {
        "accepted": row["accepted"] or seen["accepted"] or None,
        "outside_s": mine - theirs if known else None,
    }


def _seen(server: Trace) -> dict[str, dict[str, Any]]:
    """Return a probe's requests by the id that the client received."""
    out: dict[str, dict[str, Any]] = {}
    for row in server.request.select(["request", "ttft_s"]).to_pylist():
        out[external_id(row["request"])] = {"ttft_s": row["ttft_s"], "accepted": []}
    rounds = server.verify.select(["request", "drafted", "accepted"]).to_pylist()
    for row in rounds:
        known = out.get(external_id(row["request"]))
        if known is not None and row["drafted"]:
            known["accepted"].append(row["accepted"])
    return out


def external_id(internal: str) -> str:
    """Return the id in vLLM's answer for an internal one: the client of "cmpl-x-0-1a2b3c4d"
    received "cmpl-x".

    The engine adds eight random hexadecimal digits, and the completions endpoint adds the number of
    the prompt.
    """
    name = _SUFFIX.sub("", internal)
    return _CHOICE.sub("", name) if name.startswith("cmpl-") else name

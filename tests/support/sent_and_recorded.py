"""Comparison of what a sender was told of its requests with what the probe recorded of them."""

from __future__ import annotations

from collections import defaultdict

from driftscope.analysis.replays import external_id
from driftscope.trace.reader import Trace
from driftscope.vocabulary import Ended


def assert_alike(client: Trace, server: Trace, suite: str) -> int:
    """Assert that every request was answered, and that both runs have the same label and the same
    accepted tokens of it, round by round; return the number of requests."""
    rows = client.client.to_pylist()
    assert {row["ended"] for row in rows} == {Ended.ANSWERED}
    labels = server.request.select(["request", "label"]).to_pylist()
    label_of = {external_id(row["request"]): row["label"] for row in labels}
    accepted: defaultdict[str, list[int]] = defaultdict(list)
    for row in server.verify.sort_by("step").to_pylist():
        if row["verified"]:
            accepted[external_id(row["request"])].append(row["accepted"])
    for row in rows:
        assert label_of[row["response"]] == f"replay/{suite}/{row['condition']}"
        assert accepted.get(row["response"], []) == (row["accepted"] or [])
    return len(rows)

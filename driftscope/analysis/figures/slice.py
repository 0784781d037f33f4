"""Part of a run that `--since` and `--where` keep."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.number_words import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Options that cut a run, and how many requests the whole run has."""

    where: str | None = None
    since: str | None = None
    requests: int
    """Number of requests of the whole run that have a decode step."""

    def words(self, kept: int) -> str:
        """Return the cut in words: "only --since 1s: 10 of 241 requests"; `kept` is the number of
        requests that are left."""
        options = (("--since", self.since), ("--where", self.where))
        cut = " and ".join(f"{name} {value}" for name, value in options if value is not None)
        return f"only {cut}: {kept:,} of {count(self.requests, 'request')}"

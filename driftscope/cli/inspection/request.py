"""The checkpoints that `driftscope inspect` is asked about, and how it finds out about them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from driftscope.cli.inspection.loaded_bench import MOST_PROMPTS, TrialOptions
from driftscope.cli.inspection.pair_run import with_pair_trial
from driftscope.cli.inspection.trial_run import with_trial
from driftscope.errors import UsageError
from driftscope.inspect.inspection import Inspection, inspect_files
from driftscope.inspect.pair_inspection import PairInspection


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Arguments of the command that decide about its result."""

    drafter: str
    other: str | None
    target: str | None
    run: bool
    options: TrialOptions

    def result(self) -> Inspection | PairInspection:
        """Check the files, run what is to be run, and return the results.

        Raises DriftscopeError for a checkpoint that cannot be read, and for options that do not go
        together.
        """
        if self.options.writes and (self.other or not (self.target and self.run)):
            raise UsageError(
                "--write-config and --write-weights need one drafter, --target and a run"
            )
        return self._single() if self.other is None else self._pair(self.other)

    def command_line(self, output: Path) -> str:
        """Return the command that writes the page again."""
        words = ["driftscope", "inspect", self.drafter, *([self.other] if self.other else [])]
        words += ["--target", self.target] if self.target else []
        words += [] if self.run else ["--files-only"]
        words += ["--allow-pickle"] if self.options.opening.read_pickle else []
        if self.target and self.run:
            words += ["--prompts", self.options.prompts, "--k", str(self.options.k)]
            if self.options.most_prompts != MOST_PROMPTS:
                words += ["--limit", str(self.options.most_prompts)]
        return shlex.join([*words, "-o", str(output)])

    def _single(self) -> Inspection:
        inspection = self._files(self.drafter)
        if self.target is None or not (self.run and inspection.checked):
            return inspection
        return with_trial(inspection, self.target, self.options)

    def _pair(self, other: str) -> PairInspection:
        if self.target is None and self.run:
            raise UsageError(
                "two drafters are compared by running both: give --target, or --files-only"
            )
        pair = PairInspection(first=self._files(self.drafter), second=self._files(other))
        if self.target is None or not (self.run and pair.first.checked and pair.second.checked):
            return pair
        return with_pair_trial(pair, self.target, self.options)

    def _files(self, drafter: str) -> Inspection:
        return inspect_files(drafter, self.target, self.options.opening)

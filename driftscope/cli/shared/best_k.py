"""The search for the fastest K, as `driftscope bench --best-k` runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.cli.screens.k_search_screen import say_found, search_progress, why_it_ended
from driftscope.cli.screens.replay_output import say
from driftscope.errors import EXIT_INTERRUPTED, EXIT_OK, DriftscopeError, UsageError
from driftscope.json_report.advice import to_json
from driftscope.workloads.bench import Contender, Found, search
from driftscope.workloads.client.replay import Order
from driftscope_reports.terminal import advice_table

OPTION = "--speculative-config"
K = "num_speculative_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search that the user asked for."""

    contender: Contender
    order: Order
    folder: Path
    start: int
    most_runs: int


def speculation_in(options: Sequence[str]) -> tuple[Mapping[str, Any] | None, list[str]]:
    """Return the value of vLLM's --speculative-config and the other options; None without it.
    Raises UsageError."""
    left, given = list(options), None
    for at, option in enumerate(options):
        name, equals, value = option.partition("=")
        if name in (OPTION, "-sc"):
            given = value if equals else "".join(options[at + 1 : at + 2])
            del left[at : at + (1 if equals else 2)]
            break
    if given is None:
        return None, left
    try:
        config = json.loads(given)
    except ValueError as error:
        raise UsageError(f"{OPTION}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{OPTION}: give a JSON object, as for `vllm serve`")
    return config, left


def find_best_k(asked: Search, *, as_json: bool, quiet: bool) -> int:
    """Search, print the advice, and return the exit code. What was measured is printed as well if
    the search fails or the user stops it. Raises DriftscopeError."""
    found: list[Found] = []
    failed: DriftscopeError | SystemExit | None = None
    stopped = True
    with search_progress(asked.most_runs, quiet=quiet) as listener:
        try:
            for each in search(
                asked.contender,
                asked.order,
                asked.folder,
                start=asked.start,
                most_runs=asked.most_runs,
                listener=listener,
            ):
                found.append(each)
                if not quiet:
                    say_found(each)
            stopped = _unsettled(found, asked)
        except KeyboardInterrupt:
            stopped = True
        except DriftscopeError as error:
            failed, stopped = error, False
        except SystemExit as asked_to_end:
            failed, stopped = asked_to_end, True
    _tell(found, asked, as_json=as_json, quiet=quiet, stopped=stopped)
    if failed is not None:
        raise failed
    return EXIT_INTERRUPTED if stopped else EXIT_OK


def _unsettled(found: Sequence[Found], asked: Search) -> bool:
    """Whether a search that ended without an error was stopped by the user."""
    if not found:
        return True
    following = found[-1].advice.choice.next
    open_end = following is not None and not found[-1].advice.useless
    return open_end and len(found) < asked.most_runs


def _tell(
    found: Sequence[Found], asked: Search, *, as_json: bool, quiet: bool, stopped: bool
) -> None:
    if not found:
        return
    advice, runs = found[-1].advice, [_row(each) for each in found]
    if as_json:
        sys.stdout.write(to_json(advice, runs=runs, stopped=stopped))
    else:
        advice_table.show(advice)
    if not quiet:
        say(why_it_ended(advice, len(found), asked.most_runs))
        paths = " ".join(f"'{each.result.server}'" for each in found)
        say(f"written: {asked.folder}")
        say(f"next: driftscope analyze {paths}")


def _row(found: Found) -> dict[str, Any]:
    return {"k": found.k, "run": str(found.result.server), "client": str(found.result.client)}

"""The work file of an ablation: what is measured so far, from which an interrupted one goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.ablate.measurement.measured_prompt import MeasuredPrompt
from driftscope.boundary import strict_json
from driftscope.boundary.files import first_line, read_json, write_file
from driftscope.errors import UsageError

SAVED_EVERY_S = 2.0
"""Seconds after which the file is written again; what is measured since then is lost to a kill."""
_KIND = "ablation_work"
_WAY_OUT = "remove it, or give another --output"


class WorkFile:
    """Counts of the prompts that are measured; a context manager that saves them when it ends."""

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        """Read the counts if the file is there. `request` describes all that the counts depend on,
        as plain JSON. Raises UsageError for the file of another request or for a damaged one."""
        self.path = path
        self._request = dict(request)
        self._measured = _read(path, self._request) if path.exists() else {}
        self._saved_s = time.monotonic()
        self._unsaved = False

    def __enter__(self) -> WorkFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._unsaved:
            self._save()

    @property
    def prompts(self) -> int:
        """Number of prompts that are measured, counting each way of writing them."""
        return len(self._measured)

    def kept(self, writing: str, key: str) -> MeasuredPrompt | None:
        """Return the counts of a prompt; None if it is not measured yet."""
        return self._measured.get((writing, key))

    def add(self, measured: MeasuredPrompt) -> None:
        """Keep the counts of a prompt. Raises OSError if the file cannot be written."""
        self._measured[measured.writing, measured.key] = measured
        self._unsaved = True
        if time.monotonic() - self._saved_s > SAVED_EVERY_S:
            self._save()

    def _save(self) -> None:
        content = {
            "kind": _KIND,
            "request": self._request,
            "measured": [_plain(each) for each in self._measured.values()],
        }
        write_file(self.path, strict_json.dumps(content).encode(), durable=False, parents=True)
        self._saved_s, self._unsaved = time.monotonic(), False


def _read(path: Path, request: Mapping[str, Any]) -> dict[tuple[str, str], MeasuredPrompt]:
    try:
        content = read_json(path)
        if content["kind"] != _KIND:
            raise ValueError(f"its kind is {content['kind']!r}")
        theirs = dict(content["request"])
        measured = [_measured(each) for each in content["measured"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"{path}: is no work file of ablate ({first_line(error)}); {_WAY_OUT}"
        ) from error
    differ = [
        name for name in request.keys() | theirs.keys() if request.get(name) != theirs.get(name)
    ]
    if differ:
        raise UsageError(
            f"{path}: belongs to an interrupted ablation with another {', '.join(sorted(differ))}; "
            f"repeat that one to go on, {_WAY_OUT}"
        )
    return {(each.writing, each.key): each for each in measured}


def _plain(measured: MeasuredPrompt) -> dict[str, Any]:
    return {
        "writing": measured.writing,
        "key": measured.key,
        "matches": {name: _rows(each) for name, each in measured.matches.items()},
        "sums": {name: each.tolist() for name, each in measured.sums.items()},
        "vocabulary": {region: list(each) for region, each in measured.vocabulary.items()},
        "k": next(iter(measured.matches.values())).shape[1],
    }


def _rows(matches: NDArray[np.bool_]) -> list[str]:
    return ["".join("1" if each else "0" for each in row) for row in matches.tolist()]


def _measured(plain: Mapping[str, Any]) -> MeasuredPrompt:
    k = int(plain["k"])
    return MeasuredPrompt(
        writing=str(plain["writing"]),
        key=str(plain["key"]),
        matches={name: _matches(rows, k) for name, rows in plain["matches"].items()},
        sums={name: np.array(each, float) for name, each in plain["sums"].items()},
        vocabulary={name: (int(n), int(gone)) for name, (n, gone) in plain["vocabulary"].items()},
    )


def _matches(rows: list[str], k: int) -> NDArray[np.bool_]:
    return np.array([[each == "1" for each in row] for row in rows], bool).reshape(-1, k)

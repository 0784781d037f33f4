"""The speculation config among vLLM's options, and the drafter's name in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

FIELD = "{drafter}"
"""Part of a run directory's name that is replaced."""
UNKNOWN = "drafter"
"""Name if the options leave the drafter to a file or to vLLM."""
MAX_CHARS = 40
_SPECULATIVE = "--speculative-config"
_SHORT = "-sc"
_UNFIT = re.compile(r"[^A-Za-z0-9._]+")


def with_drafter(trace: Path, options: Sequence[str]) -> Path:
    """Return `trace` with the drafter's name in place of FIELD."""
    return Path(str(trace).replace(FIELD, drafter_name(options)))


def drafter_name(options: Sequence[str]) -> str:
    """Return the last part of the drafter's name or path, or else the method, as a file name."""
    given = speculation_of(options)
    return file_name(str(given.get("model") or given.get("method") or ""))


def file_name(model: str) -> str:
    """Return the last part of a model's name or path as a file name; UNKNOWN for ""."""
    name = model.rstrip("/").rpartition("/")[2]
    return _UNFIT.sub("-", name).strip("-.")[:MAX_CHARS] or UNKNOWN


def speculation_of(options: Sequence[str]) -> dict[str, object]:
    """Return the fields of the speculation config; {} if the options name none.

    It may be one JSON object or dotted options: `--speculative-config '{"model": "D"}'`, `-sc ...`
    and `--speculative-config.model D`.
    """
    return dict(_speculation(options))


def _speculation(options: Sequence[str]) -> Iterator[tuple[str, object]]:
    for at, option in enumerate(options):
        name, equals, value = option.partition("=")
        if not equals:
            value = options[at + 1] if at + 1 < len(options) else ""
        head, _, field = name.replace("_", "-").partition(".")
        if head not in (_SPECULATIVE, _SHORT):
            continue
        if field:
            yield field, value
            continue
        yield from _fields(value)


def _fields(text: str) -> Iterator[tuple[str, object]]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(content, dict):
        yield from content.items()

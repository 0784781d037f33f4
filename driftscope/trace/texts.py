"""Prompts and answers that a replay keeps on request, in a file of its own beside its records.

No record has a column for them, so nothing that reads records can hand them on. Each line of the
file is a JSON object:

    response    id in the server's answer, null if there was none
    prompt      text, or the messages as they were sent
    answer      pieces of the answer in order, as they were streamed
    by_round    whether the first piece is the token of the prefill, and each further one a round's
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.boundary.bounds import MAX_ANSWER_BYTES, MAX_INPUT_BYTES
from driftscope.boundary.files import (
    create_file,
    first_line,
    open_regular,
    parse_bounded_json,
    write_all,
)
from driftscope.boundary.text import dumps, shown

TEXTS = "texts.jsonl"
"""Name of the file in the run directory, and key below `Manifest.workload` of a replay that keeps
it."""
SHOWN_PROMPT, SHOWN_ANSWER = 2_000, 4_000
"""Characters of a prompt and of an answer that are shown; a page shows at most a few requests of
each run."""


class TextFile:
    """The file while it is written; only its owner can read it. `lost` counts what it lacks."""

    def __init__(self, run: Path) -> None:
        """Raises OSError."""
        self._descriptor, self.lost = create_file(run / TEXTS), 0

    def put(self, line: Mapping[str, Any]) -> None:
        """Append a line; raises nothing for a full disk."""
        try:
            write_all(self._descriptor, [dumps(line).encode() + b"\n"])
        except OSError:
            self.lost += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptText:
    """The prompt and the answer of one request, safe to show and cut to a length."""

    prompt: str
    answer: tuple[str, ...]
    """Pieces as in the file; a single one if they are not those of rounds."""


def read_texts(run: Path, responses: Collection[str]) -> tuple[dict[str, KeptText], str | None]:
    """Return the texts of these responses by id, and in words what could not be read, if any."""
    texts, damaged = dict[str, KeptText](), 0
    try:
        for line in _lines(run / TEXTS):
            try:
                content = parse_bounded_json(line)
                if content["response"] in responses:
                    texts[content["response"]] = _text_of(content)
            except (ValueError, TypeError, KeyError, AttributeError):
                damaged += 1
    except OSError as error:
        return texts, f"{TEXTS} cannot be read ({first_line(error)}): not all texts are shown"
    lines = "1 damaged line, which is" if damaged == 1 else f"{damaged:,} damaged lines, which are"
    return texts, f"{TEXTS} has {lines} left out" if damaged else None


def _lines(path: Path) -> Iterator[bytes]:
    with (
        open_regular(path, follow=False) as descriptor,
        os.fdopen(os.dup(descriptor), "rb") as file,
    ):
        while file.tell() < MAX_INPUT_BYTES and (line := file.readline(MAX_ANSWER_BYTES)):
            yield line


def _text_of(content: Mapping[str, Any]) -> KeptText:
    """Return what is shown of a line; raises ValueError, TypeError, KeyError or AttributeError for
    anything but what `TextFile` is given."""
    prompt, answer = content["prompt"], content["answer"]
    if not isinstance(prompt, str):
        prompt = "\n\n".join(f"{message['role']}: {_message_text(message)}" for message in prompt)
    pieces = list(answer) if content["by_round"] is True else ["".join(answer)]
    kept, left = list[str](), SHOWN_ANSWER
    for piece in pieces[:SHOWN_ANSWER]:
        kept.append(_safe(piece[:left]))
        left = max(left - len(piece), 0)
        if not left:
            break
    if (more := sum(map(len, pieces)) - SHOWN_ANSWER) > 0:
        kept[-1] += f" [… {more:,} more characters]"
    head, tail = prompt, ""
    if (more := len(prompt) - SHOWN_PROMPT) > 0:  # the question may be at either end
        half = SHOWN_PROMPT // 2
        head, tail = prompt[:half], f" [… {more:,} characters …] {_safe(prompt[-half:])}"
    return KeptText(prompt=_safe(head) + tail, answer=tuple(kept))


def _message_text(message: Mapping[str, Any]) -> str:
    words = message.get("content")
    return words if isinstance(words, str) else dumps(message)


def _safe(text: str) -> str:
    """Return `text` with its lines and tabs kept, and every other unsafe character visible."""
    return "\n".join(map(shown, text.replace("\r\n", "\n").expandtabs(4).split("\n")))

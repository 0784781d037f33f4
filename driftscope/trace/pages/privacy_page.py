"""Prints the marks of a trace's columns: `python -m driftscope.trace.pages.privacy_page`.

Its output is docs/privacy.md. Kinds come from `driftscope.trace.format.privacy`, meanings from
`driftscope.trace.pages.columns_page`.
"""

from __future__ import annotations

import sys

from driftscope.trace.format.privacy import (
    CONTENT,
    FIGURE,
    IDENTIFIER,
    REQUEST,
    TRACEPARENT,
    kind_of,
)
from driftscope.trace.format.records import RECORDS
from driftscope.trace.pages.columns_page import columns_of

_PROBE = ("draft", "verify", "step", "request", "resource")
"""Records that a probe in an engine writes; a replay writes the others."""
_WITHOUT = {REQUEST: "16 hex digits, a keyed hash", TRACEPARENT: "null"}
"""Contents of columns of the probe's records under DRIFTSCOPE_IDENTIFIERS=off."""
_HEAD = f"""# Privacy

What a run tells about people and their texts: each column is one of three kinds. Written by
`python -m driftscope.trace.pages.privacy_page` from `driftscope/trace/format/privacy.py`.

| kind | meaning |
|---|---|
| {CONTENT} | text or tokens of a prompt or an answer, or what gives a known text away |
| {IDENTIFIER} | a name of a request, a workload or a process, as a client or a machine gave it |
| {FIGURE} | a number, a time, a flag, or a word that the engine chooses |

- A probe in an engine records no text. It records token ids only under `DRIFTSCOPE_TOKEN_IDS=1`:
  with the tokenizer they are text.
- A replay records no text of an answer, but a digest of it: whoever has a candidate text can check
  whether it is the answer. `error` is in the server's words, which may quote a request. A replay's
  API key is in neither.
- Request ids, labels and trace contexts are recorded as clients give them. A client that puts a
  name or an address into one puts it into the run, and into reports and spans.
- Figures of one request (its times and token counts) can be matched with another log that has them.
  They are no names, and they are not anonymous.
- The manifest holds paths or names of models, versions and settings. A status file holds the id of
  the process and the message of the first error that the probe met.

## Switching identifiers off

`DRIFTSCOPE_IDENTIFIERS=off` (`identifiers = false` in the settings' file) keeps request ids and
trace contexts out of a run, out of its status files, and out of spans:

- a request id becomes a keyed hash of 16 hex digits (BLAKE2b). It is the same in every record and
  process of a start, so that all figures are the same as with identifiers;
- the trace context is null: spans then begin traces of their own;
- the first error in a status file is its class, without a message.

The key is random, made in the first process and handed on to its children in the environment
variable `DRIFTSCOPE_REQUEST_KEY`. It is written to no file. Nobody who has only the run can check
whether a known id is in it; who can read the environment of the engine's processes while they run
can. Where processes do not inherit their environment from one another, such as on several machines,
give all of them the same 32 random hex digits in that variable and a new value for each run.

Labels stay: operators set them to split figures. Do not send any, or do not let clients send any,
if they are not wanted. A replay writes its own side of the requests as it sent them; it cannot be
joined to a run whose request ids are hashed. Runs that are recorded already are not changed.
"""


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(map(_section, RECORDS))


def _section(record: str) -> str:
    rows = "".join(
        f"| `{column.name}` | {kind_of(record, column.name)} | {_without(record, column.name)} |\n"
        for column in columns_of(record)
    )
    return f"\n## {record}\n\n| column | kind | with identifiers off |\n|---|---|---|\n{rows}"


def _without(record: str, column: str) -> str:
    if record not in _PROBE or kind_of(record, column) != IDENTIFIER:
        return "as it is"
    return _WITHOUT.get(column, "as it is")


if __name__ == "__main__":
    sys.stdout.write(page())

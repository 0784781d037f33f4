"""Prints the marks of a trace's columns: `python -m driftscope.trace.pages.privacy_page`.

Its output is docs/privacy.md. Kinds come from `driftscope.trace.schema`, meanings from
`driftscope.trace.pages.columns_page`.
"""

from __future__ import annotations

import sys

from driftscope.trace.pages.columns_page import columns_of
from driftscope.trace.records import RECORDS
from driftscope.trace.schema import (
    CONTENT,
    FIGURE,
    HASHED,
    IDENTIFIER,
    TRACEPARENT,
    kind_of,
)

_PROBE = ("draft", "verify", "step", "request", "resource")
"""Records that a probe in an engine writes; a replay writes the others."""
_WITHOUT = {**dict.fromkeys(HASHED, "16 hex digits, a keyed hash"), TRACEPARENT: "null"}
"""Contents of columns of the probe's records under DRIFTSCOPE_IDENTIFIERS=off."""
_HEAD = f"""# Privacy

What a run reveals about people and their texts: each column is of one of three kinds. Written by
`python -m driftscope.trace.pages.privacy_page` from `driftscope/trace/schema.py`.

| kind | meaning |
|---|---|
| {CONTENT} | text or tokens of a prompt or an answer, or a value that identifies a known text |
| {IDENTIFIER} | a name of a request, a workload or a process, as a client or a machine gave it |
| {FIGURE} | a number, a time, a flag, or a word that the engine chooses |

- A probe in an engine records no text. It records token ids only under `DRIFTSCOPE_TOKEN_IDS=1`:
  with the tokenizer they are text.
- It records a keyed hash of each prompt's token ids (`prompt_digest`, and `conversation`, that of a
  conversation's first prompt), with which analysis recognises prompts that repeat. The key is
  random at each start and in no file, so nobody who has only the run can check whether a known
  prompt is in it. Under `DRIFTSCOPE_PROMPT_SALT` the key is made from that text, so that runs can
  be compared prompt by prompt: whoever knows the text and has the tokenizer can check whether a
  known prompt is in a run, so treat it as a secret. `DRIFTSCOPE_PROMPT_DIGESTS=off` records neither
  column.
- A replay records no text of an answer, but a digest of it: whoever has a candidate text can check
  whether it is the answer. `error` is the server's message, which may quote a request. A replay's
  API key is in neither.
- Request ids, labels, sessions and trace contexts are recorded as clients give them. A client that
  puts a name or an address into one puts it into the run, and into reports and spans.
- Figures of one request (its times and token counts) can be matched with another log that has them.
  They are not names, but they are not anonymous either.
- The manifest holds paths or names of models, versions and settings. A status file holds the id of
  the process and the message of the first error that the probe caught.

## Switching identifiers off

`DRIFTSCOPE_IDENTIFIERS=off` (`identifiers = false` in the settings' file) keeps request ids,
sessions and trace contexts out of a run, out of its status files, and out of spans:

- a request id becomes a keyed hash of 16 hex digits (BLAKE2b). It is the same in every record and
  process of a start, so that all figures are the same as with identifiers. So does a session, the
  question of a replay, and once more a prompt's digest, which then is the same within one start
  only;
- the trace context is null: spans then start their own traces;
- the first error in a status file is its class, without a message.

The key is random, made in the first process and handed on to its children in the environment
variable `DRIFTSCOPE_REQUEST_KEY`. It is written to no file. Nobody who has only the run can check
whether a known id is in it. Anyone who can read the environment of the engine's processes while
they run can. If processes do not inherit their environment from one another, for example on several
machines, give all of them the same 32 random hex digits in that variable, and a new value for each
run.

Labels stay: operators set them to split figures. If you do not want them, do not send any, and do
not let clients send any. A replay writes its requests as it sent them; it cannot be matched
with a run whose request ids are hashed. Runs that are recorded already are not changed.
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
    if record not in _PROBE or kind_of(record, column) == FIGURE:
        return "unchanged"
    return _WITHOUT.get(column, "unchanged")


if __name__ == "__main__":
    sys.stdout.write(page())

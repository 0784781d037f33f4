"""Columns that hold content or identifiers, and how an engine's identifiers are kept out of a run.

=================================  ==========================================================
`kind_of("request", "label")`       IDENTIFIER
`Pseudonyms(key).name("cmpl-7")`    16 hex digits, equal wherever the key is equal
`Pseudonyms(key).batch(...)`        a batch with hashed request ids and without trace context
=================================  ==========================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pyarrow as pa

from driftscope.trace.format.arrow_arrays import array_of
from driftscope.trace.format.schema import schema_of

CONTENT = "content"
"""Text or tokens of a prompt or an answer, or data that reveals a known text."""
IDENTIFIER = "identifier"
"""Names given by a client, an operator or a machine: of a request, a workload, a process."""
FIGURE = "figure"
"""Numbers, times, flags, and words that the engine chooses."""
KINDS = (CONTENT, IDENTIFIER, FIGURE)

MARKED: Mapping[str, Mapping[str, str]] = {
    "draft": {
        "request": IDENTIFIER,
        "token_ids": CONTENT,
        "strategy": FIGURE,
        "execution": FIGURE,
    },
    "verify": {"request": IDENTIFIER, "reason": FIGURE},
    "step": {"execution": FIGURE},
    "request": {
        "request": IDENTIFIER,
        "label": IDENTIFIER,
        "traceparent": IDENTIFIER,
        "finish_reason": FIGURE,
        "structured": FIGURE,
        "prompt_digest": CONTENT,
        "conversation": CONTENT,
        "session": IDENTIFIER,
        "pair": IDENTIFIER,
        "region_starts": CONTENT,
        "region_codes": CONTENT,
        "region_languages": CONTENT,
        "region_boundaries": CONTENT,
        "region_copies": CONTENT,
    },
    "resource": {"source": IDENTIFIER},
    "client": {
        "request": IDENTIFIER,
        "response": IDENTIFIER,
        "condition": IDENTIFIER,
        "pair": IDENTIFIER,
        "error": CONTENT,
        "digest": CONTENT,
        "ended": FIGURE,
        "finish_reason": FIGURE,
        "drafted": FIGURE,
        "accepted": FIGURE,
    },
}
"""Kinds of the columns that hold texts or lists of whole numbers, by record."""

REQUEST, TRACEPARENT = "request", "traceparent"
HASHED = (REQUEST, "prompt_digest", "conversation", "session", "pair")
"""Columns of which a run without identifiers has keyed hashes."""
NAME_BYTES = 8
"""Bytes of a hashed request id. Two of a million requests share one with probability 3e-8."""


def kind_of(record: str, column: str) -> str:
    """Return CONTENT, IDENTIFIER or FIGURE.

    Numbers, flags and lists of measured numbers are figures. Raises KeyError for any other column
    that MARKED does not name, so that a new text is never taken for a figure by mistake.
    """
    marked = MARKED.get(record, {})
    if column in marked or not _is_measured(schema_of(record).field(column).type):
        return marked[column]
    return FIGURE


def _is_measured(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return bool(pa.types.is_floating(kind.value_type))
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


class Pseudonyms:
    """Replaces the columns HASHED by keyed hashes, removes the trace context and changes nothing
    else.

    Rows of one request have the same hash wherever the key is the same, so that records still join,
    and so have equal prompts and requests of one session. The key is not stored in the run: without
    it nobody can test which id or prompt a hash stands for.
    """

    def __init__(self, key: bytes) -> None:
        """`key`: 1 to 64 random bytes, shared by the processes of a run."""
        self._key = key

    def name(self, request: str) -> str:
        """Return the hash of a request id, 16 hex digits."""
        text = request.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._key, digest_size=NAME_BYTES).hexdigest()

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of any record with their identifiers replaced."""
        names = batch.schema.names
        for at in [names.index(name) for name in HASHED if name in names]:
            batch = batch.set_column(at, batch.schema.field(at), self._hashed(batch.column(at)))
        if TRACEPARENT in names:
            at = names.index(TRACEPARENT)
            field = batch.schema.field(at)
            batch = batch.set_column(at, field, pa.nulls(batch.num_rows, field.type))
        return batch

    def _hashed(self, names: pa.Array) -> pa.Array:
        """Hash each name once: a batch has many rows of few requests. Null stays null."""
        given = names.to_pylist()
        hashed = {each: None if each is None else self.name(each) for each in set(given)}
        return array_of([hashed[each] for each in given], names.type)

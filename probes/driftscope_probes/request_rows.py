"""Rows of verifications and of requests that ended, keyed digests of prompts, and the conversations
that prompts continue.

Everything here runs on the writer's thread. A prompt continues a conversation if it begins with an
earlier prompt of this process and the beginning of its answer. A request is any object with
`prompt_token_ids` and `output_token_ids`, such as vLLM's Request.
"""

from __future__ import annotations

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from driftscope.regions import CONSTRAINTS, AnswerRegions, TokenTexts, answer_regions, marks_of
from driftscope.trace.records import RequestRow
from driftscope.trace.schema import Block

DIGEST_BYTES = 8
"""Bytes of a digest. Two of a million prompts share one with probability 3e-8."""
ANSWER_TOKENS = 8
"""Number of an answer's first tokens that a prompt has to repeat to continue it. Its last ones may
differ: a front end removes stop strings, and the next turn is tokenised anew."""
REMEMBERED_ANSWERS = 16_384
"""Number of ended requests whose continuation is recognised; about 3 MB of memory."""
_PERSON = b"ds-prompt"
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of splitmix64 (Steele, Lea and Flood 2014)."""
_Words = NDArray[np.uint64]


class PromptDigests:
    """Digests of the prompts of one engine core, in order of the requests' ends."""

    def __init__(self, key: bytes) -> None:
        """`key`: 1 to 64 secret bytes; the digests of two processes agree if their keys do."""
        self._key = key
        secret = hashlib.blake2b(b"prefix", key=key, digest_size=8, person=_PERSON).digest()
        self._secret = np.uint64(int.from_bytes(secret, "little"))
        self._roots: OrderedDict[int, tuple[str, int]] = OrderedDict()
        """First prompt's digest of each conversation, and the length of what its next prompt begins
        with, by the hash of that."""
        self._lengths: dict[int, int] = {}
        """Number of remembered beginnings of each length."""

    def of(self, request: Any) -> tuple[str | None, str | None]:
        """Return the digest of a finished request's prompt, and that of the first prompt of its
        conversation; None if the prompt has no token ids."""
        if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
            return None, None
        parts: Iterable[Any] = getattr(request, "mm_features", None) or ()
        names = [str(getattr(part, "identifier", part)) for part in parts]
        media = hashlib.blake2b("\n".join(names).encode(), digest_size=8).digest() if names else b""
        tokens = np.array(request.prompt_token_ids, dtype=np.int64)
        digest = self._digest(tokens, media)
        answer = list(request.output_token_ids[:ANSWER_TOKENS])
        known = np.append(tokens, np.array(answer, dtype=np.int64))
        hashes = self._prefixes(known, media)
        root = self._root(hashes[: len(tokens)]) or digest
        if answer:
            beginning = int(hashes[-1])
            length = len(known)
            self._forget(beginning)
            self._roots[beginning] = root, length
            self._lengths[length] = self._lengths.get(length, 0) + 1
            if len(self._roots) > REMEMBERED_ANSWERS:
                self._forget(next(iter(self._roots)))
        return digest, root

    def _digest(self, tokens: NDArray[np.int64], media: bytes) -> str:
        data = tokens.tobytes() + media
        return hashlib.blake2b(
            data, key=self._key, digest_size=DIGEST_BYTES, person=_PERSON
        ).hexdigest()

    def _root(self, hashes: _Words) -> str | None:
        """Return the conversation of the longest remembered beginning of a prompt."""
        lengths = sorted((n for n in self._lengths if n <= len(hashes)), reverse=True)
        beginnings = hashes[np.array(lengths, dtype=np.int64) - 1].tolist() if lengths else ()
        return next((self._roots[start][0] for start in beginnings if start in self._roots), None)

    def _forget(self, beginning: int) -> None:
        _, length = self._roots.pop(beginning, ("", None))
        if length is None:
            return
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]

    def _prefixes(self, tokens: NDArray[np.int64], media: bytes) -> _Words:
        """Return a hash of the first 1, 2, .. tokens, [tokens]: the sum of a keyed hash of each
        token at its place. It stays in memory."""
        with np.errstate(over="ignore"):
            place = _mixed(np.arange(len(tokens), dtype=np.uint64) ^ self._secret)
            start = np.uint64(int.from_bytes(media[:8].ljust(8, b"\0"), "little"))
            return np.asarray(np.cumsum(_mixed(tokens.astype(np.uint64) ^ place)) + start)


def _mixed(words: _Words) -> _Words:
    """Return splitmix64 of each word."""
    words = words + np.uint64(_STEP)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return np.asarray(words ^ (words >> np.uint64(31)))


REMEMBERED_REQUESTS = 65_536
"""Largest number of requests remembered at once, so that dropped ends leave no state for good."""
Verified = tuple[int, float, str, int, int, int, int, str | None, int]
_COLUMNS = (
    *("step", "time_s", "request", "position", "drafted", "verified", "accepted"),
    *("reason", "replica"),
)
"""Columns of a VerifyRow. Rows are plain tuples, because objects cost several times as much; a busy
server creates thousands of rows a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """A request that ended, without what the writer's thread computes of it."""

    row: RequestRow
    request: Any
    """Object with the token ids of prompt and answer, which no longer changes."""


AT_END_S = 2.0
"""Longest time for regions once the engine stops, in seconds. vLLM kills an engine core 5 s after
it asked it to end, and a thousand tokens take about 1 ms."""


class RequestRegions:
    """Regions of the answers of one engine core."""

    def __init__(
        self,
        parsers: tuple[str | None, str | None],
        tokenizer_of: Callable[[Any], Any],
        from_start: Callable[[], bool] = lambda: False,
    ) -> None:
        """`parsers`: names of the server's tool parser and reasoning parser. `tokenizer_of` returns
        the tokenizer of a request, None if the core has none. `from_start` returns whether an
        answer is constrained from its first token on."""
        self._marks, self._tokenizer_of = marks_of(*parsers), tokenizer_of
        self._from_start = from_start
        self._tokenizer: Any = None
        self._until = math.inf

    def hurry(self) -> None:
        """Return None for answers from AT_END_S on, because the engine stops."""
        self._until = time.monotonic() + AT_END_S

    def of(self, request: Any, structured: str | None) -> AnswerRegions | None:
        """Return the regions of the answer of a request that ended, whole or not; None if there is
        no tokenizer, or no time left."""
        tokenizer = self._tokenizer_of(request)
        if tokenizer is None or time.monotonic() > self._until:
            return None
        if self._tokenizer is not tokenizer:
            self._tokenizer, self._texts = tokenizer, TokenTexts(tokenizer, self._marks)
        return answer_regions(
            self._texts,
            request.prompt_token_ids or (),
            list(request.output_token_ids),
            constraint=CONSTRAINTS.get(structured or ""),
            from_start=self._from_start(),
        )


Found = TypeVar("Found")


class RequestTracker(ABC):
    """Builds the rows of steps, and of requests that ended, on the writer's thread."""

    def __init__(
        self,
        count_error: Callable[[str, BaseException], None],
        digests: PromptDigests | None = None,
        regions: RequestRegions | None = None,
    ) -> None:
        """`count_error` is called for a step that cannot be read, whose rows are lost; without
        `digests` or `regions`, requests get none."""
        self._count_error, self._digests, self._regions = count_error, digests, regions
        self._step = 0

    def rows(self, seen: list[Any]) -> list[Block | RequestRow]:
        """Return a block of the drafts that the steps verified, then the requests that ended in
        them, with TTFT and TPOT filled in. An item is an EndedRequest or an engine's step."""
        verified: list[Verified] = []
        ended: list[Block | RequestRow] = []
        for item in seen:
            try:
                if isinstance(item, EndedRequest):
                    ended.append(self._ended(item))
                else:
                    verified += self._verified(item)
            except Exception as error:  # a step that cannot be read must not cost the next one
                self._count_error("verify", error)
        if not verified:
            return ended
        columns = dict(zip(_COLUMNS, map(list, zip(*verified, strict=True)), strict=True))
        return [Block(record="verify", rows=len(verified), columns=columns), *ended]

    @abstractmethod
    def _verified(self, step: Any) -> list[Verified]:
        """Return the rows of an engine's step."""

    @abstractmethod
    def _forget(self, request: str) -> tuple[float, float] | None:
        """Forget a request; return the times of its first and last token, None without one."""

    def _ended(self, ended: EndedRequest) -> RequestRow:
        row, request = ended.row, ended.request
        regions = None
        if self._regions is not None:
            regions = self._tried("regions", self._regions.of, request, row.structured)
        if regions is not None:
            row = replace(
                row,
                region_starts=regions.starts,
                region_codes=regions.codes,
                region_languages=regions.languages,
                region_boundaries=regions.boundaries,
                region_copies=regions.copies,
            )
        times, tokens = self._forget(row.request), row.output_tokens
        digests = None
        if self._digests is not None:
            digests = self._tried("digest", self._digests.of, request)
        digest, conversation = digests or (None, None)
        return replace(
            row,
            prompt_digest=digest,
            conversation=conversation,
            ttft_s=None if times is None else max(0.0, times[0] - row.arrival_s),
            tpot_s=None if times is None or tokens < 2 else (times[1] - times[0]) / (tokens - 1),
        )

    def _tried(self, what: str, find: Callable[..., Found], *args: Any) -> Found | None:
        """Return what `find` returns; an error costs that, and not the row."""
        try:
            return find(*args)
        except Exception as error:
            self._count_error(what, error)
            return None

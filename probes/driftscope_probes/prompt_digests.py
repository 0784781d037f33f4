"""Keyed digests of prompts, and the conversations that prompts continue.

Everything here runs on the writer's thread, once per finished request. A prompt continues a
conversation if it begins with an earlier prompt of this process and the beginning of its answer. A
request is any object with `prompt_token_ids` and `output_token_ids`, such as vLLM's Request.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        self._roots: OrderedDict[int, str] = OrderedDict()
        """First prompt's digest of each conversation, by the hash of what its next prompt begins
        with."""
        self._lengths: dict[int, int] = {}
        """Number of remembered beginnings of each length."""
        self._length_of: dict[int, int] = {}

    def of(self, request: Any) -> tuple[str | None, str | None]:
        """Return the digest of a finished request's prompt, and that of the first prompt of its
        conversation; None if the prompt has no token ids."""
        if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
            return None, None
        media = _media(request)
        tokens = np.array(request.prompt_token_ids, dtype=np.int64)
        digest = self._digest(tokens, media)
        answer = list(request.output_token_ids[:ANSWER_TOKENS])
        known = np.append(tokens, np.array(answer, dtype=np.int64))
        hashes = self._prefixes(known, media)
        root = self._root(hashes[: len(tokens)]) or digest
        if answer:
            self._remember(int(hashes[-1]), len(known), root)
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
        return next((self._roots[start] for start in beginnings if start in self._roots), None)

    def _remember(self, beginning: int, length: int, root: str) -> None:
        self._forget(beginning)
        self._roots[beginning], self._length_of[beginning] = root, length
        self._lengths[length] = self._lengths.get(length, 0) + 1
        if len(self._roots) > REMEMBERED_ANSWERS:
            self._forget(next(iter(self._roots)))

    def _forget(self, beginning: int) -> None:
        if self._roots.pop(beginning, None) is None:
            return
        length = self._length_of.pop(beginning)
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


def _media(request: Any) -> bytes:
    """Return a digest of the images and sounds of a prompt, whose tokens are placeholders; b"" for
    text."""
    parts: Iterable[Any] = getattr(request, "mm_features", None) or ()
    names = [str(getattr(part, "identifier", part)) for part in parts]
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).digest() if names else b""

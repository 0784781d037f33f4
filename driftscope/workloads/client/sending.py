"""Send one planned request, with retries, and record its course."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from driftscope.boundary.http_peer import public
from driftscope.vocabulary import Ended
from driftscope.workloads.client.answer import (
    BrokenStreamError,
    Counts,
    Events,
    StreamedAnswer,
    counts_of,
    words_of,
)
from driftscope.workloads.client.server import CHAT, TEXT, Wire
from driftscope.workloads.suites.prompts import Prompt

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed: those that OpenAI's client retries, and
425."""
FIRST_WAIT_S = 0.5
"""Wait before the first retry, in seconds. It doubles for each further one, unless the server gives
a time."""
LONGEST_WAIT_S = 60.0
"""Longest wait that a server may ask for, in seconds; more counts as a refusal."""
LAST_BYTES_S = 1.0
"""Longest wait for the end of a body after its last event, in seconds. A connection is reused only
if its answer was read to the end."""
CUT_OFF = frozenset({"abort", "error"})
"""Finish reasons of an answer that the server aborted."""
SLACK = 0.05
"""Share by which the time without a byte may exceed `Patience.idle_s`; the timeout is not reset for
each piece."""
REDIRECTS = 300
BAD_STATUS = 400
MOST_ERROR_BYTES = 1 << 16
MOST_WORDS = 300
"""Most characters of an error's text that are kept."""
_CONNECTION_ERRORS = (aiohttp.ClientError, OSError)
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
LABEL_HEADER, PAIR_HEADER = "X-Driftscope-Label", "X-Driftscope-Pair"


def body_of(
    prompt: Prompt, model: str, settings: Mapping[str, Any], tokens: list[int] | None = None
) -> dict[str, Any]:
    """Return the JSON body of a request.

    `tokens`: token ids of a prompt that is sent as rendered, see
    `driftscope.workloads.client.replay`.
    """
    body: dict[str, Any] = {"model": model, **STREAM, **settings, **prompt.options}
    if tokens is not None:
        return {**body, "prompt": tokens}
    if prompt.text is not None:
        return {**body, "prompt": prompt.text}
    body["messages"] = list(prompt.messages)
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits and retries of a sender."""

    timeout_s: float = 600.0
    """Longest time for one complete answer, in seconds; the default of OpenAI's client."""
    idle_s: float = 120.0
    """Longest time without a byte, in seconds; up to SLACK longer is possible."""
    retries: int = 2
    """Retries of an attempt that brought no token. An attempt that broke off later is not repeated:
    its tokens were seen, and a second answer would hide that."""


@dataclass(slots=True, kw_only=True)
class Sent:
    """Course of one request. Times are of `time.perf_counter`, except those named `unix`."""

    request: str
    attempts: int = 0
    begun_s: float = 0.0
    ended_s: float = 0.0
    waited_s: float = 0.0
    sent: float = 0.0
    sent_unix_s: float | None = None
    pieces: list[float] = field(default_factory=list)
    """Arrival time of each piece of the answer."""
    answer: StreamedAnswer = field(default_factory=StreamedAnswer)
    counts: Counts = field(default_factory=Counts)
    done: bool = False
    """Whether the stream reported its end; later data changes nothing."""
    status: int | None = None
    error: str | None = None
    ended: str = Ended.UNSENT


class RequestSender:
    """Sends requests over one wire."""

    def __init__(
        self,
        wire: Wire,
        patience: Patience,
        *,
        seed: int = 0,
        recorded: Callable[[str], str] = str,
    ) -> None:
        """`recorded` removes secrets from the server's texts before they are recorded."""
        self._wire, self._patience, self._recorded = wire, patience, recorded
        self._random = random.Random(seed)

    async def send(self, sent: Sent, body: Mapping[str, Any], label: str, pair: str = "") -> None:
        """Fill `sent`; raise nothing but CancelledError, and fill `sent` in that case as well."""
        name, sent.begun_s = sent.request, time.perf_counter()
        try:
            for attempt in range(self._patience.retries + 1):
                sent.request = name if attempt == 0 else f"{name}.{attempt + 1}"
                sent.attempts, sent.answer, sent.pieces = attempt + 1, StreamedAnswer(), []
                wait_s = await self._attempt(
                    sent, body, {LABEL_HEADER: label, **({PAIR_HEADER: pair} if pair else {})}
                )
                if wait_s is None or attempt == self._patience.retries:
                    break
                backoff_s = min(FIRST_WAIT_S * 2.0**attempt, LONGEST_WAIT_S)
                wait_s = wait_s or backoff_s * self._random.uniform(0.75, 1.25)
                await asyncio.sleep(wait_s)
                sent.waited_s += wait_s
        except asyncio.CancelledError:
            sent.ended = Ended.CANCELLED
            raise
        finally:
            sent.ended_s = sent.ended_s or time.perf_counter()
            self._count(sent)
            self._clean(sent)

    def _clean(self, sent: Sent) -> None:
        """Remove secrets that the server repeats from everything that is recorded."""
        answer, texts = sent.answer, (sent.answer.response, sent.answer.finish_reason, sent.error)
        clean = (text if text is None else self._recorded(text) for text in texts)
        answer.response, answer.finish_reason, error = clean
        sent.error = error and error[:MOST_WORDS]

    async def _attempt(
        self, sent: Sent, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> float | None:
        """Make one attempt. Return None when the request is over, else the seconds to wait before a
        retry; 0 leaves the wait to the sender."""
        sent.sent, sent.sent_unix_s = time.perf_counter(), time.time()
        whole = asyncio.timeout(self._patience.timeout_s)
        try:
            async with whole, asyncio.timeout(self._patience.idle_s * (1 + SLACK)) as limit:
                came = await self._wire.post(
                    CHAT if "messages" in body else TEXT,
                    orjson.dumps(body),
                    {"X-Request-Id": sent.request, **headers},
                )
                try:
                    sent.status = came.status
                    if came.status >= REDIRECTS:
                        return await self._refused(sent, came)
                    await self._stream(sent, came.content, limit)
                finally:
                    came.release()  # reused if read to its end, else closed
        except TimeoutError:
            if not sent.done:
                sent.ended = Ended.TIMEOUT
                sent.error = (
                    f"no complete answer within {self._patience.timeout_s:g} s"
                    if whole.expired()
                    else f"no data received for {self._patience.idle_s:g} s"
                )
                return None
        except BrokenStreamError as error:
            if not sent.done:
                sent.ended, sent.error = Ended.INTERRUPTED, str(error)
                return None
        except _CONNECTION_ERRORS as error:
            if not sent.done:
                sent.ended = Ended.INTERRUPTED if sent.pieces else Ended.UNREACHED
                sent.error = " ".join((str(error) or type(error).__name__).split())[:MOST_WORDS]
                return 0.0 if sent.ended == Ended.UNREACHED else None
        self._ended(sent)
        return None

    async def _refused(self, sent: Sent, came: aiohttp.ClientResponse) -> float | None:
        sent.ended = Ended.REFUSED
        if came.status < BAD_STATUS:
            location = public(came.headers.get("location", "nowhere"))
            sent.error = f"HTTP {came.status}: a redirect to {location}, which is not followed"
            return None
        sent.error = f"HTTP {came.status}: {words_of(await came.content.read(MOST_ERROR_BYTES))}"
        if came.status not in RETRIED:
            return None
        asked_s = _retry_after_s(came.headers.get("retry-after"))
        return None if asked_s > LONGEST_WAIT_S else asked_s

    async def _stream(
        self, sent: Sent, content: aiohttp.StreamReader, limit: asyncio.Timeout
    ) -> None:
        events, add = Events(), sent.answer.add
        idle_s, set_at = self._patience.idle_s, time.perf_counter()
        while piece := await content.readany():
            now = time.perf_counter()
            if now - set_at > SLACK * idle_s and not sent.done:
                set_at = now
                _set(limit, idle_s * (1 + SLACK))
            has_answer = False
            for event in events.feed(piece):
                has_answer |= not sent.done and add(event)
            if has_answer:
                sent.pieces.append(now)
            if events.done and not sent.done:
                sent.done, sent.ended_s = True, now
                _set(limit, LAST_BYTES_S)
        if events.open and not events.done:
            raise BrokenStreamError("the stream ended in the middle of an event")

    def _ended(self, sent: Sent) -> None:
        answer = sent.answer
        if answer.error is not None:
            sent.ended = Ended.INTERRUPTED if sent.pieces else Ended.REFUSED
            sent.error = answer.error
        elif answer.finish_reason is None or answer.finish_reason in CUT_OFF:
            sent.ended = Ended.INTERRUPTED
            sent.error = f"the stream ended with finish reason {answer.finish_reason}"
        else:
            sent.ended = Ended.ANSWERED

    def _count(self, sent: Sent) -> None:
        """Check the server's counts; an answer whose counts cannot be right is no answer."""
        try:
            sent.counts = counts_of(sent.answer.usage, sent.answer.speculation)
        except BrokenStreamError as error:
            if sent.ended == Ended.ANSWERED:
                sent.ended, sent.error = Ended.INTERRUPTED, str(error)


def _retry_after_s(header: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 if it is missing or a date."""
    try:
        seconds = float(header or 0.0)
    except ValueError:
        return 0.0
    return 0.0 if math.isnan(seconds) else max(seconds, 0.0)


def _set(limit: asyncio.Timeout, seconds: float) -> None:
    limit.reschedule(asyncio.get_running_loop().time() + seconds)

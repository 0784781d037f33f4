"""Bounded queries of a replay about the server itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from driftscope.boundary.bounds import MAX_METRICS_BYTES
from driftscope.boundary.http_peer import OK, Limits, PeerAnswer, ask
from driftscope.errors import PeerError
from driftscope.workloads.client.http_transport import headers_of, tls
from driftscope.workloads.client.server_access import Access
from driftscope.workloads.client.server_errors import words_of

LOOK_S = 15.0
"""Longest time for one complete answer, in seconds."""
LIMITS = Limits(seconds=LOOK_S, octets=MAX_METRICS_BYTES)
_MOST_WORDS = 300
Checked = TypeVar("Checked", bound=BaseModel)


class Lookup:
    """Asks one server, with the headers that requests to it have.

    ==============================  ==========================================================
    `await text("/metrics")`         the body of a GET below the server's root
    `await value(Kind, "/version")`  the same as JSON of a pydantic model
    `await value(Kind, path, body)`  the same by POST
    ==============================  ==========================================================

    All raise PeerError, whose words hold no key.
    """

    def __init__(self, access: Access, headers: Mapping[str, str]) -> None:
        self._access, self._headers = access, headers

    @classmethod
    async def of(cls, access: Access) -> Lookup:
        """Return a look-up that sends the headers of openai's client."""
        async with access.client() as client:
            return cls(access, await headers_of(client))

    async def text(self, path: str) -> str:
        """Return the body of an answer of status 200."""
        return (await self._ask(path, None, LIMITS)).text()

    async def value(
        self,
        kind: type[Checked],
        path: str,
        body: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> Checked:
        """Return the body, parsed as JSON and validated against `kind`."""
        answer = await self._ask(path, body, limits or LIMITS)
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            raise self._failed(path, first_fault(error)) from error

    async def _ask(self, path: str, body: Mapping[str, Any] | None, limits: Limits) -> PeerAnswer:
        url = self._access.root + path
        content = None if body is None else orjson.dumps(body)
        try:
            answer = await asyncio.to_thread(
                ask, url, limits, body=content, headers=self._headers, tls=tls()
            )
        except PeerError as error:
            raise self._failed(path, error.why) from error
        if answer.status != OK:
            raise self._failed(path, f"HTTP {answer.status}: {words_of(answer.content)}")
        return answer

    def _failed(self, path: str, why: str) -> PeerError:
        return PeerError(self._access.root + path, self._access.printable(why)[:_MOST_WORDS])


def first_fault(error: ValidationError) -> str:
    """Return the first fault that pydantic found, and its place, without the value."""
    detail = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in detail["loc"])
    return f"{place}: {detail['msg']}" if place else str(detail["msg"])

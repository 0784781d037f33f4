"""HTTP transport of a replay: the requests that openai's client would send, posted over aiohttp.

That client recomputes its options, headers and URL for each request, which takes more CPU time than
the rest of a replay. It is therefore asked once per endpoint, and its request is sent with other
bodies.
"""

from __future__ import annotations

import functools
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Any

import aiohttp
import httpx2
import openai
from yarl import URL

from driftscope.workloads.client.request_body import CHAT, TEXT

_OWN = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding"})
"""Headers of a single message, which aiohttp sets itself."""
_FORCED = {"Accept-Encoding": "identity"}
"""Forced headers: a compressed stream would arrive in pieces that the compressor chooses."""


@functools.cache
def tls() -> ssl.SSLContext:
    """Return the TLS context that openai's client uses, with the same trusted certificates. Reading
    them takes longer than a hundred requests."""
    return httpx2.create_ssl_context()


class Wire:
    """Posts to the endpoints of the server to which `client` belongs.

    Connections and time are not limited and cookies are not kept: each request is a user of its
    own, and the sender sets the timeouts. Redirects are not followed: a prompt goes where the user
    said and nowhere else.
    """

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client

    async def __aenter__(self) -> Wire:
        made = {path: await _made(self._client, path) for path in (CHAT, TEXT)}
        self._urls = {path: URL(str(request.url)) for path, request in made.items()}
        self._proxy = _proxy(self._urls[CHAT])
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls()),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
            headers={k: v for k, v in made[CHAT].headers.items() if k not in _OWN} | _FORCED,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(
        self, path: str, content: bytes, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        """Return the response, whatever its status, once its head has arrived; raises
        aiohttp.ClientError and OSError."""
        return await self._session.post(
            self._urls[path],
            data=content,
            headers=headers,
            proxy=self._proxy,
            allow_redirects=False,
        )


async def headers_of(client: openai.AsyncOpenAI) -> Mapping[str, str]:
    """Return the headers that `client` adds to every request."""
    made = await _made(client, CHAT)
    return {name: value for name, value in made.headers.items() if name not in _OWN}


async def _made(client: openai.AsyncOpenAI, path: str) -> httpx2.Request:
    """Return the request that `client` makes for a post to `path`, intercepted before it is
    sent."""
    caught: list[httpx2.Request] = []

    def catch(request: httpx2.Request) -> httpx2.Response:
        caught.append(request)
        return httpx2.Response(200, json={})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(catch)) as nowhere:
        options: Any = {"timeout": None}
        await client.with_options(http_client=nowhere, max_retries=0).post(
            path, body={}, cast_to=object, options=options
        )
    return caught[0]


def _proxy(url: URL) -> str | None:
    """Return the proxy from the environment's *_PROXY variables."""
    if urllib.request.proxy_bypass(url.host or ""):
        return None
    return urllib.request.getproxies().get(url.scheme)

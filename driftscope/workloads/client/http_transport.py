"""How a replay posts: what openai's client sends to an endpoint, again and again, over aiohttp.

That client works out its options, headers and URL anew for each request, which takes more of a
core than all the rest of a replay; so it is asked once for each endpoint, and what it would have
sent is sent with other bodies.
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
"""Headers of a single message, which aiohttp makes itself."""
_FORCED = {"Accept-Encoding": "identity"}
"""A compressed stream comes when the compressor likes."""


@functools.cache
def tls() -> ssl.SSLContext:
    """Which certificates are trusted: the same as everywhere in openai's client. Reading them takes
    longer than a hundred requests."""
    return httpx2.create_ssl_context()


class Wire:
    """Posts to the endpoints of the server that `client` is of.

    There is no limit of connections and of time, and no cookie is kept: each request is a user of
    its own, and how long to wait is the sender's to say. A redirect is not followed: a prompt goes
    where the user said, and nowhere else.
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
        """The response, of any status, when its head has come; raises aiohttp.ClientError and
        OSError."""
        return await self._session.post(
            self._urls[path],
            data=content,
            headers=headers,
            proxy=self._proxy,
            allow_redirects=False,
        )


async def headers_of(client: openai.AsyncOpenAI) -> Mapping[str, str]:
    """The headers that `client` gives every request."""
    made = await _made(client, CHAT)
    return {name: value for name, value in made.headers.items() if name not in _OWN}


async def _made(client: openai.AsyncOpenAI, path: str) -> httpx2.Request:
    """What `client` sends when it posts to `path`, caught before it leaves."""
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
    """What the environment's *_PROXY variables say."""
    if urllib.request.proxy_bypass(url.host or ""):
        return None
    return urllib.request.getproxies().get(url.scheme)

"""The HTTP below the openai client: aiohttp, with as little as possible between the two.

openai's own aiohttp client takes twice the processor time, most of it for merging headers and URLs
that do not change, for cookies and for redirects, and opens at most 100 connections.
"""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx2
import openai
from yarl import URL

_BODY = "driftscope_body"
_FORCED = {"Accept-Encoding": "identity"}
"""A compressed stream comes when the compressor likes."""


class Wire(openai.DefaultAioHttpClient):
    """What `openai.AsyncOpenAI` takes as `http_client`; posts without a time limit go the short
    way, all else as ever.

    There is no limit of connections, and no cookie is kept: each request is a user of its own.
    Raises aiohttp.ClientError where httpx2 would raise its own.
    """

    def __init__(self) -> None:
        super().__init__(timeout=None)
        self._urls: dict[str, tuple[httpx2.URL, URL, str | None]] = {}
        self._session: aiohttp.ClientSession | None = None

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        """As httpx2's."""
        content = options.get("content")
        if not isinstance(content, bytes) or options.get("timeout") or options.get("params"):
            return super().build_request(method, url, **options)
        name = str(url)
        if name not in self._urls:
            self._urls[name] = httpx2.URL(name), URL(name), _proxy(name)
        return httpx2.Request(
            method, self._urls[name][0], headers=options["headers"],
            stream=httpx2.ByteStream(content), extensions={_BODY: (content, options["headers"])},
        )  # fmt: skip

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """As httpx2's."""
        if _BODY not in request.extensions:
            return await super().send(request, **options)
        _, url, proxy = self._urls[str(request.url)]
        body, headers = request.extensions[_BODY]
        came = await self._opened().request(
            request.method, url, data=body, headers=headers, proxy=proxy
        )
        plain = [(k, v) for k, v in came.raw_headers if k.lower() != b"content-encoding"]
        response = httpx2.Response(
            came.status, headers=plain, stream=_Pieces(came), request=request
        )
        if not options.get("stream"):
            await response.aread()
        return response

    async def aclose(self) -> None:
        """As httpx2's."""
        if self._session is not None:
            await self._session.close()
        await super().aclose()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=httpx2.create_ssl_context()),
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(),
                headers=_FORCED,
            )  # fmt: skip
        return self._session


class _Pieces(httpx2.AsyncByteStream):
    """The bytes of an answer, as they come."""

    def __init__(self, came: aiohttp.ClientResponse) -> None:
        self._came = came

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._came.content.iter_any():
            yield piece

    async def aclose(self) -> None:
        self._came.release()


def _proxy(url: str) -> str | None:
    """What the environment's *_PROXY variables say, asked once for each address."""
    parts = URL(url)
    if urllib.request.proxy_bypass(parts.host or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)

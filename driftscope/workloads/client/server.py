"""The server under test: its address and key, requests to it, and the facts that it reports.

=================================  ============================================================
`Access.parsed(url)`                   address and credentials, from a URL and the environment
`async with Wire(access) as wire`  posts prompts, whose answers are streamed
`ServerLookup(access)`                   asks for a bounded answer: facts, tokens
`await look(lookup, access, None)`  facts that suites and manifests use
=================================  ============================================================
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import orjson
from pydantic import BaseModel, Field, ValidationError
from yarl import URL

from driftscope.boundary.bounds import MAX_LABEL_CHARS, MAX_METRICS_BYTES, MAX_TOKENS, first_fault
from driftscope.boundary.http_peer import (
    OK,
    AnswerLimits,
    PeerAnswer,
    ServerUrl,
    ask,
    public,
)
from driftscope.boundary.text import key_from, redacted, shown
from driftscope.errors import DriftscopeError, PeerError, UsageError
from driftscope.version import __version__
from driftscope.workloads.client.answer import words_of
from driftscope.workloads.suites.prompts import ServerFacts

API_KEY = "OPENAI_API_KEY"
"""Environment variable with the key, unless another variable is named."""
_ACCOUNT = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers that the environment sets, as for OpenAI's own clients."""
NO_KEY = "none"
"""Placeholder key: servers without keys accept any, and some require one."""
CHAT, TEXT = "/chat/completions", "/completions"
"""Endpoints below the server's /v1."""
_SHOWN = 200
"""Most characters of an invalid URL, and of its fault, that an error message repeats."""
LOOK_S = 15.0
"""Longest time for one complete answer about the server, in seconds."""
LIMITS = AnswerLimits(seconds=LOOK_S, octets=MAX_METRICS_BYTES)
_MOST_WORDS = 300
MAX_MODELS = 4096
MAX_NAME_CHARS = 4096
"""Longest model name, in characters: some models are served under their path."""
_MOST_DIGITS = 12
_BLOCKS = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
DRAFTS, _VLLM = "vllm:spec_decode_num_drafts", "vllm:num_requests_running"
"""Names of metrics: vLLM has the first one only if it was started with a drafter."""
_STARTED = re.compile(
    r"^process_start_time_seconds ([0-9.]{1,20}(?:e\+?[0-9]{1,2})?)$", re.MULTILINE
)
_PAIR = re.compile(r'(\w+)="([^"]*)"')
Checked = TypeVar("Checked", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Address and credentials of a server. Neither key nor password is in its `repr`."""

    base: str
    """Root of the API, such as http://127.0.0.1:8000/v1, without user and password."""
    authorization: str | None = field(default=None, repr=False)
    """Header for the user and password of the URL; it replaces a key."""
    key: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parsed(cls, url: str, *, api_key_env: str | None = None) -> Access:
        """Return the access to `url`; raise UsageError for a URL or a key that cannot be used."""
        try:
            server_url = ServerUrl.parsed(url if "//" in url else f"http://{url}")
            URL(server_url.plain)  # the client refuses some hosts, such as one that is too long
        except ValueError as error:
            raise UsageError(
                f"{public(url)[:_SHOWN]}: not a server's URL ({str(error)[:_SHOWN]}); give one "
                "such as http://127.0.0.1:8000"
            ) from error
        scheme, netloc, path, *_ = urlsplit(server_url.plain)
        named = api_key_env or (API_KEY if os.environ.get(API_KEY) else None)
        key = None if named is None else key_from(named, os.environ)
        return cls(
            base=urlunsplit((scheme, netloc, path or "/v1", "", "")),
            authorization=server_url.authorization,
            key=key,
            secrets=(*server_url.secrets, *([key] if key else [])),
        )

    @property
    def root(self) -> str:
        """Root of the server itself, above its /v1."""
        return self.base.removesuffix("/v1")

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        bearer = f"Bearer {self.key or NO_KEY}"
        account = {name: os.environ.get(variable) for name, variable in _ACCOUNT.items()}
        return {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": f"driftscope/{__version__}",
            "Authorization": self.authorization or bearer,
            **{name: value for name, value in account.items() if value},
        }

    def recorded(self, text: str) -> str:
        """Return the part of a server's `text` that may be recorded, without key or password."""
        return redacted(text, self.secrets)

    def printable(self, text: str) -> str:
        """Return the part of a server's `text` that may be printed."""
        return shown(self.recorded(text))


@functools.cache
def tls() -> ssl.SSLContext:
    """Return the TLS context of all requests. Reading the trusted certificates takes longer than a
    hundred requests."""
    return ssl.create_default_context()


class Wire:
    """Posts prompts to the server.

    Connections and time are not limited and cookies are not kept: each request is a user of its
    own, and the sender sets the timeouts. Redirects are not followed: a prompt goes where the user
    said and nowhere else.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._urls = {path: URL(access.base + path) for path in (CHAT, TEXT)}
        self._proxy = _proxy(self._urls[CHAT])

    async def __aenter__(self) -> Wire:
        # A compressed stream would arrive in pieces that the compressor chooses.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls()),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
            headers={**self._access.headers(), "Accept-Encoding": "identity"},
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


def _proxy(url: URL) -> str | None:
    """Return the proxy from the environment's *_PROXY variables."""
    if urllib.request.proxy_bypass(url.host or ""):
        return None
    return urllib.request.getproxies().get(url.scheme)


class ServerLookup:
    """Asks one server, with the headers that requests to it have.

    ==============================  ==========================================================
    `await metrics()`                the page of metrics, "" without one
    `await value(Kind, "/version")`  the same as JSON of a pydantic model
    `await value(Kind, path, body)`  the same by POST
    ==============================  ==========================================================

    `value` raises PeerError, whose words hold no key.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def metrics(self) -> str:
        """Return the server's page of metrics; "" if it has none."""
        try:
            return (await self._ask("/metrics", None, LIMITS)).text()
        except PeerError:
            return ""

    async def value(
        self,
        kind: type[Checked],
        path: str,
        body: Mapping[str, Any] | None = None,
        limits: AnswerLimits | None = None,
    ) -> Checked:
        """Return the body, parsed as JSON and validated against `kind`."""
        answer = await self._ask(path, body, limits or LIMITS)
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            raise self._failed(path, first_fault(error)) from error

    async def _ask(
        self, path: str, body: Mapping[str, Any] | None, limits: AnswerLimits
    ) -> PeerAnswer:
        url = self._access.root + path
        content = None if body is None else orjson.dumps(body)
        try:
            answer = await asyncio.to_thread(
                ask, url, limits, body=content, headers=self._access.headers(), tls=tls()
            )
        except PeerError as error:
            raise self._failed(path, error.why) from error
        if answer.status != OK:
            raise self._failed(path, f"HTTP {answer.status}: {words_of(answer.content)}")
        return answer

    def _failed(self, path: str, why: str) -> PeerError:
        return PeerError(self._access.root + path, self._access.printable(why)[:_MOST_WORDS])


class _Model(BaseModel):
    id: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    max_model_len: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None


class _Models(BaseModel):
    data: Annotated[list[_Model], Field(max_length=MAX_MODELS)]


class _Version(BaseModel):
    version: Annotated[str, Field(max_length=MAX_LABEL_CHARS)]


class _Launched(BaseModel):
    """Part of SGLang's /server_info: the options with which it was started."""

    speculative_algorithm: Annotated[str, Field(max_length=MAX_LABEL_CHARS)] | None


async def look(lookup: ServerLookup, access: Access, model: str | None) -> ServerFacts:
    """Return the facts that the server reports; raises DriftscopeError when it cannot be
    reached."""
    try:
        served = (
            await lookup.value(_Models, access.base.removeprefix(access.root) + "/models")
        ).data
    except PeerError as error:
        raise DriftscopeError(
            f"{access.base}: no OpenAI-compatible server answers there ({error.why}); start one, "
            f"or set {API_KEY} or --api-key-env if it wants a key"
        ) from error
    if model is None and not served:
        raise UsageError(f"{access.base}: the server names no model; give --model")
    chosen = model or served[0].id
    entry = next((entry for entry in served if entry.id == chosen), None)
    metrics = await lookup.metrics()
    return ServerFacts(
        url=access.base,
        model=chosen,
        max_model_len=None if entry is None else entry.max_model_len,
        version=await _version(lookup),
        kv_tokens=_kv_tokens(metrics),
        speculates=DRAFTS in metrics if _VLLM in metrics else await _sglang_speculates(lookup),
        started_s=min(map(float, _STARTED.findall(metrics)), default=None),
    )


def facts_of(url: str, api_key_env: str | None = None) -> ServerFacts:
    """Return the facts that the server at `url` reports; raises what `look` raises."""
    access = Access.parsed(url, api_key_env=api_key_env)
    return asyncio.run(look(ServerLookup(access), access, None))


async def _version(lookup: ServerLookup) -> str | None:
    try:
        return (await lookup.value(_Version, "/version")).version
    except PeerError:
        return None


async def _sglang_speculates(lookup: ServerLookup) -> bool | None:
    """Return whether SGLang was started with a drafter; None if the server is not SGLang."""
    try:
        return (await lookup.value(_Launched, "/server_info")).speculative_algorithm is not None
    except PeerError:
        return None


def _kv_tokens(metrics: str) -> int | None:
    """Return the KV cache size in tokens from vLLM's vllm:cache_config_info, one line per engine;
    None if it is missing or malformed."""
    total = 0
    for line in _BLOCKS.findall(metrics):
        labels = dict(_PAIR.findall(line))
        numbers = [labels.get("num_gpu_blocks", ""), labels.get("block_size", "")]
        if not all(n.isascii() and n.isdecimal() and len(n) <= _MOST_DIGITS for n in numbers):
            return None
        total += int(numbers[0]) * int(numbers[1])
    return total or None

"""Address of the server under test, and the key for it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import httpx
import openai

from driftscope.boundary.secret_text import key_from, redacted
from driftscope.boundary.server_url import BadUrlError, ServerUrl, public
from driftscope.boundary.terminal_text import shown
from driftscope.errors import UsageError
from driftscope.workloads.client.http_transport import tls

API_KEY = "OPENAI_API_KEY"
"""Environment variable with the key, unless another variable is named."""
NO_KEY = "none"
"""Placeholder key: servers without keys accept any, and the openai client requires one."""
_SHOWN = 200
"""Most characters of an invalid URL, and of its fault, that an error message repeats."""


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
    def to(cls, url: str, *, api_key_env: str | None = None) -> Access:
        """Return the access to `url`; raise UsageError for a URL or a key that cannot be used."""
        try:
            server_url = ServerUrl.parsed(url if "//" in url else f"http://{url}")
        except BadUrlError as error:
            raise UsageError(
                f"{public(url)}: not a server's URL ({error}); give one such as "
                "http://127.0.0.1:8000"
            ) from error
        scheme, netloc, path, *_ = urlsplit(server_url.plain)
        _check_host(url, server_url.plain)
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

    def client(self) -> openai.AsyncOpenAI:
        """Return a client of the server. It neither retries nor follows redirects: the replay
        counts the former and refuses the latter."""
        headers = {} if self.authorization is None else {"Authorization": self.authorization}
        return openai.AsyncOpenAI(
            base_url=self.base,
            api_key=self.key or NO_KEY,
            default_headers=headers,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=tls(), follow_redirects=False),
        )

    def recorded(self, text: str) -> str:
        """Return the part of a server's `text` that may be recorded, without key or password."""
        return redacted(text, self.secrets)

    def printable(self, text: str) -> str:
        """Return the part of a server's `text` that may be printed."""
        return shown(self.recorded(text))


def _check_host(url: str, plain: str) -> None:
    """Raise UsageError for a host name that the client refuses, such as one that is too long."""
    try:
        httpx.URL(plain)
    except httpx.InvalidURL as error:
        raise UsageError(
            f"{public(url)[:_SHOWN]}: not a server's URL ({str(error)[:_SHOWN]}); give one such as "
            "http://127.0.0.1:8000"
        ) from error

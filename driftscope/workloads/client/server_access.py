"""Where the server under test is, and the key that it is shown."""

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
"""Where the key is looked for unless another variable is named."""
NO_KEY = "none"
"""Servers without keys take any; the openai client wants one."""
_SHOWN = 200
"""Characters of a URL that is wrong, and of what is wrong with it, that an error repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server is reached. Neither key nor password is in its `repr`."""

    base: str
    """The API's root, such as http://127.0.0.1:8000/v1, without user and password."""
    authorization: str | None = field(default=None, repr=False)
    """Header that a user and password of the URL ask for; in place of a key."""
    key: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def to(cls, url: str, *, api_key_env: str | None = None) -> Access:
        """Raise UsageError for a URL or a key that cannot be used."""
        try:
            found = ServerUrl.parsed(url if "//" in url else f"http://{url}")
        except BadUrlError as error:
            raise UsageError(
                f"{public(url)}: no server's URL ({error}); give one such as http://127.0.0.1:8000"
            ) from error
        scheme, netloc, path, *_ = urlsplit(found.plain)
        _check_host(url, found.plain)
        named = api_key_env or (API_KEY if os.environ.get(API_KEY) else None)
        key = None if named is None else key_from(named, os.environ)
        return cls(
            base=urlunsplit((scheme, netloc, path or "/v1", "", "")),
            authorization=found.authorization,
            key=key,
            secrets=(*found.secrets, *([key] if key else [])),
        )

    @property
    def root(self) -> str:
        """The server's own root, above its /v1."""
        return self.base.removesuffix("/v1")

    def client(self) -> openai.AsyncOpenAI:
        """A client of the server. It neither retries nor follows: the replay counts both."""
        headers = {} if self.authorization is None else {"Authorization": self.authorization}
        return openai.AsyncOpenAI(
            base_url=self.base,
            api_key=self.key or NO_KEY,
            default_headers=headers,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=tls(), follow_redirects=False),
        )

    def recorded(self, text: str) -> str:
        """What of a server's `text` may be recorded: nothing of a key or password."""
        return redacted(text, self.secrets)

    def said(self, text: str) -> str:
        """What of a server's `text` may be printed."""
        return shown(self.recorded(text))


def _check_host(url: str, plain: str) -> None:
    """Raise UsageError for a host name that the client refuses, such as one that is too long."""
    try:
        httpx.URL(plain)
    except httpx.InvalidURL as error:
        raise UsageError(
            f"{public(url)[:_SHOWN]}: no server's URL ({str(error)[:_SHOWN]}); give one such as "
            "http://127.0.0.1:8000"
        ) from error

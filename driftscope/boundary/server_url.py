"""The URL of a server, split into a part that may be shown and its secrets.

=====================================================  ==================================
`ServerUrl.parsed("http://me:pw@host:8000/v1").plain`    "http://host:8000/v1"
`....authorization`                                      "Basic bWU6cHc="
`....origin`                                             ("http", "host", 8000)
`public("no url, me:pw@host")`                           "host": for messages
=====================================================  ==================================

A user and password in a URL become an Authorization header. They appear in no message, file or log.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from driftscope.boundary.terminal_text import shown

_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_FORBIDDEN = frozenset('\\<>"{}|^`')
"""Characters that RFC 3986 allows nowhere in an authority, unless they are quoted."""
_PORTS = {"http": 80, "https": 443}


class BadUrlError(ValueError):
    """The text is not a server's URL. The message never contains a user or password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrl:
    """An http or https URL."""

    plain: str
    """The URL without user, password, query, fragment and trailing slash."""
    origin: tuple[str, str, int]
    """Scheme, host and port; the scheme's default port if none is given."""
    authorization: str | None = None
    """Value of the Authorization header for the URL's user and password; None if it has neither."""
    secrets: tuple[str, ...] = ()
    """Texts that may not be shown: the password (or the user, if there is no password), and its
    encoded form in the header."""

    @classmethod
    def parsed(cls, text: str) -> ServerUrl:
        """Parse `text`; raise BadUrlError for anything but an http or https URL with a host."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise BadUrlError("not a URL") from error
        if parts.scheme not in _PORTS or not host or not text.isprintable() or " " in text:
            raise BadUrlError("not an http or https URL")
        if _FORBIDDEN & set(parts.netloc):
            raise BadUrlError("not an http or https URL: its host has a character that no host has")
        if "@" in parts.path:  # a password with an unquoted slash would be shown as a path
            raise BadUrlError("write @ and / in a password as %40 and %2F")
        authority = f"[{host}]" if ":" in host else host
        authority += "" if port is None else f":{port}"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        given = bool(user or password)
        return cls(
            plain=urlunsplit((parts.scheme, authority, parts.path.rstrip("/"), "", "")),
            origin=(parts.scheme, host, _PORTS[parts.scheme] if port is None else port),
            authorization=f"Basic {token}" if given else None,
            secrets=(password or user, token) if given else (),
        )


def public(text: str) -> str:
    """Return the part of a URL, or of a text meant as a URL, that a message may show: no user and
    password, no query, and no character that controls a terminal."""
    scheme = _SCHEME.match(text)
    before, rest = (scheme[0], text[scheme.end() :]) if scheme else ("", text)
    return shown(before + re.split(r"[?#]", rest.rpartition("@")[2], maxsplit=1)[0])

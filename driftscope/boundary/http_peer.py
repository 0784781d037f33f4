"""HTTP to servers that are not trusted: one request, one bounded answer, one deadline.

=====================================================  =============================================
`ask(url, AnswerLimits(seconds=5, octets=1 << 20))`    GET; the whole answer within 5 s and 1 MiB
`ask(..., body=b"{}")`                                 POST; only ever sent to the URL's own origin
`answer.status`, `answer.content`                      any status but a redirect elsewhere
`ServerUrl.parsed("http://me:pw@host:8000/v1").plain`  "http://host:8000/v1"
`....authorization`                                    "Basic bWU6cHc="
`....origin`                                           ("http", "host", 8000)
`public("no url, me:pw@host")`                         "host": for messages
=====================================================  =============================================

One deadline covers everything: looking up the name, connecting, sending, and reading to the last
byte. A compressed answer is refused. A GET follows redirects within its origin only,
a POST none. A user and password in a URL become an Authorization header; they appear in no message,
file or log. Every failure is a PeerError of one line.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from driftscope.boundary.text import redacted, shown
from driftscope.errors import PeerError

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


T = TypeVar("T")


class Deadline:
    """A moment in time, and the time left until it."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the seconds left; raise TimeoutError if the deadline has passed."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def within(
    deadline: Deadline, work: Callable[[], T], abandon: Callable[[], None] = lambda: None
) -> T:
    """Return what `work` returns, or raise what it raises; raise TimeoutError at the deadline.

    The work runs in a thread of its own, because no single limit covers looking up a name,
    connecting to each of its addresses, and reading by another library. Work that has not ended by
    the deadline goes on in the background; `abandon` is called to end it soon.
    """
    returned: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(work())
        except BaseException as error:  # re-raised in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, name="driftscope-deadline", daemon=True)
    thread.start()
    thread.join(deadline.left_s())
    if failed:
        raise failed[0]
    if not returned:
        abandon()
        raise TimeoutError
    return returned[0]


OK = 200
_CHUNK = 64 << 10
_MOST_WORDS = 300
"""Characters of another program's message that an error repeats at most."""
_MOST_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """Limits on one answer."""

    seconds: float
    octets: int
    """Largest size of the body in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswer:
    """One complete answer."""

    status: int
    content: bytes

    def text(self) -> str:
        """Return the body as text, without a mark of its encoding; bytes that are not UTF-8 are
        replaced."""
        return self.content.decode("utf-8-sig", "replace")


def ask(
    url: str,
    limits: AnswerLimits,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> PeerAnswer:
    """Send a request to the server at `url`, by POST if there is a `body`; raises PeerError.

    User and password of `url` become its Authorization header, which overrides one in `headers`.
    """
    try:
        target = ServerUrl.parsed(url)
    except BadUrlError as error:
        raise PeerError(public(url), f"{error}") from error
    sent = dict(headers or {}) | {"Accept-Encoding": "identity"}
    if target.authorization:
        sent["Authorization"] = target.authorization
    request = urllib.request.Request(target.plain, body, sent)  # noqa: S310  ServerUrl: http(s) only
    keys = (value for name, value in sent.items() if name.lower() == "authorization")
    secrets = (*target.secrets, *(value.partition(" ")[2] for value in keys))
    connections = _Connections(Deadline(limits.seconds), tls)
    try:
        answer = functools.partial(_answer, request, limits, connections)
        return within(connections.deadline, answer, connections.close)
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = redacted(_error_words(error, limits), secrets)
        raise PeerError(target.plain, shown(why)[:_MOST_WORDS]) from error


class _TooLongError(ValueError):
    """A body that is longer than allowed."""


def _answer(
    request: urllib.request.Request, limits: AnswerLimits, connections: _Connections
) -> PeerAnswer:
    opener, deadline = urllib.request.OpenerDirector(), connections.deadline
    handlers = (urllib.request.ProxyHandler(), connections, urllib.request.UnknownHandler())
    for handler in handlers:
        opener.add_handler(handler)
    for _ in range(_MOST_REDIRECTS + 1):
        with opener.open(request, timeout=deadline.left_s()) as response:
            if response.status not in _REDIRECTS:
                coding = (response.headers.get("Content-Encoding") or "identity").strip().lower()
                if coding != "identity":
                    raise ValueError(f"content encoding {coding!r}, which was not requested")
                out = bytearray()
                while piece := response.read(_CHUNK):
                    deadline.left_s()
                    out += piece
                    if len(out) > limits.octets:
                        raise _TooLongError
                if response.length:
                    raise http.client.IncompleteRead(bytes(out))
                content = bytes(out)
                return PeerAnswer(status=response.status, content=content)
            _follow(request, response)
    raise ValueError(f"it redirects more than {_MOST_REDIRECTS} times")


def _follow(request: urllib.request.Request, response: http.client.HTTPResponse) -> None:
    """Point `request` to where `response` redirects, if it is a GET and the origin stays the same.

    Raises ValueError otherwise.
    """
    here = request.full_url
    location = urljoin(here, response.headers.get("Location") or "")
    try:
        origin = ServerUrl.parsed(location).origin
    except BadUrlError:
        origin = None
    if request.data is not None or origin != ServerUrl.parsed(here).origin:
        raise ValueError(
            f"it redirects (HTTP {response.status}) to {public(location)}, which is not followed"
        )
    request.full_url = location


class _Connections(urllib.request.HTTPSHandler):
    """Opens the connections of one request, and can end them from another thread."""

    def __init__(self, deadline: Deadline, tls: ssl.SSLContext | None) -> None:
        super().__init__(context=tls)
        self.deadline, self._tls = deadline, tls
        self._open: list[socket.socket] = []

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connector(http.client.HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        connection = functools.partial(http.client.HTTPSConnection, context=self._tls)
        return self.do_open(self._connector(connection), request)

    http_request = urllib.request.AbstractHTTPHandler.do_request_

    def _connector(self, kind: Callable[..., http.client.HTTPConnection]) -> Any:
        def made(host: str, **options: Any) -> http.client.HTTPConnection:
            connection = kind(host, **options)
            connect = connection.connect

            def connected() -> None:
                connect()
                self._open.append(connection.sock)
                self.deadline.left_s()  # raises if nobody waits any longer

            connection.connect = connected  # type: ignore[method-assign]
            return connection

        return made

    def close(self) -> None:
        """End every connection: whoever reads from one reads its end at once."""
        for opened in self._open:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)


def _error_words(error: BaseException, limits: AnswerLimits) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _error_words(reason, limits)
    if isinstance(error, TimeoutError):
        return f"no complete answer within {limits.seconds:g} s"
    if isinstance(error, _TooLongError):
        return f"the answer is larger than {limits.octets:,} bytes"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer was cut off"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__

"""The name of a server's run, and a label in a header, which reaches the request's body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from driftscope.errors import UsageError
from driftscope_probes.server.label_header import LabelHeader
from driftscope_probes.server.start import LABEL_HEADER, drafter_name, speculation_of

JSON = (b"content-type", b"application/json")
GONE = {"type": "http.disconnect"}


def _serve(
    *bodies: bytes,
    label: bytes | None = b"mine",
    path: str = "/v1/completions",
    headers: Sequence[tuple[bytes, bytes]] = (),
    then: dict[str, Any] = GONE,
    **scope: Any,
) -> tuple[bytes, dict[bytes, bytes], list[str]]:
    """The body, the headers and the kinds of messages that the app behind it sees."""
    sent = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
    if sent:
        sent[-1]["more_body"] = False
    messages = [*sent, then]
    seen: list[dict[str, Any]] = []
    scopes: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        while not seen or seen[-1] != then:
            seen.append(await receive())

    given = [JSON, (b"content-length", b"%d" % sum(map(len, bodies))), *headers]
    if label is not None:
        given.append((b"X-Driftscope-Label", label))
    whole = {"type": "http", "method": "POST", "path": path, "headers": given, **scope}
    asyncio.run(LabelHeader(app)(whole, receive, None))
    body = b"".join(message.get("body", b"") for message in seen)
    told = {name.lower(): value for name, value in scopes[0].get("headers", ())}
    return body, told, [message["type"] for message in seen]


@pytest.mark.parametrize(
    "where",
    [
        {"path": "/v1/completions"},
        {"path": "/v1/chat/completions"},
        {"path": "/llm/v1/completions", "root_path": "/llm"},
    ],
)
def test_the_label_becomes_an_argument(where: dict[str, str]) -> None:
    body, headers, kinds = _serve(b'{"model": "m", "vllm_xargs": {"x": 1}}', **where)
    assert json.loads(body) == {"model": "m", "vllm_xargs": {"driftscope_label": "mine", "x": 1}}
    assert headers[b"content-length"] == str(len(body)).encode()
    assert kinds == ["http.request", "http.disconnect"], "the app still hears of the client's end"


def test_a_body_in_pieces_and_a_null_in_it() -> None:
    body, headers, _ = _serve(
        b'{"vllm_', b"xargs", b'": null}', headers=[(b"Transfer-Encoding", b"chunked")]
    )
    assert json.loads(body) == {"vllm_xargs": {"driftscope_label": "mine"}}
    assert b"transfer-encoding" not in headers


def test_a_label_in_the_body_wins_and_may_be_beyond_ascii() -> None:
    given = b'{"vllm_xargs": {"driftscope_label": "own"}}'
    assert json.loads(_serve(given)[0]) == json.loads(given)
    body, *_ = _serve(b"{}", label="bücher".encode())
    assert json.loads(body)["vllm_xargs"]["driftscope_label"] == "bücher"


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"vllm_xargs": 3}', b"\xff"])
def test_a_body_that_vllm_will_refuse_reaches_it_as_it_is(body: bytes) -> None:
    assert _serve(body)[0] == body


@pytest.mark.parametrize(
    "scope",
    [
        {"label": None},
        {"label": b"  "},
        {"path": "/v1/embeddings"},
        {"method": "GET"},
        {"type": "websocket"},
        {"headers": [(b"content-encoding", b"gzip")]},
    ],
)
def test_everything_else_goes_by_untouched(scope: dict[str, Any]) -> None:
    body, headers, kinds = _serve(b"{} ", b" ", **scope)
    assert body == b"{}  "
    assert headers[b"content-length"] == b"4"
    assert kinds == ["http.request", "http.request", "http.disconnect"]


def test_a_client_that_goes_before_it_has_said_all() -> None:
    assert _serve()[2] == ["http.disconnect"]


def test_vllm_can_import_it_by_its_name() -> None:
    module, _, name = LABEL_HEADER.rpartition(".")
    assert (module, name) == (LabelHeader.__module__, LabelHeader.__name__)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (
            ["--speculative-config", '{"method": "eagle3", "model": "org/E3-LLaMA"}'],
            "E3-LLaMA",
        ),
        (['--speculative-config={"model": "/models/a b/"}'], "a-b"),
        (["-sc", '{"method": "ngram"}'], "ngram"),
        (["--spec-model", "org/d", "--spec-tokens=3"], "d"),
        (["--config", "serve.yaml"], "drafter"),
        (["-sc", '{"model": "../../.."}'], "drafter"),
        (["-sc", '{"model": "' + "x" * 300 + '"}'], "x" * 40),
    ],
)
def test_the_last_part_of_the_drafter_s_path(options: list[str], name: str) -> None:
    assert drafter_name(options) == name


@pytest.mark.parametrize(
    "options",
    [
        ["-sc", '{"method": "eagle3", "model": "d", "num_speculative_tokens": "3"}'],
        [
            "--speculative-config.method=eagle3",
            *("--speculative_config.model", "d", "-sc.num_speculative_tokens", "3"),
        ],
        ["--spec-method", "eagle3", "--spec_model=d", "--spec-tokens", "3"],
    ],
)
def test_the_forms_in_which_vllm_takes_a_config(options: list[str]) -> None:
    given = {"method": "eagle3", "model": "d", "num_speculative_tokens": "3"}
    assert speculation_of(["--port", "1", *options]) == given


@pytest.mark.parametrize("given", [["no JSON"], []])
def test_what_is_no_json_is_said_before_anything_starts(given: list[str]) -> None:
    with pytest.raises(UsageError, match=f"^--speculative-config {''.join(given)}: is not JSON"):
        drafter_name(["--speculative-config", *given])

"""A complete replay: query the server, render, plan, send and record."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from driftscope.analysis.validity import IGNORES_STOP, PROMPT_TEXT, kind_of_text
from driftscope.boundary.bounds import MAX_LABEL_CHARS
from driftscope.boundary.http_peer import AnswerLimits
from driftscope.errors import DriftscopeError, NoDataError, PeerError, UsageError
from driftscope.trace.manifest import client_manifest
from driftscope.trace.records import ClientRow
from driftscope.trace.status import Status
from driftscope.trace.texts import TEXTS, TextFile
from driftscope.trace.writer import TraceWriter
from driftscope.vocabulary import REPLAY_LABEL, Ended
from driftscope.workloads.client.recording import (
    new_run_id,
    open_run,
    row_of,
    text_file,
    text_of,
)
from driftscope.workloads.client.sending import Patience, RequestSender, Sent, body_of
from driftscope.workloads.client.server import LOOK_S, Access, ServerLookup, Wire, look
from driftscope.workloads.suites.plan import LoadGenerator, LoadLevel, Shot, plan
from driftscope.workloads.suites.prompts import Prompt, ServerFacts
from driftscope.workloads.suites.suite import Suite, facts_for
from driftscope.workloads.suites.transforms import prompt_text

AT_ONCE = 8
LIMITS = AnswerLimits(seconds=LOOK_S, octets=8 << 20)
"""Limits for the tokens of one prompt: more than a million tokens fit."""
MAX_TOKEN_ID = (1 << 31) - 1
BOS_TOKENS = frozenset(
    {"<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[BOS]", "<｜begin▁of▁sentence｜>"}
)
"""Spellings of the BOS token in Llama 2 and Mistral, Llama 3 and 4, Gemma, LFM, GLM-like and
DeepSeek models. Qwen and gpt-oss templates have none."""


class _Tokenized(BaseModel):
    tokens: list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]]
    token_strs: list[str] | None = None


class Renderer:
    """Uses the server's /tokenize endpoint, which vLLM and SGLang have."""

    def __init__(self, lookup: ServerLookup, facts: ServerFacts) -> None:
        self._lookup, self._facts = lookup, facts
        self._room = asyncio.Semaphore(AT_ONCE)

    async def tokens(self, prompt: Prompt) -> list[int] | None:
        """Return the token ids of a prompt that specifies its rendering; None if the prompt asks to
        leave out a BOS that the template does not have."""
        assert prompt.raw is not None  # noqa: S101  the caller picks such prompts
        chat, first = await self._templated(prompt)
        bos = chat[:1] if first in BOS_TOKENS else []
        if not bos and not prompt.raw.bos:
            return None
        if prompt.raw.template == "server":
            return chat if prompt.raw.bos else chat[1:]
        text = prompt_text(prompt.raw.template, prompt.messages)
        body = await self._ask({"prompt": text, "add_special_tokens": False})
        return [*(bos if prompt.raw.bos else []), *body.tokens]

    async def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len((await self._ask({"prompt": text, "add_special_tokens": False})).tokens)

    async def _templated(self, prompt: Prompt) -> tuple[list[int], str]:
        """Return the tokens from the model's chat template, and the spelling of the first one."""
        body: dict[str, Any] = {
            "messages": list(prompt.messages),
            "add_generation_prompt": True,
            "return_token_strs": True,
        }
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        rendering = await self._ask(body)
        return rendering.tokens, (rendering.token_strs or [""])[0]

    async def _ask(self, body: Mapping[str, Any]) -> _Tokenized:
        async with self._room:
            try:
                return await self._lookup.value(
                    _Tokenized, "/tokenize", {"model": self._facts.model, **body}, LIMITS
                )
            except PeerError as error:
                raise DriftscopeError(
                    f"{self._facts.url}: its /tokenize does not return how a prompt is rendered "
                    f"({error.why}); this suite needs an endpoint like vLLM's"
                ) from error


async def rendered(renderer: Renderer, prompts: Sequence[Prompt]) -> dict[int, list[int] | None]:
    """Return the token ids of the prompts that specify their rendering, by position in
    `prompts`."""
    wanted = [number for number, prompt in enumerate(prompts) if prompt.raw is not None]
    if any(prompts[number].is_text for number in wanted):
        raise UsageError("a prompt of plain text has no chat template to leave out")
    token_lists = await asyncio.gather(*(renderer.tokens(prompts[number]) for number in wanted))
    return dict(zip(wanted, token_lists, strict=True))


UNWRITTEN = "not written in time"
"""Cause of a loss that the writer's status does not count, because its disk hangs."""
ID_DIGITS = 12
"""Number of digits of the run's id in a request's id, which keep runs of one server distinct."""
DEFAULT_LEVELS = (LoadLevel(concurrency=4),)
DEFAULT_WARMUP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything that defines a replay."""

    url: str
    """URL of the server; a user and password in it are sent but never recorded."""
    suite: Suite
    run: Path
    model: str | None = None
    levels: Sequence[LoadLevel] = ()
    """Load levels; () for those of the suite, or DEFAULT_LEVELS."""
    repeat: int | None = None
    warmup: int = DEFAULT_WARMUP
    """Requests at the beginning of each level that figures leave out."""
    limit: int | None = None
    """Most prompts to send; None: the suite's limit."""
    seed: int | None = None
    patience: Patience = field(default_factory=Patience)
    api_key_env: str | None = None
    """Environment variable with the server's key; None: OPENAI_API_KEY, if it is set."""
    prompts: Sequence[Prompt] | None = None
    """Prompts that replace the suite's own."""
    keep_texts: bool = False
    """Whether prompts and answers are kept, in a file beside the records."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """Additional workload fields for the manifest, such as what `driftscope pays` knows of the
    server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a replay."""

    run: Path
    planned: int
    """Number of planned requests, warm-up included."""
    warmup: int = 0
    """Number of planned warm-up requests, which no figure counts."""
    ended: Mapping[str, int]
    """Number of requests by how they ended."""
    stopped: bool
    """Whether the user stopped the replay."""
    notes: tuple[str, ...]
    lost: Mapping[str, int] = field(default_factory=dict)
    """Rows missing from the run directory, by cause."""

    @property
    def whole(self) -> bool:
        """Whether every request was answered and every row is in the run directory."""
        return self.answered == self.planned and not self.lost

    @property
    def answered(self) -> int:
        """Number of requests with a complete answer."""
        return self.ended.get(Ended.ANSWERED, 0)


class Watcher:
    """Receives the progress of a replay; does nothing by itself."""

    def planned(self, shots: Sequence[Shot]) -> None:
        """Handle the finished plan."""

    def ended(self, shot: Shot, row: ClientRow) -> None:
        """Handle the end of one request."""


def replay(order: Order, watcher: Watcher | None = None) -> Done:
    """Send all requests and record them; SIGINT stops the replay and keeps what is done.

    Raises DriftscopeError when the server cannot be reached or the run cannot be written,
    UsageError for a suite that does not apply to the server.
    """
    return asyncio.run(_replay(order, watcher or Watcher()))


async def _replay(order: Order, watcher: Watcher) -> Done:
    access = Access.parsed(order.url, api_key_env=order.api_key_env)
    lookup = ServerLookup(access)
    async with Wire(access) as wire:
        facts = await look(lookup, access, order.model)
        session = _Session(access, lookup, order, watcher)
        shots, bodies, notes = await session.prepare(facts)
        writer, texts = open_run(order.run, session.manifest(notes)), None
        try:
            if order.keep_texts:
                texts = text_file(order.run)
            await session.go(wire, shots, bodies, writer, texts)
        finally:
            writer.close()
            if texts is not None:
                texts.close()
        return Done(
            run=order.run,
            planned=len(shots),
            warmup=sum(shot.warmup for shot in shots),
            ended=dict(session.counts),
            stopped=session.stopped,
            notes=notes,
            lost={
                **lost_of(writer.status(), session.counts.total()),
                **({TEXTS: texts.lost} if texts is not None and texts.lost else {}),
            },
        )


class _Session:
    """A replay while it runs."""

    def __init__(
        self, access: Access, lookup: ServerLookup, order: Order, watcher: Watcher
    ) -> None:
        self._access, self._lookup, self._order, self._watcher = access, lookup, order, watcher
        self._id = new_run_id()
        self._seed = order.suite.file.seed if order.seed is None else order.seed
        self._facts: ServerFacts | None = None
        self._content: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()
        self.stopped = False

    async def prepare(
        self, facts: ServerFacts
    ) -> tuple[list[Shot], dict[int, dict[str, Any]], tuple[str, ...]]:
        """Return the plan, the body of each shot, and notes on what could not be planned."""
        order, suite = self._order, self._order.suite
        renderer = Renderer(self._lookup, facts)
        self._facts = facts = await facts_for(suite, facts, renderer.count)
        suite_prompts = suite.make(facts, prompts=order.prompts, limit=order.limit, seed=self._seed)
        flat = [prompt for prompts in suite_prompts.conditions.values() for prompt in prompts]
        tokens = await rendered(renderer, flat)
        without = {id(flat[at]) for at, ids in tokens.items() if ids is None}
        ids_of = {id(flat[at]): ids for at, ids in tokens.items() if ids is not None}
        conditions = {
            name: [prompt for prompt in prompts if id(prompt) not in without]
            for name, prompts in suite_prompts.conditions.items()
        }
        notes = [
            *suite_prompts.notes,
            *(
                f"condition {name} left out: {facts.model}'s template begins with no known BOS"
                for name in suite_prompts.conditions
                if suite_prompts.conditions[name] and not conditions[name]
            ),
        ]
        conditions = {name: prompts for name, prompts in conditions.items() if prompts}
        if not conditions:
            raise UsageError(f"suite {suite.name}: nothing to send ({'; '.join(notes)})")
        shots = plan(
            conditions,
            order.levels or suite.levels() or DEFAULT_LEVELS,
            repeat=order.repeat or suite.file.repeat,
            warmup=order.warmup,
            seed=self._seed,
        )
        bodies = {
            shot.order: body_of(
                shot.prompt, facts.model, suite.file.settings, ids_of.get(id(shot.prompt))
            )
            for shot in shots
        }
        self._content = {
            PROMPT_TEXT: kind_of_text(prompt.last_text for prompt in flat),
            IGNORES_STOP: any(map(_goes_on, bodies.values())),
        }
        self._watcher.planned(shots)
        return shots, bodies, tuple(map(self._access.recorded, notes))

    def manifest(self, notes: tuple[str, ...]) -> Any:
        """Return the manifest of the run."""
        assert self._facts is not None  # noqa: S101  a run is written once it is planned
        workload = {
            **self._order.suite.description(),
            "seed": self._seed,
            **self._content,
            **({TEXTS: True} if self._order.keep_texts else {}),
            **self._order.note,
        }
        facts = {
            name: self._access.recorded(value) if isinstance(value, str) else value
            for name, value in self._facts.to_dict().items()
        }
        return client_manifest(self._id, facts, workload, notes)

    async def go(
        self,
        wire: Wire,
        shots: Sequence[Shot],
        bodies: Mapping[int, dict[str, Any]],
        writer: TraceWriter,
        texts: TextFile | None = None,
    ) -> None:
        """Send all shots; every shot has a row at the end."""
        sender = RequestSender(
            wire, self._order.patience, seed=self._seed, recorded=self._access.recorded
        )

        async def fire(shot: Shot, due_unix_s: float | None) -> ClientRow:
            sent, body = Sent(request=self._name(shot)), bodies[shot.order]
            try:
                label = label_of(self._order.suite.name, shot.condition)
                await sender.send(sent, body, label, shot.prompt.key)
            finally:
                row = row_of(shot, sent, body, due_unix_s=due_unix_s)
                self._keep(writer, shot, row)
                if texts is not None:
                    texts.put(text_of(shot, sent, self._access.recorded))
            return row

        load = LoadGenerator(fire)
        with _stoppable() as stop:
            await self._until(asyncio.create_task(load.run(shots)), stop)
        for shot in shots:
            if shot.order not in load.fired:
                row = row_of(shot, Sent(request=self._name(shot)), bodies[shot.order])
                self._keep(writer, shot, row)

    async def _until(self, work: asyncio.Task[None], stop: asyncio.Event) -> None:
        waiting = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # by a signal before `_stoppable` handled it
            stop.set()
        self.stopped = stop.is_set() and not work.done()
        waiting.cancel()
        if self.stopped:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        else:
            await work

    def _keep(self, writer: TraceWriter, shot: Shot, row: ClientRow) -> None:
        writer.put(row)
        self.counts[row.ended] += 1
        self._watcher.ended(shot, row)

    def _name(self, shot: Shot) -> str:
        return f"{self._id[:ID_DIGITS]}-{shot.order}"


def _goes_on(body: Mapping[str, Any]) -> bool:
    """Whether a request tells the server to go on after the end of the answer."""
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    least = body.get("min_tokens")
    forced = isinstance(least, int) and isinstance(most, int) and least >= most > 1
    return bool(body.get("ignore_eos")) or forced


def label_of(suite: str, condition: str) -> str:
    """Return the workload label of a request, which names the suite, so that it is never mixed with
    the labels of a server's own traffic."""
    return f"{REPLAY_LABEL}{suite.replace('/', '-')}/{condition}"[:MAX_LABEL_CHARS]


@contextlib.contextmanager
def _stoppable() -> Any:
    """Yield an event that SIGINT and SIGTERM set; a second signal ends the process as usual."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def give_back() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def set_once() -> None:
        stop.set()
        give_back()

    with contextlib.suppress(ValueError):  # not in the main thread: signals cannot be handled here
        for number in before:
            loop.add_signal_handler(number, set_once)
    try:
        yield stop
    finally:
        with contextlib.suppress(ValueError):
            give_back()


def lost_of(status: Status, handed_over: int) -> dict[str, int]:
    """Return the rows that a sender's closed writer lost, by cause, out of `handed_over` rows.

    Rows that are neither written nor counted as dropped were still waiting when the writer was
    abandoned.
    """
    lost = dict(status.dropped)
    if (waiting := handed_over - status.rows.get("client", 0) - sum(lost.values())) > 0:
        lost[UNWRITTEN] = waiting
    return lost


def require_answers(done: Done) -> None:
    """Raise NoDataError when no request was answered."""
    if not done.answered:
        counted = ", ".join(f"{count} {name}" for name, count in sorted(done.ended.items()))
        raise NoDataError(
            f"{done.run}: no request was answered ({counted}); the run records the reason for each "
            "request"
        )

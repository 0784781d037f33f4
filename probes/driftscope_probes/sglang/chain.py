"""One chain in SGLang: whether it is recorded, its first depth, the call of the drafter, and the
taps that show each forward's states.

Depth 1 of a chain is computed in the round before, in the forward that extends the drafter's
cache by the verified tokens. Its states are kept from one round to the next; those of later
depths go to the kernels at once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from driftscope.vocabulary import FED_RMS, POSTNORM_RMS, PRENORM_RMS, Execution
from driftscope_probes.drafter import Drafter, Remove
from driftscope_probes.engine import NOBODY, DeviceStep, DraftStep
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels
from driftscope_probes.sampler import Sampler
from driftscope_probes.taps import Hook, HookSet, HookSwitch


class AheadSampler(Sampler):
    """A sampler for an engine that computes depth 1 of a chain in the round before its draft."""

    def __init__(self, **options: Any) -> None:
        """`options`: those of Sampler."""
        super().__init__(**options)
        self._decided: bool | None = None

    def ahead(self) -> bool:
        """Return whether the next draft is to be recorded; several extending forwards may precede
        it."""
        if self._decided is None:
            self._decided = super().take()
        return self._decided

    def take(self) -> bool:
        """See Sampler."""
        is_recorded, self._decided = self.ahead(), None
        return is_recorded and self.recording


LAST = -1
"""Index of the output that is fed, in `Kind.outputs`."""
DRAFT_GRAPH = "cuda_graph_runner"
EXTEND_GRAPH = "cuda_graph_runner_for_draft_extend"
"""Attributes of an EagleDraftWorker: with None in them, its forwards run eagerly."""


@dataclass(slots=True, kw_only=True, eq=False)
class SglangDraftCall:
    """A call of `EagleDraftWorker.draft`, whose chains begin with a depth that is known already."""

    worker: Any
    batch: Any
    original: Callable[[], Any]
    layers: tuple[str, ...] = ()
    """Names of the drafter's attention layers."""
    missing: frozenset[str] = NOBODY
    """Requests whose first depth is not known."""
    first: Callable[[], None] = lambda: None
    """Passes on the first depth of the others."""
    result: Any = None
    """Result of SGLang's method."""

    @property
    def k(self) -> Any:
        """See DraftCall."""
        return self.worker.speculative_num_steps

    def step(self) -> DraftStep:
        """See DraftCall."""
        names = tuple(req.rid for req in self.batch.reqs)
        missing = bytes(name in self.missing for name in names)
        return DraftStep(names, missing, self.k)

    def on_device(self) -> DeviceStep:
        """See DraftCall: the first query is that of the last verified slot."""
        worker, batch = self.worker, self.batch
        count, lengths = len(batch.reqs), batch.seq_lens.long()
        table = worker.req_to_token_pool.req_to_token
        # An overlapped step before this one may not have added its tokens to the requests yet.
        unseen = 2 * worker.speculative_num_draft_tokens
        context = max(len(req.origin_input_ids) + len(req.output_ids) for req in batch.reqs)
        context = min(context + unseen, table.shape[1])
        slots = table[batch.req_pool_indices.long(), :context]
        return DeviceStep(
            rows=torch.arange(count, device=lengths.device),
            position=lengths - 1,
            block_tables=dict.fromkeys(self.layers, slots),
            prompt_tokens=np.array([len(req.origin_input_ids) for req in batch.reqs], np.int64),
            max_context=context,
        )

    def serve(self) -> torch.Tensor | None:
        """See DraftCall; None if the tokens are not where they are expected."""
        self.result = self.original()
        tokens = getattr(self.result, "draft_token", None)
        with contextlib.suppress(Exception):  # the border: the draft is served whatever it is
            if isinstance(tokens, torch.Tensor):
                # The first is the last verified token.
                return tokens.reshape(len(self.batch.reqs), -1)[:, 1:]
        return None

    def without_graphs(self) -> torch.Tensor | None:
        """See DraftCall."""
        self.first()
        drafts: torch.Tensor | None = without_graph(self.worker, DRAFT_GRAPH, self.serve)
        return drafts


def without_graph(worker: Any, graph: str, run: Callable[[], Any]) -> Any:
    """Return what `run` returns, with a worker's CUDA graph set aside."""
    captured = getattr(worker, graph, None)
    setattr(worker, graph, None)
    try:
        return run()
    finally:
        setattr(worker, graph, captured)


States = dict[str, torch.Tensor]
"""States of a forward, [requests, size] each; what a drafter does not have is missing: "query NAME"
for each attention layer; "entering": the input of the first layer, of an EAGLE-1 drafter the state
that `fc` reads; "prenorm_rms", "postnorm_rms" and "fed_rms", which the next depth is fed with;
"logits"; "captured": the captured target layers, side by side; "normed N": those after their norms,
one tensor for all or one for each layer."""


class FirstDepths:
    """States of depth 1 by request id.

    Every round replaces or drops those of its requests, so that a chain never begins with an older
    round's state. A request that is preempted is extended again before its next chain.
    """

    def __init__(self, most: int) -> None:
        """`most`: number of requests kept; the oldest give way."""
        self._most = most
        self._places: dict[str, tuple[States, int]] = {}
        """States of a forward, and the request's row."""

    @property
    def is_empty(self) -> bool:
        """Whether no request's first depth is known."""
        return not self._places

    def keep(self, requests: Sequence[str], states: States) -> None:
        """Keep the states of a forward's requests, a row for each."""
        self.drop(requests)
        for row, request in enumerate(requests):
            self._places[request] = states, row
        for request in list(self._places)[: -self._most]:
            del self._places[request]

    def drop(self, requests: Iterable[str]) -> None:
        """Forget requests: a forward that was not recorded has replaced their depth 1."""
        for request in requests:
            self._places.pop(request, None)

    def missing(self, requests: Iterable[str]) -> frozenset[str]:
        """Return the requests whose first depth is not known."""
        return frozenset(name for name in requests if name not in self._places)

    def take(self, requests: Sequence[str]) -> States | None:
        """Return the states of a batch; None if none is known. The rows of requests whose first
        depth is not known belong to another request."""
        known = [place for name in requests if (place := self._places.get(name)) is not None]
        if not known:
            return None
        places = [self._places.get(name, known[0]) for name in requests]
        parts = []
        for _, run in groupby(places, lambda place: id(place[0])):
            forwards, numbers = zip(*run, strict=True)
            device = forwards[0][FED_RMS].device
            rows = torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)
            parts.append({name: x.index_select(0, rows) for name, x in forwards[0].items()})
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def pass_on(
    states: States, kernels: Kernels, layers: Sequence[str], *, captured: int | None = None
) -> None:
    """Pass the states of the next depth to the kernels.

    `captured`: number of captured layers at depth 1; None at later depths.
    """
    if captured:
        for column, name in (("aux_rms", "captured"), ("fc_rms", "entering")):
            if name in states:
                kernels.rms_of_chunks(states[name], column, captured if name == "captured" else 1)
        normed = [x for name, x in states.items() if name.startswith("normed")]
        for index, part in enumerate(normed):
            own = captured if len(normed) == 1 else 1
            kernels.rms_of_chunks(part, "aux_norm_rms", own, index)
    # At later depths the input is the state that the depth before has fed.
    kernels.advance(None if captured is None else states.get("entering"))
    for name in layers:
        kernels.copy_query(name, states[f"query {name}"])
    columns = (PRENORM_RMS, POSTNORM_RMS, FED_RMS)
    kernels.rms_of_outputs([(name, states[name]) for name in columns if name in states])
    if "logits" in states:
        kernels.confidence(states["logits"], fleeting=True)


class ForwardRows:
    """The wanted rows of an extending forward: the last verified slot of each request."""

    def __init__(self, of_tokens: torch.Tensor, *, pruned: bool) -> None:
        """`of_tokens` [requests]: rows among those of all tokens. `pruned`: SGLang computes logits
        of the wanted rows only."""
        self._of_tokens, self._pruned = of_tokens, pruned

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of a state inside the network."""
        return x.index_select(0, self._of_tokens)

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of an output; they are copied because SGLang may change them."""
        return x.clone() if self._pruned else x.index_select(0, self._of_tokens)


class DrafterTaps:
    """The hooks of one drafter, with what they share; see `driftscope_probes.taps.Taps`.

    ======================  ===============================================================
    `extending(rows)`       keep the states of the forward that is about to run
    `extended()`            return them, and pass later forwards to the kernels again
    `first_depth(states)`   pass kept states to the kernels, as depth 1 of a chain
    ======================  ===============================================================
    """

    def __init__(
        self,
        drafter: Drafter,
        kernels: Kernels,
        guard: Guard,
        *,
        in_graph: bool,  # noqa: ARG002  recorded rounds run without graphs
    ) -> None:
        self._drafter, self._kernels = drafter, kernels
        self._layers = tuple(drafter.layers)
        self.hooks = HookSet(removable=True)
        self.switch = HookSwitch(guard, in_graph=False)
        self.observer = self
        self.aliased_columns: dict[str, str] = {}
        """See ForwardObserver: every column is measured."""
        self._rows: ForwardRows | None = None
        self._kept: States | None = None
        self._forget()

    def execution(self, depths: int) -> str:  # noqa: ARG002  see ForwardObserver
        """Return how the chain just drafted ran."""
        return Execution.EAGER

    def attach(self, holder: Any, attribute: str) -> None:  # noqa: ARG002  see Taps
        """Install every hook once, to see that each can be, and remove them again."""
        self.hooks.attach(self._hooks())
        self.hooks.uninstall()

    def detach(self) -> None:
        """Remove every hook for good."""
        self.hooks.detach()

    def extending(self, rows: ForwardRows) -> None:
        """Keep the states of the forward that is about to run."""
        self._forget()
        self._rows, self._kept = rows, None
        self.hooks.install()
        self.switch.active = True

    def extended(self) -> States | None:
        """Return the states kept since `extending`; None if the forward was not seen."""
        kept, self._kept, self._rows = self._kept, None, None
        self.switch.active = False
        self.hooks.uninstall()
        return kept

    def first_depth(self, states: States) -> None:
        """Pass on the states of depth 1, a row for each request of the batch."""
        self._forget()
        pass_on(states, self._kernels, self._layers, captured=self._drafter.aux_states)

    def _forget(self) -> None:
        self._queries: dict[str, torch.Tensor] = {}
        self._inside: dict[str, torch.Tensor] = {}
        self._captured: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Input and output of each norm of the captured layers."""

    def _hooks(self) -> Iterator[Hook]:
        drafter, inner = self._drafter, self._drafter.model.model
        for name, layer in drafter.layers.items():
            observe = functools.partial(self._on_attention, name)
            yield functools.partial(layer.tap, observe, self.switch)
        if drafter.aux_states:
            yield self._after(inner.fc, "combine", self._on_combine)
            yield self._before(inner.layers[0], "forward_in", self._on_first_layer)
        for norm in drafter.aux_norms:
            yield self._after(norm, "aux_norm", self._on_captured_norm)
        for norm in drafter.final_norms:
            yield self._after(norm, "final_norm", self._on_final_norm)
        yield functools.partial(
            _hook,
            functools.partial(
                drafter.model.logits_processor.register_forward_hook, with_kwargs=True
            ),
            self._observe_result,
        )

    def _after(self, module: Any, name: str, action: Callable[[Any, Any], None]) -> Hook:
        def observe(_: Any, arguments: Any, output: Any) -> None:
            if self.switch.should_record:
                self.switch.observe((name, action, arguments, output))

        return functools.partial(_hook, module.register_forward_hook, observe)

    def _before(self, module: Any, name: str, action: Callable[[Any, Any], None]) -> Hook:
        def observe(_: Any, arguments: Any, keywords: Any) -> None:
            if self.switch.should_record:
                self.switch.observe((name, action, arguments, keywords))

        register = functools.partial(module.register_forward_pre_hook, with_kwargs=True)
        return functools.partial(_hook, register, observe)

    def _on_attention(self, name: str, query: torch.Tensor, _: torch.Tensor | None) -> None:
        self._queries[name] = query.reshape(len(query), -1)

    def _on_combine(self, arguments: Any, _: Any) -> None:
        self._inside["captured"] = arguments[0]

    def _on_captured_norm(self, arguments: Any, output: Any) -> None:
        self._captured.append((arguments[0], output))

    def _on_first_layer(self, arguments: Any, keywords: Any) -> None:
        entering = keywords.get("hidden_states")
        self._inside["entering"] = arguments[2] if entering is None else entering

    def _on_final_norm(self, arguments: Any, output: Any) -> None:
        """Note both sides of the final norm, which adds the residual itself in some models."""
        fused = isinstance(output, tuple)
        normed, stream = output if fused else (output, arguments[0])
        self._inside[POSTNORM_RMS], self._inside[PRENORM_RMS] = normed, stream

    def _observe_result(self, _: Any, arguments: Any, keywords: Any, output: Any) -> None:
        if self.switch.should_record:
            given = (*arguments, *keywords.values())
            self.switch.observe(("forward_out", self._on_result, given, output))

    def _on_result(self, given: tuple[Any, ...], output: Any) -> None:
        """Put the states of a forward together at its end. SGLang is `given` the tokens, the state
        that logits are computed from, the head and the batch."""
        rows = self._rows
        inside, pick = (_unchanged, _unchanged) if rows is None else (rows.inside, rows.result)
        states = {name: inside(x) for name, x in self._inside.items()}
        states |= {f"query {name}": inside(self._queries[name]) for name in self._layers}
        states |= {FED_RMS: pick(output.hidden_states), "logits": pick(output.next_token_logits)}
        for column, index in self._drafter.kind.outputs.items():
            if column != FED_RMS:
                states[column] = states[FED_RMS] if index == LAST else inside(given[1])
        if not self._drafter.aux_states:
            states["entering"] = inside(given[3].spec_info.hidden_states)
        if self._captured:  # fc's input is normed already
            states["captured"] = torch.cat([inside(x) for x, _ in self._captured], -1)
            normed = (inside(x) for _, x in self._captured)
            states |= {f"normed {index}": x for index, x in enumerate(normed)}
        if rows is None:
            pass_on(states, self._kernels, self._layers)
        else:
            self._kept = states
        self._forget()


def _hook(register: Callable[[Any], Any], observe: Callable[..., None]) -> Remove:
    remove: Remove = register(observe).remove
    return remove


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x

"""The start-up witness: computes the first recorded chain a second time, by another way.

What is recorded of a drafter follows from one watched forward (`discovery`) and from how its engine
runs such drafters. Whether that is right for this drafter is seen in one chain of real traffic. The
witness keeps one request's raw rows: what enters and leaves each forward, what enters the output
head, each attention layer's query and result. From the layer's keys and values it computes the full
softmax in float64. The weights times the values must be what the layer gave out, the classes' sums
of the weights what was recorded as masses, the states' RMS what was recorded of them, and the state
that enters depth d + 1 the one that was recorded as fed at depth d. If two chains in a row do not
agree, nothing of the inside is recorded; if they cannot be computed, it is said to be not verified.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.boundary.files import first_line
from driftscope.trace.manifest import FED_AFTER, FED_BEFORE, FED_PLAIN
from driftscope.vocabulary import FED_RMS, IN_RMS, MASSES, POSTNORM_RMS, PRENORM_RMS
from driftscope_probes.buffers import Layout
from driftscope_probes.discovery import watch_norm
from driftscope_probes.drafter import AttentionKind, Drafter, WitnessedLayer, stand_in
from driftscope_probes.engine import DeviceStep, DraftStep
from driftscope_probes.meter import page_size
from driftscope_probes.taps import TappedModel

MASS_WITHIN = 2e-3
"""Largest difference of a mass; both computations read the same keys."""
RMS_WITHIN = 2e-3
"""Largest relative difference of an RMS."""
TOP1_WITHIN = 2e-3
OUTPUT_WITHIN = 1e-3
"""Largest difference of an attention layer's float32 result on a CPU, relative to its largest
number."""
OUTPUT_WITHIN_ROUNDED = 4e-2
"""That tolerance for types of 16 bits, in which kernels round the weights, and on a GPU, whose
kernels multiply float32 numbers as TF32."""
OTHER_RUN = 25
"""Factor of the tolerances of what was recorded of another run of the same chain: padded to another
size, products of 16 bits are rounded otherwise."""
SLOTS_AT_ONCE = 4096
"""Number of slots whose keys and values are read at once."""
FED_STATES = {PRENORM_RMS: FED_BEFORE, POSTNORM_RMS: FED_AFTER}
"""`Manifest.fed_state` by the column of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessResult:
    """Result of the witness."""

    fault: str | None
    """Part that did not agree; None if everything did, or nothing was compared."""
    unsure: str | None
    """Why not everything was compared; None if it was."""
    states_agree: bool
    """Whether everything but the attention agreed: the states can then be recorded without it."""
    fed_state: str | None
    """`Manifest.fed_state`."""
    taken_s: float
    """Time that the second computation took, in seconds."""


@dataclass(slots=True)
class _Forward:
    """Raw rows of one request in one forward: one row, or K of a block drafter."""

    entered: torch.Tensor | None = None
    outputs: tuple[torch.Tensor, ...] = ()
    stream: torch.Tensor | None = None
    """Input of the tapped norm, if Python saw it."""
    head: torch.Tensor | None = None
    """Input of the output head."""
    logits: torch.Tensor | None = None
    queries: dict[str, torch.Tensor] = field(default_factory=dict)
    attended: dict[str, torch.Tensor] = field(default_factory=dict)


class StartWitness:
    """Recomputes one chain of a drafter at a time.

    ======================  ==================================================================
    `choose(step, at)`      choose the request whose chain is recomputed, before it is drafted
    `watch()`               keep its rows from now on
    `drafted(drafts)`       read its keys, before another chain takes their slots
    `end()`                 keep nothing more, and leave no hook
    `judge(values, ...)`    compare what was recorded of it
    ======================  ==================================================================
    """

    def __init__(
        self,
        drafter: Drafter,
        layers: Mapping[str, WitnessedLayer],
        holder: Any,
        *,
        of_other_run: bool = False,
    ) -> None:
        """`layers` of the drafter; the engine keeps its model as `holder.model`.
        `of_other_run`: what is judged is recorded while the watched chain is drafted again."""
        self._drafter, self._layers = drafter, layers
        self._times = OTHER_RUN if of_other_run else 1
        self._tokens: list[int] = []
        self._attentions: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """Output of each layer for the watched queries, see `_attend`."""
        self._holder = holder
        self._forwards: list[_Forward] = []
        self._hooks = contextlib.ExitStack()
        self.failed: Exception | None = None
        """First exception of a hook."""

    def choose(self, step: DraftStep, at: DeviceStep) -> None:
        """Choose the request with the shortest context whose prompt is complete, if there is
        one."""
        positions = at.position.tolist()
        order = sorted(range(len(positions)), key=lambda b: (step.prefilling[b], positions[b]))
        self._b, self._step, self._at = order[0], step, at
        self._position = positions[self._b]
        per = len(at.rows) // len(positions)
        self._first_rows = at.rows[self._b * per : (self._b + 1) * per]

    def watch(self) -> None:
        """Keep the request's rows of each forward that Python sees, until `end`."""
        self._forwards, self.failed = [], None
        self._tokens, self._attentions = [], {}
        drafter, model = self._drafter, self._drafter.model
        holder = self._holder
        with contextlib.ExitStack() as undo:
            served = holder.model
            holder.model = TappedModel(served, self._around)
            undo.callback(setattr, holder, "model", served)
            for name, layer in self._layers.items():
                keep = functools.partial(self._run, self._keep_attention, name)
                undo.callback(layer.watch(keep))
            if not drafter.compiled:
                for norm in drafter.final_norms:
                    keep_stream = functools.partial(self._run, self._keep_stream)
                    undo.callback(watch_norm(norm, keep_stream))
            if hasattr(model, "compute_logits"):
                undo.callback(stand_in(model, "compute_logits", self._around_head))
            self._hooks = undo.pop_all()

    def drafted(self, drafts: torch.Tensor) -> None:
        """Keep the tokens [B, K] of the watched chains, if others are drafted after them, and read
        the keys and values, which those overwrite."""
        self._tokens = drafts[self._b].tolist()
        self._run(self._read_attentions)

    def _read_attentions(self) -> None:
        forwards = self._forwards[: self._forwards_of_chain]
        for name, layer in self._layers.items():
            if all(name in forward.queries for forward in forwards):
                queries = torch.cat([forward.queries[name] for forward in forwards])
                self._attentions[name] = self._attend(name, layer, queries)

    @property
    def _forwards_of_chain(self) -> int:
        """Number of forwards of a chain."""
        return 1 if self._drafter.kind.block else self._step.k

    def end(self) -> None:
        """Remove the hooks of `watch`."""
        self._hooks.close()

    def _run(self, hook: Callable[..., None], *args: Any) -> None:
        """Run a hook in the drafter's forward, which goes on whatever it raises."""
        try:
            hook(*args)
        except Exception as error:  # the serving path never raises
            self.failed = self.failed or error

    def _around(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        self._forwards.append(_Forward())
        self._run(self._on_entered, args, kwargs)
        result = model(*args, **kwargs)
        self._run(self._on_result, result)
        return result

    def _on_entered(self, args: Any, kwargs: Any) -> None:
        kind = self._drafter.kind
        if kind.fed:
            hidden = args[0] if kind.heads else kwargs.get("hidden_states")
            if hidden is not None:
                rows = [self._b] * self._drafter.k if kind.heads else self._rows
                self._forwards[-1].entered = hidden[rows].clone()

    def _on_result(self, result: Any) -> None:
        if isinstance(result, list):  # one state for each head
            result = torch.stack([of_head[self._b] for of_head in result])
            self._forwards[-1].outputs = (result.clone(),)
            return
        results = result if isinstance(result, tuple) else (result,)
        self._forwards[-1].outputs = tuple(one[self._rows].clone() for one in results)

    def _keep_attention(self, name: str, query: torch.Tensor, result: torch.Tensor) -> None:
        if self._forwards:
            forward = self._forwards[-1]
            forward.queries[name] = query[self._rows].flatten(1).clone()
            forward.attended[name] = result[self._rows].flatten(1).clone()

    def _keep_stream(self, entered: torch.Tensor, *_: torch.Tensor) -> None:
        if self._forwards:
            self._forwards[-1].stream = entered[self._rows]

    def _around_head(self, original: Any) -> Callable[..., Any]:
        def watched(hidden: Any, *args: Any, **kwargs: Any) -> Any:
            logits = original(hidden, *args, **kwargs)
            self._run(self._on_head, hidden, logits)
            return logits

        return watched

    def _on_head(self, hidden: Any, logits: Any) -> None:
        if not self._forwards or logits is None:
            return
        forward, kind = self._forwards[-1], self._drafter.kind
        if isinstance(logits, list):
            forward.logits = torch.stack([of_head[self._b] for of_head in logits]).clone()
            return
        per = self._drafter.k if kind.block else 1
        rows = slice(self._b * per, (self._b + 1) * per)
        forward.head, forward.logits = hidden[rows].clone(), logits[rows].clone()

    @property
    def _rows(self) -> torch.Tensor | list[int]:
        """Rows of the request in the forward in progress."""
        return self._first_rows if len(self._forwards) == 1 else [self._b]

    def judge(
        self,
        values: torch.Tensor | None,
        layout: Layout,
        aliases: Mapping[str, str],
        sink_slots: Sequence[int] | None,
        drafts: torch.Tensor | None = None,
    ) -> WitnessResult:
        """Compare the recorded numbers `values` [B, width] of this `layout`, None if they could not
        be measured, with those of the kept rows.

        `aliases`: column that is not written -> column with the same numbers. `sink_slots`: None
        while no masses are recorded. `drafts` [B, K]: tokens of the recorded chains; where two are
        almost equally likely, the watched chain goes on with another one, and depths after it are
        not compared.
        """
        self._layout, begun = layout, time.perf_counter()
        fault: str | None = None
        unsure, fed, states_agree = None, None, False
        try:
            if self.failed is not None:
                raise self.failed
            fault = self._missing(values, drafts)
            if fault is None and values is not None:
                recorded = values[self._b].double().cpu()
                fault, fed = next(self._faults(recorded, aliases), None), self._fed_state()
                states_agree = fault is None
                if fault is None:
                    if not self._tokens:
                        self._read_attentions()
                    fault = next(self._mass_faults(recorded, sink_slots), None)
        except Exception as error:  # whatever a class of drafter or a backend does
            unsure = f"the computation failed ({first_line(error)})"
        self._forwards, self._attentions = [], {}
        return WitnessResult(
            fault=fault,
            unsure=unsure,
            states_agree=states_agree,
            fed_state=fed,
            taken_s=time.perf_counter() - begun,
        )

    def _missing(self, values: torch.Tensor | None, drafts: torch.Tensor | None) -> str | None:
        """Return what there is not to compare; forwards beyond the chain's are left out."""
        wanted, forwards = self._forwards_of_chain, len(self._forwards)
        comparable = wanted
        if self._tokens and drafts is not None:
            pairs = zip(self._tokens, drafts[self._b].tolist(), strict=False)
            matching = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            comparable = min(wanted, 1 + len(list(matching)))
        self._forwards = self._forwards[:comparable]
        if forwards < wanted:
            return f"{forwards} forwards of {wanted} were seen"
        return "nothing was measured" if values is None else None

    def _fed_state(self) -> str | None:
        """Return which state is fed, by the first output or tapped stream that equals it."""
        outputs, first = self._drafter.kind.outputs, self._forwards[0]
        if FED_RMS not in outputs:
            return None
        fed = first.outputs[outputs[FED_RMS]]
        known = [(name, first.outputs[index]) for name, index in outputs.items()]
        if first.stream is not None:
            known.append((PRENORM_RMS, first.stream))
        kind = self._drafter.kind
        normed = kind.head_norms or bool(kind.norms) or POSTNORM_RMS in outputs
        state = next((FED_STATES[n] for n, x in known if n in FED_STATES and _equal(x, fed)), None)
        return FED_PLAIN if state == FED_BEFORE and not normed else state

    def _faults(self, recorded: torch.Tensor, aliases: Mapping[str, str]) -> Iterator[str]:
        """Yield what does not agree of rows, states and confidence, in words."""
        yield from self._chain_faults()
        for column, raw in self._raw_states():
            at = self._layout.column(aliases.get(column, column))
            recorded_rows = recorded[at : at + len(raw)]
            if recorded_rows.isnan().all() and column == IN_RMS:
                continue
            off = _relative(recorded_rows, _rms(raw))
            if not off <= RMS_WITHIN * self._times:
                yield f"{column} is off by {off:.1%}"
        if (logits := self._logits()) is not None:
            at = self._layout.column("top1")
            recorded_rows = recorded[at : at + len(logits)]
            off = (recorded_rows - logits.double().softmax(-1).amax(-1).cpu()).abs().max().item()
            if not (recorded_rows.isnan().all() or off <= TOP1_WITHIN * self._times):
                yield f"the top-1 probability is off by {off:.1%}"

    def _chain_faults(self) -> Iterator[str]:
        """Yield what is wrong with the rows, the head's input and what the next depth is fed."""
        for depth, forward in enumerate(self._forwards, 1):
            head = forward.head
            if head is not None and not _equal(head, forward.outputs[0]):
                yield f"the output head reads another row at depth {depth}"
        if not self._drafter.kind.chained:
            return
        index = self._drafter.kind.outputs.get(FED_RMS, -1)
        for depth, (before, after) in enumerate(itertools.pairwise(self._forwards), 2):
            if after.entered is None:
                yield f"no state enters depth {depth}"
            elif not _equal(after.entered, before.outputs[index]):
                others = [i for i, one in enumerate(before.outputs) if _equal(after.entered, one)]
                what = f"output {others[0]}" if others else "no output"
                yield f"{what} of depth {depth - 1} is what depth {depth} is fed"

    def _raw_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each column of RMS with the states [K, dim] that it is of."""
        kind, forwards = self._drafter.kind, self._forwards
        for column, index in kind.outputs.items():
            yield column, torch.cat([forward.outputs[index] for forward in forwards])
        streams = [forward.stream for forward in forwards if forward.stream is not None]
        if kind.norms and len(streams) == len(forwards):
            yield PRENORM_RMS, torch.cat(streams)
        first = forwards[0].entered
        if first is not None:
            yield IN_RMS, first

    def _logits(self) -> torch.Tensor | None:
        kept = [forward.logits for forward in self._forwards if forward.logits is not None]
        return torch.cat(kept) if len(kept) == len(self._forwards) else None

    def _mass_faults(
        self, recorded: torch.Tensor, sink_slots: Sequence[int] | None
    ) -> Iterator[str]:
        """Yield what does not agree of the attention."""
        forwards, step = self._forwards, self._layout.layers * len(MASSES)
        for index, name in enumerate(self._layers):
            results = [forward.attended[name] for forward in forwards if name in forward.attended]
            if name not in self._attentions or len(results) < len(forwards):
                yield f"layer {name} was not seen at each depth"
                continue
            result = torch.cat(results).double()
            weights, given = (whole[: len(result)] for whole in self._attentions[name])
            off = ((given - result).abs().max() / result.abs().max().clamp_min(1e-12)).item()
            exact = results[0].dtype == torch.float32 and results[0].device.type == "cpu"
            if not off <= (OUTPUT_WITHIN if exact else OUTPUT_WITHIN_ROUNDED):
                yield (
                    f"layer {name} gives out something else than its queries, keys and values make"
                )
            elif sink_slots is not None:
                at = self._layout.column("masses") + index * len(MASSES)
                depths = range(len(weights))
                own = torch.stack([recorded[at + d * step :][: len(MASSES)] for d in depths])
                off_mass = (own - self._classes(weights, sink_slots)).abs()
                worst = off_mass[~own.isnan()].max().item() if not own.isnan().all() else torch.nan
                if not worst <= MASS_WITHIN * self._times:
                    yield f"a mass of layer {name} is off by {worst:.3f}"

    def _attend(
        self, name: str, layer: WitnessedLayer, queries: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights [K, heads, slots + 1], the last of them of a learned bias, and the
        attention's result [K, heads * size], both float64."""
        kind, cache, reader = layer.kind, layer.cache(), layer.reader
        k, chain = len(queries), self._drafter.kind
        own = self._position + chain.lead + chain.ahead + torch.arange(k)
        length = int(own[-1]) + 1
        table = self._at.block_tables[name][self._b : self._b + 1]
        page = page_size(cache)
        per = max(1, SLOTS_AT_ONCE // page)
        parts = [
            (table[:, first : first + per], min(length, (first + per) * page) - first * page)
            for first in range(0, -(-length // page), per)
        ]
        q = reader.queries(queries[None].float()).view(k, kind.kv_heads, -1, kind.head_size)
        q = q.permute(1, 2, 0, 3).reshape(1, kind.kv_heads, -1, kind.head_size) * kind.scale
        scores = torch.cat(
            [_flat(reader.score(q, cache, some, n))[..., :n] for some, n in parts], -1
        )
        scores = scores.double().view(kind.heads, k, length).transpose(0, 1)
        weights = _softmax(scores, own.to(scores.device), kind, causal=chain.causal)
        given, first = torch.zeros((), dtype=torch.float64, device=scores.device), 0
        for some, n in parts:
            given = given + layer.weigh(weights[..., first : first + n], some, n).double()
            first += n
        return weights, given.flatten(1)

    def _classes(self, weights: torch.Tensor, sink_slots: Sequence[int]) -> torch.Tensor:
        """Return the masses [K, 5] in the order of MASSES."""
        mean = weights.mean(1).cpu()
        last = self._position + self._drafter.kind.lead
        prompt = int(self._at.prompt_tokens[self._b])
        sinks = [slot for slot in sink_slots if slot <= last]
        slots = torch.arange(mean.shape[1] - 1)
        is_sink = torch.isin(slots, torch.tensor(sinks, dtype=torch.long))
        context = (slots <= last) & ~is_sink
        classes = (is_sink, context & (slots < prompt), context & (slots >= prompt), slots > last)
        sums = [mean[:, :-1][:, chosen].sum(1) for chosen in classes]
        return torch.stack([*sums, mean[:, -1]], 1)


def _flat(scores: torch.Tensor) -> torch.Tensor:
    """Return [kv_heads, Q, slots] from one request's [1, blocks, kv_heads, Q, size]."""
    return scores[0].permute(1, 2, 0, 3).flatten(2)


def _softmax(
    scores: torch.Tensor, own: torch.Tensor, kind: AttentionKind, *, causal: bool
) -> torch.Tensor:
    """Return the weights [K, heads, slots + 1] of scores [K, heads, slots] float64."""
    if kind.softcap:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    slots = torch.arange(scores.shape[-1], device=scores.device)
    last = own if causal else own[-1:].expand_as(own)
    hidden = slots > last[:, None]
    if kind.bounded:
        hidden |= slots < kind.first_seen(own)[:, None]
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    bias = scores.new_full((kind.heads,), -torch.inf)
    if kind.sinks is not None:
        bias = kind.sinks.to(scores)
    return torch.cat((scores, bias.expand(len(own), -1)[..., None]), -1).softmax(-1)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two states are the same numbers; engines may keep them in another type."""
    if one.shape != other.shape:
        return False
    return bool(torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-5))


def _rms(states: torch.Tensor) -> torch.Tensor:
    return states.double().square().mean(-1).sqrt().cpu()


def _relative(mine: torch.Tensor, raw: torch.Tensor) -> float:
    return ((mine - raw).abs() / raw.abs().clamp_min(1e-12)).max().item()

"""A minimal speculative decoding engine: one request, greedy, one chain per round.

It generates what greedy decoding of the target alone would, and records each round as a probe in a
serving engine does. What it measures on a chain is the ground truth of what a probe records.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from driftscope.inspect.reference.config import DEFAULT_N_SINK, EOS_ID
from driftscope.inspect.reference.drafter import (
    ChainStep,
    Context,
    ReferenceDrafter,
    chain_steps,
    class_masses,
    distance_masses,
    load_drafter,
    load_target,
    rms,
)
from driftscope.inspect.reference.layers import KVCache, Target, at_least_float32
from driftscope.trace.manifest import (
    AUX_FROM_CONFIG,
    AUX_FROM_ENGINE,
    GREEDY,
    Manifest,
    Model,
    weights_digest,
)
from driftscope.trace.records import DraftRow, RequestRow, StepRow, VerifyRow, edges_of
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import check_unused, create_run
from driftscope.version import __version__
from driftscope.vocabulary import (
    BY_DEPTH,
    DISTANCE_MASS,
    GENERATED_MASS,
    PROMPT_MASS,
    SELF_MASS,
    SINK_MASS,
    Execution,
)

MASSES = (SINK_MASS, PROMPT_MASS, GENERATED_MASS, SELF_MASS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One chain of K drafted tokens. Tuples over depth have K entries, starting with depth 1.

    `position` is p. `token_ids[d-1]`, drafted at depth d, predicts token p+1+d; it is the target's
    id of the token, whatever the drafter's vocabulary. With several layers the masses have one
    entry per depth and layer, depth-major; `distance_mass` has one per depth, layer and bin.
    `in_rms` is the RMS of the hidden state that enters the first layer (at depth 1 the output of
    `fc`, whose RMS is `fc_rms`), `prenorm_rms` of the residual stream after the last MLP,
    `postnorm_rms` of that stream after the final norm, `fed_rms` of the state fed to the next
    depth. `aux_rms` has one entry per captured target layer, at slot p; `aux_norm_rms` has the RMS
    of the same states after `norm_before_fc` and `fc_norm`, None without either. `top1` is the
    largest probability of the drafter's softmax, over its own vocabulary; `entropy` is in nats. An
    EAGLE-1 drafter and an MTP head capture no layer and fuse at every depth: `aux_rms` and `fc_rms`
    are None, and `in_rms` is that of the state beside the embedding. An EAGLE-1 drafter has no
    final norm either: `postnorm_rms` is None.
    """

    position: int
    prompt_tokens: int
    token_ids: tuple[int, ...]
    sink_mass: tuple[float, ...]
    prompt_mass: tuple[float, ...]
    generated_mass: tuple[float, ...]
    self_mass: tuple[float, ...]
    distance_mass: tuple[float, ...]
    in_rms: tuple[float, ...]
    prenorm_rms: tuple[float, ...]
    postnorm_rms: tuple[float, ...] | None
    fed_rms: tuple[float, ...]
    top1: tuple[float, ...]
    entropy: tuple[float, ...]
    aux_rms: tuple[float, ...] | None
    aux_norm_rms: tuple[float, ...] | None
    fc_rms: float | None
    logits: Tensor = field(compare=False, repr=False)
    """[K, vocabulary of the drafter]; no column of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Results of one depth of A chains, each [A]; `masses` [A, 4, layers], see `class_masses`;
    `distances` [A, layers, bins], see `distance_masses`."""

    token_ids: Tensor
    masses: Tensor
    distances: Tensor
    in_rms: Tensor
    prenorm_rms: Tensor
    postnorm_rms: Tensor
    fed_rms: Tensor
    top1: Tensor
    entropy: Tensor
    logits: Tensor


@torch.no_grad()
def draft_chains(
    target: Target,
    drafter: ReferenceDrafter,
    *,
    anchors: Tensor,
    next_ids: Tensor,
    aux: tuple[Tensor, ...],
    context: Context,
    prompt_tokens: int,
    k: int,
    n_sink: int,
) -> list[Chain]:
    """Draft K tokens greedily from each anchor, all anchors at once.

    `anchors` [A] are the positions p of the chains and `next_ids` [A] the known tokens p+1; `aux`
    holds one [1, A, H] tensor of captured states per layer, at slot p; `context` covers at least
    the slots 0..max p.
    """
    fused = drafter.fuse(aux)
    steps = chain_steps(
        target,
        drafter,
        hidden=fused,
        token_ids=next_ids,
        anchors=anchors,
        context=context,
        k=k,
    )
    depths = [
        _measure(step, anchors, prompt_tokens, context.slots, n_sink=n_sink, k=k) for step in steps
    ]
    chains = _assemble(depths, anchors, aux, drafter.normed_aux(aux), fused, prompt_tokens)
    if not drafter.config.reads_final_state:
        return chains
    chains = [replace(chain, aux_rms=None, fc_rms=None) for chain in chains]
    if not drafter.config.eagle1:
        return chains
    return [replace(chain, postnorm_rms=None) for chain in chains]


def _measure(
    step: ChainStep, anchors: Tensor, prompt_tokens: int, slots: int, *, n_sink: int, k: int
) -> Depth:
    """Measure one depth."""
    output = step.output
    log_probs = step.logits.to(at_least_float32(step.logits.dtype)).log_softmax(-1)
    probs = log_probs.exp()
    masses = [class_masses(one[0], slots, prompt_tokens, n_sink) for one in output.attention]
    distances = [
        distance_masses(one[0], anchors, step.depth, n_sink, k) for one in output.attention
    ]
    return Depth(
        token_ids=step.token_ids,
        masses=torch.stack(masses, dim=-1),
        distances=torch.stack(distances, dim=1),
        in_rms=rms(step.hidden[0]),
        prenorm_rms=rms(output.prenorm[0]),
        postnorm_rms=rms(output.postnorm[0]),
        fed_rms=rms(output.fed[0]),
        top1=probs.amax(-1),
        entropy=-(probs * log_probs).sum(-1),
        logits=step.logits,
    )


def _assemble(
    depths: list[Depth],
    anchors: Tensor,
    aux: tuple[Tensor, ...],
    normed_aux: tuple[Tensor, ...] | None,
    fused: Tensor,
    prompt_tokens: int,
) -> list[Chain]:
    """Turn [A] per depth into one record per anchor."""
    columns = {
        name: _rows(torch.stack([getattr(depth, name) for depth in depths], 1)) for name in BY_DEPTH
    }
    masses = torch.stack([depth.masses for depth in depths], 2).flatten(2)
    columns |= {name: _rows(masses[:, index]) for index, name in enumerate(MASSES)}
    distances = torch.stack([depth.distances for depth in depths], 1).flatten(1)
    columns[DISTANCE_MASS] = _rows(distances)
    tokens = torch.stack([depth.token_ids for depth in depths], 1).tolist()
    logits = torch.stack([depth.logits for depth in depths], 1)
    aux_rms, fc_rms = _over_layers(aux), rms(fused[0]).tolist()
    aux_norm_rms = _over_layers(normed_aux) if normed_aux else None
    return [
        Chain(
            position=position,
            prompt_tokens=prompt_tokens,
            token_ids=tuple(tokens[row]),
            aux_rms=aux_rms[row],
            aux_norm_rms=aux_norm_rms[row] if aux_norm_rms else None,
            fc_rms=fc_rms[row],
            logits=logits[row],
            **{name: rows[row] for name, rows in columns.items()},
        )
        for row, position in enumerate(anchors.tolist())
    ]


def _over_layers(aux: tuple[Tensor, ...]) -> list[tuple[float, ...]]:
    """Return the RMS of each captured layer, one tuple per anchor."""
    return _rows(torch.stack([rms(layer[0]) for layer in aux], 1))


def _rows(values: Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in values.tolist()]


@torch.no_grad()
def replay(
    target: Target,
    drafter: ReferenceDrafter,
    tokens: Sequence[int],
    prompt_tokens: int,
    anchors: Sequence[int],
    k: int,
    n_sink: int = DEFAULT_N_SINK,
) -> list[Chain]:
    """Draft K tokens from each anchor p, given the true tokens 0..p+1 before it.

    The replay is teacher-forced and vectorised over the anchors. It repeats what a run drafted at
    position p of the same tokens, and computes in the dtype of the models.

    Raises ValueError for an anchor whose next token is not among `tokens`.
    """
    if not anchors:
        return []
    if min(anchors) < 0 or max(anchors) > len(tokens) - 2:
        raise ValueError(
            f"anchors must lie in 0..{len(tokens) - 2}: the token after each is needed; "
            f"got {min(anchors)}..{max(anchors)}"
        )
    ids = torch.tensor([list(tokens)])
    positions = torch.tensor(list(anchors))
    aux = target(ids[:, :-1], aux_layers=drafter.config.aux_layers).aux
    return draft_chains(
        target,
        drafter,
        anchors=positions,
        next_ids=ids[0, positions + 1],
        aux=tuple(layer[:, positions] for layer in aux),
        context=drafter.context(drafter.embed(ids[:, 1:], target), drafter.fuse(aux)),
        prompt_tokens=prompt_tokens,
        k=k,
        n_sink=n_sink,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One draft and its verification.

    `drafted` is K, `accepted` the number of leading drafted tokens equal to the target's greedy
    ones, and `emitted` the number of tokens that the request got: accepted + 1, unless it ended
    first. `draft_s` and `step_s` are the durations of drafting and of the whole round, in seconds.
    """

    chain: Chain
    drafted: int
    accepted: int
    emitted: int
    draft_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One request. `token_ids` is the output, whose first token came with the prefill.

    `ttft_s` is the time to that token, `duration_s` the time to the last one, in seconds.
    `finish_reason` is `stop` if the output ends with the end token, else `length`.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    ttft_s: float
    duration_s: float
    finish_reason: Literal["stop", "length"]


@torch.no_grad()
def generate(
    target: Target,
    drafter: ReferenceDrafter,
    prompt_ids: Sequence[int],
    max_tokens: int,
    k: int,
    n_sink: int = DEFAULT_N_SINK,
    *,
    eos_token_id: int | None = None,
    on_round: Callable[[Round], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generation:
    """Generate up to `max_tokens` tokens, K drafts per round; pass rounds to `on_round`.

    Raises ValueError if the positions do not suffice for prompt, output and a last chain.
    """
    request = _Request(target, drafter, prompt_ids, max_tokens, k, n_sink, eos_token_id, clock)
    start = clock()
    request.prefill()
    ttft_s = clock() - start
    rounds = []
    while not request.finished:
        rounds.append(request.round())
        if on_round is not None:
            on_round(rounds[-1])
    return Generation(
        token_ids=tuple(request.output),
        rounds=tuple(rounds),
        ttft_s=ttft_s,
        duration_s=clock() - start,
        finish_reason="stop" if request.output[-1] == eos_token_id else "length",
    )


class _Request:
    """The state of a request between rounds.

    `_ids` are all known tokens; the target has not yet run on the last one. `_unseen_aux` are the
    captured states of the slots that the drafter's context does not contain yet.
    """

    def __init__(
        self,
        target: Target,
        drafter: ReferenceDrafter,
        prompt_ids: Sequence[int],
        max_tokens: int,
        k: int,
        n_sink: int,
        eos_token_id: int | None,
        clock: Callable[[], float],
    ) -> None:
        capacity = len(prompt_ids) + max_tokens + k + 1
        limit = target.config.max_position_embeddings
        if not prompt_ids or max_tokens < 1 or k < 1 or capacity > limit:
            raise ValueError(
                f"{len(prompt_ids)} prompt + {max_tokens} output tokens with K = {k} need at least "
                f"one each and at most {limit} positions"
            )
        self._target, self._drafter, self._clock = target, drafter, clock
        self._ids = list(prompt_ids)
        self._prompt_tokens, self._max_tokens = len(prompt_ids), max_tokens
        self._k, self._n_sink, self._eos_token_id = k, n_sink, eos_token_id
        self._cache = KVCache(capacity)
        self._context: Context | None = None
        self._unseen_aux: tuple[Tensor, ...] = ()

    @property
    def output(self) -> list[int]:
        return self._ids[self._prompt_tokens :]

    @property
    def finished(self) -> bool:
        return len(self.output) >= self._max_tokens or self._ids[-1] == self._eos_token_id

    def prefill(self) -> None:
        """Run the target over the prompt and take its first token."""
        greedy, self._unseen_aux = self._run_target(self._ids)
        self._ids.append(greedy[-1])

    def round(self) -> Round:
        """Draft a chain after the last verified slot, verify it, keep what was accepted."""
        start = self._clock()
        chain = self._draft()
        draft_s = self._clock() - start
        greedy, aux = self._run_target([self._ids[-1], *chain.token_ids])
        accepted = leading_matches(chain.token_ids, greedy)
        verified = accepted + 1
        # Keep what was verified; the newest token has no keys yet, and the next round runs it.
        self._cache.truncate(len(self._ids) + accepted)
        self._unseen_aux = tuple(layer[:, :verified] for layer in aux)
        emitted = self._emit([*chain.token_ids[:accepted], greedy[accepted]])
        return Round(
            chain=chain,
            drafted=len(chain.token_ids),
            accepted=accepted,
            emitted=emitted,
            draft_s=draft_s,
            step_s=self._clock() - start,
        )

    def _draft(self) -> Chain:
        last = len(self._ids) - 2
        self._extend_context()
        assert self._context is not None
        (chain,) = draft_chains(
            self._target,
            self._drafter,
            anchors=torch.tensor([last]),
            next_ids=torch.tensor(self._ids[-1:]),
            aux=tuple(layer[:, -1:] for layer in self._unseen_aux),
            context=self._context,
            prompt_tokens=self._prompt_tokens,
            k=self._k,
            n_sink=self._n_sink,
        )
        return chain

    def _extend_context(self) -> None:
        """Add the newly verified slots, each with the embedding of the token after it."""
        count = self._unseen_aux[0].shape[1]
        embedding = self._drafter.embed(torch.tensor([self._ids[-count:]]), self._target)
        fused = self._drafter.fuse(self._unseen_aux)
        self._context = self._drafter.context(embedding, fused, self._context)

    def _run_target(self, ids: list[int]) -> tuple[list[int], tuple[Tensor, ...]]:
        """Return the greedy token after each of `ids`, and the captured states at each."""
        output = self._target(
            torch.tensor([ids]), aux_layers=self._drafter.config.aux_layers, cache=self._cache
        )
        greedy: list[int] = self._target.logits(output.hidden[0]).argmax(-1).tolist()
        return greedy, output.aux

    def _emit(self, ids: list[int]) -> int:
        """Append `ids` up to the end token or the token limit; return how many were appended."""
        for count, token in enumerate(ids, start=1):
            self._ids.append(token)
            if self.finished:
                return count
        return len(ids)


def leading_matches(drafted: Sequence[int], greedy: Sequence[int]) -> int:
    """Return how many tokens of `drafted` equal those of `greedy` before the first difference."""
    for count, (left, right) in enumerate(zip(drafted, greedy, strict=False)):
        if left != right:
            return count
    return len(drafted)


class ReferenceRun:
    """Generates requests one after the other and records them; a context manager.

    Raises TraceError if `run` already holds a run or cannot be written.
    """

    def __init__(
        self, run: Path, target: Path, drafter: Path, *, k: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self._target = load_target(target, dtype)
        layers = self._target.config.num_hidden_layers
        self.drafter = load_drafter(drafter, dtype, target_layers=layers)
        self._layers = self.drafter.config.layer.num_hidden_layers
        self._k, self._requests, self._steps = k, 0, 0
        check_unused(run)
        self._writer = TraceWriter(run, source=f"reference-{os.getpid()}")
        create_run(run, self._manifest(target, drafter, str(dtype).removeprefix("torch.")))

    def __enter__(self) -> ReferenceRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()

    def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, label: str | None = None
    ) -> Generation:
        """Generate greedily from a prompt and record each round as it ends."""
        name = f"reference-{self._requests}"
        self._requests += 1
        arrival_s = time.time()
        result = generate(
            self._target,
            self.drafter,
            prompt_ids,
            max_tokens,
            self._k,
            eos_token_id=EOS_ID,
            on_round=lambda done: self._record(name, done),
        )
        count, decode_s = len(result.token_ids), result.duration_s - result.ttft_s
        # A hash without a key: the prompts of this engine are no user's.
        ids = np.array(prompt_ids, dtype=np.int64).tobytes()
        digest = hashlib.blake2b(ids, digest_size=8).hexdigest()
        self._writer.put(
            RequestRow(
                time_s=time.time(),
                request=name,
                label=label,
                arrival_s=arrival_s,
                prompt_tokens=len(prompt_ids),
                output_tokens=count,
                ttft_s=result.ttft_s,
                tpot_s=decode_s / (count - 1) if count > 1 else None,
                finish_reason=result.finish_reason,
                temperature=0.0,
                max_tokens=max_tokens,
                prompt_digest=digest,
                conversation=digest,
            )
        )
        return result

    def _record(self, request: str, done: Round) -> None:
        self._steps += 1
        now = time.time()
        self._writer.put(
            StepRow(
                execution=Execution.EAGER,
                step=self._steps,
                time_s=now,
                requests=1,
                chains=1,
                k=done.drafted,
                recorded=True,
                step_s=done.step_s,
                draft_s=done.draft_s,
                probe_s=0.0,
            )
        )
        self._writer.put(_draft_row(self._steps, now, request, done.chain, self._layers))
        self._writer.put(
            VerifyRow(
                step=self._steps,
                time_s=now,
                request=request,
                position=done.chain.position,
                drafted=done.drafted,
                verified=done.drafted,
                accepted=done.accepted,
                reason=None,
            )
        )

    def _manifest(self, target: Path, drafter: Path, dtype: str) -> Manifest:
        config = self.drafter.config
        return Manifest(
            run_id=uuid.uuid4().hex[:12],
            created_s=time.time(),
            driftscope_version=__version__,
            engine="reference",
            engine_version=__version__,
            runner="reference",
            mode="eager",
            recording="taps",
            method="eagle3",
            k=self._k,
            target=described_model(target, "LlamaForCausalLM", dtype),
            drafter=described_model(drafter, config.to_hf()["architectures"][0], dtype),
            norm_flags={
                "fc_norm": config.fc_norm,
                "norm_output": config.norm_output,
                "norm_before_fc": config.norm_before_fc,
                "norm_before_residual": config.norm_before_residual,
            },
            drafter_layers=config.layer.num_hidden_layers,
            aux_layers=tuple(config.aux_layers),
            aux_layers_source=AUX_FROM_CONFIG if config.names_aux_layers else AUX_FROM_ENGINE,
            draft_sampling=GREEDY,
            attention_backend="torch",
            kv_cache_dtype="auto",
            sink_tokens=DEFAULT_N_SINK,
            sink_source="default",
            distance_edges=edges_of(self._k),
            distance_every=1,
        )


def _draft_row(step: int, now: float, request: str, chain: Chain, layers: int) -> DraftRow:
    columns = [one.name for one in fields(Chain) if one.name != "logits"]
    measured = {name: getattr(chain, name) for name in columns}
    return DraftRow(
        execution=Execution.EAGER,
        step=step,
        time_s=now,
        request=request,
        batch=1,
        k=len(chain.token_ids),
        layers=layers,
        chunked_prefill=False,
        null_mass=None,
        **{**measured, "token_ids": None},
    )


def described_model(folder: Path, architecture: str, dtype: str) -> Model:
    """Return a model in a folder as a manifest describes it. Raises OSError without a config."""
    config = (folder / "config.json").read_bytes()
    return Model(
        name=str(folder),
        architecture=architecture,
        config_digest=hashlib.sha256(config).hexdigest()[:16],
        dtype=dtype,
        weights_digest=weights_digest(str(folder)),
    )

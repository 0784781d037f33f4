"""A minimal speculative decoding engine: one request, greedy, one chain per round.

It generates what greedy decoding of the target alone would, and records each round as a probe in a
serving engine does. What it measures on a chain is the ground truth of what a probe records.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from support.runs import Spec, manifest, verify
from torch import Tensor

from driftscope.inspect.reference.config import DEFAULT_N_SINK, EOS_ID, DrafterConfig
from driftscope.inspect.reference.drafter import (
    Context,
    ReferenceDrafter,
    chain_steps,
    class_masses,
    distance_masses,
    rms,
)
from driftscope.inspect.reference.layers import Target, at_least_float32
from driftscope.trace.manifest import (
    AUX_FROM_CONFIG,
    AUX_FROM_ENGINE,
    GREEDY,
    Manifest,
    Model,
    weights_digest,
)
from driftscope.trace.records import DraftRow, RequestRow, StepRow
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import (
    DISTANCE_MASS,
    GENERATED_MASS,
    PROMPT_MASS,
    SELF_MASS,
    SINK_MASS,
    Execution,
)
from driftscope_lab.training.checkpoints import drafter_fields, load_drafter, load_target

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
    fed_rms: tuple[float, ...]
    top1: tuple[float, ...]
    entropy: tuple[float, ...]
    fc_rms: float | None
    logits: Tensor = field(compare=False, repr=False)
    """[K, vocabulary of the drafter]; no column of a row."""
    postnorm_rms: tuple[float, ...] | None = None
    aux_rms: tuple[float, ...] | None = None
    aux_norm_rms: tuple[float, ...] | None = None


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
    fused, depths = drafter.fuse(aux), list[dict[str, Tensor]]()
    start = {"hidden": fused, "token_ids": next_ids, "anchors": anchors, "context": context}
    for step in chain_steps(target, drafter, **start, k=k):  # type: ignore[arg-type]
        output = step.output
        log_probs = step.logits.to(at_least_float32(step.logits.dtype)).log_softmax(-1)
        masses = [
            class_masses(layer[0], context.slots, prompt_tokens, n_sink)
            for layer in output.attention
        ]
        distances = [
            distance_masses(layer[0], anchors, step.depth, n_sink, k) for layer in output.attention
        ]
        depths.append(
            {
                "token_ids": step.token_ids,
                **dict(zip(MASSES, torch.stack(masses, -1).unbind(1), strict=True)),
                DISTANCE_MASS: torch.stack(distances, 1),
                "in_rms": rms(step.hidden[0]),
                "prenorm_rms": rms(output.prenorm[0]),
                "postnorm_rms": rms(output.postnorm[0]),
                "fed_rms": rms(output.fed[0]),
                "top1": log_probs.exp().amax(-1),
                "entropy": -(log_probs.exp() * log_probs).sum(-1),
                "logits": step.logits,
            }
        )
    columns = {name: torch.stack([depth[name] for depth in depths], 1) for name in depths[0]}
    logits, normed_aux = columns.pop("logits"), drafter.normed_aux(aux)
    if drafter.config.eagle1:
        del columns["postnorm_rms"]
    once = {"aux_rms": aux, "aux_norm_rms": normed_aux}
    if drafter.config.reads_final_state:
        del once["aux_rms"]
    columns |= {
        name: torch.stack([rms(layer[0]) for layer in layers], 1)
        for name, layers in once.items()
        if layers
    }
    return [
        Chain(
            position=position,
            prompt_tokens=prompt_tokens,
            fc_rms=None if drafter.config.reads_final_state else rms(fused[0, row]).item(),
            logits=logits[row],
            **{name: tuple(values[row].flatten().tolist()) for name, values in columns.items()},
        )
        for row, position in enumerate(anchors.tolist())
    ]


@torch.no_grad()
def replay(
    target: Target,
    drafter: ReferenceDrafter,
    tokens: Sequence[int],
    prompt_tokens: int,
    anchors: Sequence[int],
    k: int,
    n_sink: int = DEFAULT_N_SINK,
    wrong: Mapping[int, int] = {},
) -> list[Chain]:
    """Draft K tokens from each anchor p, given the true tokens 0..p+1 before it.

    `wrong`: slot of the drafter -> the token that is embedded there instead of the next one.

    The replay is teacher-forced and vectorised over the anchors. It repeats what a run drafted at
    position p of the same tokens, and computes in the dtype of the models.
    """
    if not anchors:
        return []
    ids = torch.tensor([list(tokens)])
    embedded, positions = ids[:, 1:].clone(), torch.tensor(list(anchors))
    for slot, token in wrong.items():
        embedded[0, slot] = token
    aux = target(ids[:, :-1], aux_layers=drafter.config.aux_layers).aux
    return draft_chains(
        target,
        drafter,
        anchors=positions,
        next_ids=ids[0, positions + 1],
        aux=tuple(layer[:, positions] for layer in aux),
        context=drafter.context(drafter.embed(embedded, target), drafter.fuse(aux)),
        prompt_tokens=prompt_tokens,
        k=k,
        n_sink=n_sink,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One draft and its verification; `accepted` counts the leading drafted tokens that equal the
    target's greedy ones."""

    chain: Chain
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One request. `token_ids` is the output, whose first token came with the prefill."""

    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]


@torch.no_grad()
def generate(
    target: Target,
    drafter: ReferenceDrafter,
    prompt_ids: Sequence[int],
    max_tokens: int,
    k: int,
    *,
    eos_token_id: int | None = None,
) -> Generation:
    """Generate up to `max_tokens` tokens greedily, with K drafts per round.

    What is accepted does not change the output, so that the target runs first and the chains are
    drafted after it.
    """
    ids = list(prompt_ids)
    for _ in range(max_tokens + k):
        ids += target.logits(target(torch.tensor([ids])).hidden[:, -1]).argmax(-1).tolist()
    prompt = len(prompt_ids)
    output = ids[prompt : prompt + max_tokens]
    if eos_token_id in output:
        output = output[: output.index(eos_token_id) + 1]
    anchors = range(prompt - 1, prompt + len(output) - 2)
    rounds, due = list[Round](), prompt - 1
    for chain in replay(target, drafter, ids, prompt, anchors, k):
        if chain.position == due:
            accepted = leading_matches(chain.token_ids, ids[due + 2 :])
            rounds.append(Round(chain=chain, accepted=accepted))
            due += accepted + 1
    return Generation(token_ids=tuple(output), rounds=tuple(rounds))


def leading_matches(drafted: Sequence[int], greedy: Sequence[int]) -> int:
    """Return how many tokens of `drafted` equal those of `greedy` before the first difference."""
    pairs = enumerate(zip(drafted, greedy, strict=False))
    shorter = min(len(drafted), len(greedy))
    return next((at for at, (left, right) in pairs if left != right), shorter)


def record_run(
    run: Path,
    target: Path,
    drafter: Path,
    prompts: Sequence[Sequence[int]],
    *,
    k: int,
    max_tokens: int,
    label: str,
    change: Callable[[ReferenceDrafter], None] | None = None,
) -> list[Generation]:
    """Generate from one prompt after the other and record each round, as a probe does.

    `change` is applied to the loaded drafter, of which the manifest knows nothing. Steps are of
    equal length, because the engine drafts all chains of a request at once.
    """
    loaded = load_target(target)
    drafts = load_drafter(drafter, target_layers=loaded.config.num_hidden_layers)
    create_run(run, _manifest(drafts.config, k, target, drafter))
    if change is not None:
        change(drafts)
    writer = TraceWriter(run, source=f"reference-{os.getpid()}")
    made, step = list[Generation](), 0
    for number, ids in enumerate(prompts):
        name, arrival_s = f"reference-{number}", time.time()
        made.append(generate(loaded, drafts, ids, max_tokens, k, eos_token_id=EOS_ID))
        rounds, count = made[-1].rounds, len(made[-1].token_ids)
        step_s = (time.time() - arrival_s) / (len(rounds) + 1)
        for at, done in enumerate(rounds, start=1):
            step += 1
            now = arrival_s + (at + 1) * step_s
            writer.put(
                StepRow(
                    execution=Execution.EAGER,
                    step=step,
                    time_s=now,
                    requests=1,
                    chains=1,
                    k=k,
                    recorded=True,
                    step_s=step_s,
                    draft_s=step_s / 2,
                    probe_s=0.0,
                )
            )
            figures = {
                field.name: getattr(done.chain, field.name)
                for field in fields(Chain)
                if field.name not in ("logits", "token_ids")
            }
            writer.put(
                DraftRow(
                    execution=Execution.EAGER,
                    step=step,
                    time_s=now,
                    request=name,
                    batch=1,
                    k=k,
                    layers=drafts.config.layer.num_hidden_layers,
                    chunked_prefill=False,
                    null_mass=None,
                    token_ids=None,
                    **figures,
                )
            )
            position = done.chain.position
            verified = verify(number, step, now, position, k, done.accepted)
            writer.put(replace(verified, request=name))
        # A hash without a key: the prompts of this engine are no user's.
        ids_digest = hashlib.blake2b(np.array(ids, np.int64).tobytes(), digest_size=8).hexdigest()
        writer.put(
            RequestRow(
                time_s=time.time(),
                request=name,
                label=label,
                arrival_s=arrival_s,
                prompt_tokens=len(ids),
                output_tokens=count,
                ttft_s=step_s,
                tpot_s=len(rounds) * step_s / (count - 1) if count > 1 else None,
                finish_reason="stop" if made[-1].token_ids[-1] == EOS_ID else "length",
                temperature=0.0,
                max_tokens=max_tokens,
                prompt_digest=ids_digest,
                conversation=ids_digest,
            )
        )
    writer.close()
    return made


def _manifest(config: DrafterConfig, k: int, target: Path, drafter: Path) -> Manifest:
    spec = Spec(
        k=k,
        layers=config.layer.num_hidden_layers,
        runner="reference",
        aux_layers=tuple(config.aux_layers),
        aux_layers_source=AUX_FROM_CONFIG if config.names_aux_layers else AUX_FROM_ENGINE,
        draft_sampling=GREEDY,
        distance_every=1,
    )
    flags = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
    return replace(
        manifest(spec),
        run_id=uuid.uuid4().hex[:12],
        sink_tokens=DEFAULT_N_SINK,
        sink_slots=(),
        engine="reference",
        target=_described(target, "LlamaForCausalLM"),
        drafter=_described(drafter, drafter_fields(config)["architectures"][0]),
        norm_flags={name: getattr(config, name) for name in flags},
    )


def _described(folder: Path, architecture: str) -> Model:
    config = (folder / "config.json").read_bytes()
    return Model(
        name=str(folder),
        architecture=architecture,
        config_digest=hashlib.sha256(config).hexdigest()[:16],
        dtype="float32",
        weights_digest=weights_digest(str(folder)),
    )

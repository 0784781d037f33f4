"""Compare a recorded run of a kind with what the witness saw."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

from driftscope.trace.manifest import read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.status import read_statuses
from driftscope.vocabulary import DISTANCE_MASS
from verification.zoo import ZOO
from verification.zoo.kind import Anatomy
from verification.zoo.witness import SINK_SLOTS, Draft, Forward, Witness

CLASSES = ("sink_mass", "prompt_mass", "generated_mass", "self_mass", "null_mass")
NORMS = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms")


TIMED = {("deepseek_mtp_modules", "v2")}
"""Kinds, with a runner, whose internals the probe does not record."""


def anatomy_of(name: str, runner: str) -> Anatomy | None:
    """Return the kind's anatomy; None where only acceptance and timing are recorded."""
    return None if (name, runner) in TIMED else ZOO[name].anatomy


def compare(run: Path, name: str, witness: Witness | None) -> dict[str, Any]:
    """Return counts, and the largest errors over all recorded chains, absolute, RMS relative."""
    trace, manifest = read_trace(run), read_manifest(run)
    verify, steps = trace.verify.to_pylist(), trace.step.to_pylist()
    rows = trace.draft.to_pylist()
    accepted = [v["accepted"] for v in verify]
    found: dict[str, Any] = {
        "query_kind": manifest.query_kind,
        "distance_every": manifest.distance_every,
        "layers": manifest.drafter_layers,
        "chains": len(rows),
        "drafts": sum(v["verified"] > 0 for v in verify),
        "accepted": [sum(a > d for a in accepted) for d in range(manifest.k)],
        "joined": len(
            {(v["request"], v["position"]) for v in verify if v["verified"]}
            & {(r["request"], r["position"]) for r in rows}
        ),
        "steps": len(steps),
        "drafting": sum(s["draft_s"] > 0 and s["k"] > 0 for s in steps),
        "errors": {k: v for s in read_statuses(run) for k, v in s.errors.items()},
    }
    if witness is None:
        return found
    worst: dict[str, float] = {}
    anatomy = ZOO[name].anatomy
    assert anatomy is not None
    seen = _index(witness.drafts, rows, anatomy)
    for row in rows:
        at = seen[row["request"].split("-")[0], row["position"]]
        expected = _expected(*at, row, anatomy, manifest.distance_edges)
        for column, want in expected.items():
            if column == "attention_output":
                error = float(want.max())
            else:
                error = _error(row[column], want, relative=column.endswith("rms"))
            worst[column] = max(worst.get(column, 0.0), error)
        for column in (*CLASSES, *NORMS, "top1", "entropy", DISTANCE_MASS):
            if column not in expected and row[column] is not None:
                worst[f"{column} unexpected"] = 1.0
    self_mass = [row["self_mass"][-1] for row in rows if row["self_mass"]]
    return {**found, "worst": worst, "last_self_mass": sum(self_mass) / max(1, len(self_mass))}


def _index(
    drafts: list[Draft], rows: list[dict[str, Any]], anatomy: Anatomy
) -> dict[tuple[str, int], tuple[Draft, int]]:
    """Return (request, p) -> its draft and place in the batch.

    Of the drafts with a row at p the latest counts, because before it that slot's token was
    rejected. Without positions the drafts of a request are in the order of its rows.
    """
    found: dict[tuple[str, int], tuple[Draft, int]] = {}
    waiting: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: row["position"]):
        waiting.setdefault(row["request"].split("-")[0], []).append(row["position"])
    for draft in drafts:
        for b, name in enumerate(draft.requests if draft.forwards else ()):
            request, first = name.split("-")[0], draft.forwards[0]
            if not first.starts:
                found[request, waiting[request].pop(0)] = (draft, b)
                continue
            positions = list(first.rows(b))
            if anatomy.block and anatomy.first:  # no row but the block's own
                positions = [positions[0] - 1]
            found |= {(request, position): (draft, b) for position in positions}
    return found


def row_of(draft: Draft, b: int, p: int, d: int, anatomy: Anatomy) -> tuple[Forward, int]:
    """Return the forward of depth `d`, from 0, and its row; without attention, a row for each
    request."""
    forward = draft.forwards[0 if anatomy.block else d]
    in_rows = forward.starts and (anatomy.block or d == 0)
    return forward, forward.rows(b)[p + anatomy.first + d] if in_rows else b


def _expected(
    draft: Draft, b: int, row: dict[str, Any], anatomy: Anatomy, edges: tuple[int, ...]
) -> dict[str, torch.Tensor]:
    k, p = row["k"], row["position"]
    columns: dict[str, list[torch.Tensor]] = {}
    masses, distances = [], []
    for d in range(k):
        forward, at = row_of(draft, b, p, d, anatomy)
        if anatomy.hidden and forward.hidden is not None:
            columns.setdefault("in_rms", []).append(forward.hidden[at])
        if forward.prenorm is not None:
            columns.setdefault("prenorm_rms", []).append(forward.prenorm[at])
        heads = len(forward.outputs) == k and not forward.starts
        outputs = (forward.outputs[d],) if heads else forward.outputs
        for names, output in zip(anatomy.outputs, outputs, strict=True):
            for column in names:
                columns.setdefault(column, []).append(output[at])
        logits = draft.logits[0][b * k + d] if anatomy.block else draft.logits[d][b]
        chance = logits.softmax(-1)
        columns.setdefault("top1", []).append(chance.max())
        columns.setdefault("entropy", []).append(torch.special.entr(chance).sum())
        columns.setdefault("attention_output", []).append(
            torch.tensor(forward.output_errors.get(at, 0.0), dtype=torch.float64)
        )
        own = p + anatomy.lead + d
        distances.append(
            [_distances(layer[at], p + anatomy.lead, own, edges) for layer in forward.weights]
        )
        masses.append(
            [
                _classes(layer[at], p + anatomy.lead, row["prompt_tokens"])
                for layer in forward.weights
            ]
        )
    found = {
        column: torch.stack([_rms(x) if column.endswith("rms") else x for x in values])
        for column, values in columns.items()
    }
    if masses and masses[0]:
        whole = torch.tensor(masses, dtype=torch.float64)  # [k, layers, 5]
        hidden = whole[..., 0] < 0
        whole[..., 0][hidden] = torch.nan
        classes = CLASSES if anatomy.bias else CLASSES[:-1]
        found |= {column: whole[..., i].flatten() for i, column in enumerate(classes)}
        if edges and row[DISTANCE_MASS] is not None:
            found[DISTANCE_MASS] = torch.tensor(distances, dtype=torch.float64).flatten()
    return found


def _classes(weights: torch.Tensor, last: int, prompt_tokens: int) -> list[float]:
    """Return means over heads of one row; -1 for a sink that is not visible."""
    mean = weights.mean(0)
    slots, bias = mean[:-1], float(mean[-1])
    edges = (0, SINK_SLOTS, max(SINK_SLOTS, min(prompt_tokens, last + 1)), last + 1, len(slots))
    parts = [float(slots[a:b].sum()) for a, b in itertools.pairwise(edges)]
    if not (slots[:SINK_SLOTS] != 0).any():
        parts[0] = -1.0
    return [*parts, bias]


def _distances(weights: torch.Tensor, last: int, own: int, edges: tuple[int, ...]) -> list[float]:
    """Return means over heads of one row by the distance from its own slot."""
    found = [0.0] * len(edges)
    for slot, weight in enumerate(weights.mean(0)[:-1].tolist()):
        if edges and slot <= own and (slot >= SINK_SLOTS or slot > last):
            found[sum(edge <= own - slot for edge in edges) - 1] += weight
    return found


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x.double().square().mean().sqrt()


def _error(got: Any, want: torch.Tensor, *, relative: bool) -> float:
    if got is None:  # a column of which nothing applies is left out
        return 0.0 if want.isnan().all() else float("inf")
    a = torch.tensor(got).double()
    if a.shape != want.shape or not torch.equal(a.isnan(), want.isnan()):
        return float("inf")
    error = (a - want).abs() / (want.abs() if relative else 1.0)
    known = error[~error.isnan()]
    return float(known.max()) if len(known) else 0.0

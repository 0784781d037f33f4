"""The hooks on a drafter: each figure against one computed from what went by, and a clean exit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from driftscope.errors import ProbeError
from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes.capture import Capture
from driftscope_probes.drafter import Drafter
from driftscope_probes.guard import Guard
from driftscope_probes.reference.chain import rms
from driftscope_probes.taps import Taps

FLAGS = {"eagle3": {}, "eagle31": {"fc_norm": True, "norm_output": True}}
MASSES = ("sink_mass", "prompt_mass", "generated_mass", "self_mass")


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    writer = TraceWriter(tmp_path / "run", source="worker0-1")
    yield Guard(writer)
    writer.close()
    (status,) = read_statuses(tmp_path / "run")
    assert status.errors == {}


@pytest.fixture(params=sorted(FLAGS))
def drafter(request: pytest.FixtureRequest, make_drafter: Callable[..., Drafter]) -> Drafter:
    return make_drafter(**FLAGS[request.param])


def _record(taps: Taps, batch: Any) -> dict[str, np.ndarray]:
    taps.start(Capture(batch.view))
    batch.draft()
    columns = taps.capture.to_host().arrays()
    taps.stop()
    return columns


def _close(found: np.ndarray, wanted: list[torch.Tensor]) -> None:
    """`found` [B, depths] against one [B] tensor per depth."""
    np.testing.assert_allclose(found, torch.stack(wanted, dim=1).numpy(), rtol=1e-5)


def test_every_figure_is_what_went_by(
    drafter: Drafter, guard: Guard, make_batch: Callable[..., Any]
) -> None:
    taps, batch = Taps(drafter, guard, sink_tokens=2), make_batch(drafter)
    taps.attach()
    found = _record(taps, batch)
    for name in ("in", "postnorm", "fed"):
        _close(found[f"{name}_rms"], [rms(seen[name]) for seen in batch.seen])
    probabilities = [seen["logits"].double().softmax(-1) for seen in batch.seen]
    _close(found["top1"], [p.amax(-1) for p in probabilities])
    _close(found["entropy"], [-(p * p.log()).sum(-1) for p in probabilities])
    at_p = batch.aux[batch.view.rows].chunk(3, dim=-1)
    _close(found["aux_rms"], [rms(state) for state in at_p])
    _close(found["fc_rms"], [rms(batch.seen[0]["in"])])


def test_the_residual_before_the_final_norm(
    make_drafter: Callable[..., Drafter], guard: Guard, make_batch: Callable[..., Any]
) -> None:
    drafter = make_drafter()
    taps, batch = Taps(drafter, guard, sink_tokens=2), make_batch(drafter)
    taps.attach()
    found = _record(taps, batch)
    # Without norm_output that residual is what is fed on.
    np.testing.assert_array_equal(found["prenorm_rms"], found["fed_rms"])
    assert "aux_norm_rms" not in found

    drafter = make_drafter(fc_norm=True, norm_output=True)
    taps, batch = Taps(drafter, guard, sink_tokens=2), make_batch(drafter)
    taps.attach()
    found = _record(taps, batch)
    np.testing.assert_array_equal(found["postnorm_rms"], found["fed_rms"])
    assert (np.abs(found["prenorm_rms"] - found["fed_rms"]) > 1e-3).all()
    parts = batch.aux.chunk(3, dim=-1)
    wanted = [norm(x) for norm, x in zip(drafter.model.model.fc_norm, parts, strict=True)]
    _close(found["aux_norm_rms"], [rms(x)[batch.view.rows] for x in wanted])


@pytest.mark.parametrize("fc_norm", [False, True])
def test_captured_layers_are_measured_as_fc_reads_them(
    make_drafter: Callable[..., Drafter], guard: Guard, make_batch: Callable[..., Any],
    fc_norm: bool,
) -> None:  # fmt: skip
    drafter = make_drafter(norm_before_fc=True, fc_norm=fc_norm)
    taps, batch = Taps(drafter, guard, sink_tokens=2), make_batch(drafter)
    taps.attach()
    found = _record(taps, batch)
    inner = drafter.model.model
    parts = inner.input_norm(batch.aux).chunk(3, dim=-1)
    if fc_norm:
        parts = [norm(x) for norm, x in zip(inner.fc_norm, parts, strict=True)]
    _close(found["aux_norm_rms"], [rms(x)[batch.view.rows] for x in parts])


def test_masses_are_of_the_right_slots(
    drafter: Drafter, guard: Guard, make_batch: Callable[..., Any]
) -> None:
    taps, batch = Taps(drafter, guard, sink_tokens=2), make_batch(drafter)
    taps.attach()
    found = _record(taps, batch)
    masses = np.stack([found[name] for name in MASSES])
    assert masses.shape == (4, 2, batch.k)
    np.testing.assert_allclose(masses.sum(0), 1.0, rtol=1e-5)
    layer, cache = drafter.model.model, drafter.model.cache
    for b, (position, prompt) in enumerate(zip(batch.positions, (6, 5), strict=True)):
        for d, seen in enumerate(batch.seen):
            query = layer.qkv(seen["in"])[b, :16].view(4, 4)
            visible = cache[b, :, :, : position + 1 + d].repeat_interleave(2, dim=0)
            scores = torch.einsum("hs,hsl->hl", query, visible) * 0.5
            weights = scores.softmax(-1).mean(0)
            edges = (0, 2, min(prompt, position + 1), position + 1, position + 1 + d)
            wanted = [weights[i:j].sum().item() for i, j in itertools.pairwise(edges)]
            np.testing.assert_allclose(masses[:, b, d], wanted, atol=1e-5)


def test_the_draft_is_the_same_with_hooks_and_without(
    drafter: Drafter, guard: Guard, make_batch: Callable[..., Any]
) -> None:
    without = make_batch(drafter).draft()
    taps, batch = Taps(drafter, guard, sink_tokens=2), make_batch(drafter)
    taps.attach()
    assert torch.equal(batch.draft(), without), "between recorded steps"
    taps.start(Capture(batch.view))
    assert torch.equal(make_batch(drafter).draft(), without), "while recording"


def _attributes(model: torch.nn.Module) -> list[Any]:
    """What may be changed on a drafter: attributes and hooks of every module, and its attention."""
    found: list[Any] = []
    for name, module in model.named_modules():
        own = {k: v for k, v in vars(module).items() if not k.startswith("_parameters")}
        found.append((name, sorted(own), dict(own.get("_forward_hooks", {})),
                      dict(own.get("_forward_pre_hooks", {})),
                      own.get("_forward_method")))  # fmt: skip
    return [*found, sorted(vars(model.model.attention.impl))]  # type: ignore[union-attr, arg-type]


def test_detach_leaves_the_drafter_as_it_was(
    drafter: Drafter, guard: Guard, make_batch: Callable[..., Any]
) -> None:
    before = _attributes(drafter.model)
    taps, batch = Taps(drafter, guard, sink_tokens=2), make_batch(drafter)
    taps.attach()
    assert _attributes(drafter.model) != before
    taps.detach()
    assert _attributes(drafter.model) == before
    taps.start(Capture(batch.view))
    batch.draft()
    assert taps.capture.depth == 0
    taps.detach()
    taps.attach()
    assert set(_record(taps, batch)) >= {*MASSES, "in_rms", "prenorm_rms", "top1"}


def test_a_profiling_pass_without_attention_metadata_is_survived(
    drafter: Drafter, guard: Guard
) -> None:
    taps = Taps(drafter, guard, sink_tokens=2)
    taps.attach()
    out, _ = drafter.model(hidden_states=torch.ones(4, 16), meta=None)
    assert out.shape == (4, 16)


def test_an_unsupported_backend_is_refused_before_any_hook(drafter: Drafter, guard: Guard) -> None:
    layer = SimpleNamespace(attn_backend=SimpleNamespace(get_name=lambda: "FLASH_ATTN"))
    before = _attributes(drafter.model)
    with pytest.raises(ProbeError, match="FLASH_ATTN is not supported"):
        Taps(replace(drafter, attention={"attn": layer}), guard, sink_tokens=2).attach()
    assert _attributes(drafter.model) == before

"""From a step's columns to its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from driftscope.trace.records import DraftRow, StepRow
from driftscope.trace.schema import to_batch
from driftscope_probes import capture as capture_module
from driftscope_probes.capture import Capture, Encoder, Finished, HostCopy
from driftscope_probes.view import DraftStep

K, LAYERS = 3, 2


def _step(*prefilling: bool) -> DraftStep:
    batch = len(prefilling)
    return DraftStep(
        requests=tuple(f"r{b}" for b in range(batch)),
        prompt_tokens=np.arange(10, 10 + batch),
        rows=torch.arange(batch) * 2,
        position=torch.arange(20, 20 + batch),
        prefilling=np.array(prefilling),
        k=K,
    )


def _finished(step: DraftStep | None, *, recorded: bool = True, drafts: bool = False) -> Finished:
    batch = len(step.requests) if step else 0
    columns = None
    if step is not None and recorded:
        taken = Capture(step)
        taken.add("fc_rms", torch.arange(batch) + 0.5)
        for layer in range(2):
            taken.add("aux_rms", torch.full((batch,), float(layer)))
        for depth in range(1, K + 1):
            for layer in range(LAYERS):
                taken.add("sink_mass", torch.arange(batch) + depth + layer / 10)
            taken.add("in_rms", torch.arange(batch) * 100.0 + depth)
        columns = taken.to_host()
    return Finished(
        number=4,
        time_s=1.5,
        step=step,
        prefilling=None if step is None else step.prefilling,  # type: ignore[arg-type]
        position=HostCopy(step.position) if step and recorded else None,
        columns=columns,
        drafts=HostCopy(torch.arange(batch * K).view(batch, K)) if drafts else None,
        requests=batch,
        step_s=0.5,
        draft_s=0.25,
        probe_s=0.125,
    )


def _chains(encoder: Encoder, done: Finished) -> list[DraftRow]:
    return [row for row in encoder.rows(done) if isinstance(row, DraftRow)]


def test_a_step_comes_before_its_chains() -> None:
    step, *chains = Encoder(LAYERS).rows(_finished(_step(False, False)))
    assert step == StepRow(
        step=4, time_s=1.5, requests=2, chains=2, k=K, recorded=True, step_s=0.5, draft_s=0.25,
        probe_s=0.125,
    )  # fmt: skip
    assert [type(chain) for chain in chains] == [DraftRow, DraftRow]


def test_a_chain_has_its_own_requests_columns() -> None:
    first, second = _chains(Encoder(LAYERS), _finished(_step(False, False)))
    assert (first.request, second.request) == ("r0", "r1")
    assert (second.position, second.prompt_tokens) == (21, 11)
    assert (second.step, second.batch, second.k, second.layers) == (4, 2, K, LAYERS)
    assert second.in_rms == [101.0, 102.0, 103.0]
    assert second.sink_mass == pytest.approx([2.0, 2.1, 3.0, 3.1, 4.0, 4.1]), "depth-major"
    assert second.aux_rms == [0.0, 1.0]
    assert (first.fc_rms, second.fc_rms) == (0.5, 1.5)


def test_what_the_drafter_does_not_have_is_none() -> None:
    (chain,) = _chains(Encoder(LAYERS), _finished(_step(False)))
    for name in ("null_mass", "aux_norm_rms", "prompt_mass", "entropy", "token_ids"):
        assert getattr(chain, name) is None


def test_token_ids_only_when_asked_for() -> None:
    (_, chain) = _chains(Encoder(LAYERS), _finished(_step(False, False), drafts=True))
    assert chain.token_ids == [3, 4, 5]


def test_prefilling_requests_are_dropped() -> None:
    rows = list(Encoder(LAYERS).rows(_finished(_step(True, False, True))))
    assert [row.request for row in rows if isinstance(row, DraftRow)] == ["r1"]
    assert isinstance(rows[0], StepRow)
    assert (rows[0].requests, rows[0].chains) == (3, 1)
    assert isinstance(rows[1], DraftRow)
    assert rows[1].batch == 3


def test_a_request_seen_prefilling_is_marked_as_chunked_for_good() -> None:
    encoder = Encoder(LAYERS)
    assert [c.chunked_prefill for c in _chains(encoder, _finished(_step(True, False)))] == [False]
    for _ in range(2):
        later = _chains(encoder, _finished(_step(False, False)))
        assert [chain.chunked_prefill for chain in later] == [True, False]


def test_a_step_that_is_not_recorded_still_tells_chunked_requests() -> None:
    encoder = Encoder(LAYERS)
    (step,) = encoder.rows(_finished(_step(True, False), recorded=False))
    assert isinstance(step, StepRow)
    assert (step.recorded, step.chains, step.k) == (False, 1, K)
    assert [c.chunked_prefill for c in _chains(encoder, _finished(_step(False, False)))] == [
        True,
        False,
    ]


def test_memory_of_chunked_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "REMEMBERED_REQUESTS", 1)
    encoder = Encoder(LAYERS)
    list(encoder.rows(_finished(_step(True, True))))
    later = _chains(encoder, _finished(_step(False, False)))
    assert [chain.chunked_prefill for chain in later] == [False, True]


def test_a_step_in_which_the_drafter_did_not_run() -> None:
    (step,) = Encoder(LAYERS).rows(_finished(None))
    assert isinstance(step, StepRow)
    assert (step.chains, step.k, step.recorded) == (0, 0, False)


def test_a_mask_that_is_on_its_way_from_the_device() -> None:
    done = _finished(_step(True, False))
    done = replace(done, prefilling=HostCopy(torch.tensor([True, False])))
    assert [chain.request for chain in _chains(Encoder(LAYERS), done)] == ["r1"]


def test_rows_of_the_forward_at_depth_1_and_after() -> None:
    taken = Capture(_step(False, False))
    for depth, rows in ((0, [0, 2]), (1, [0, 2])):
        taken.depth = depth
        assert isinstance(taken.rows, torch.Tensor)
        assert taken.rows.tolist() == rows
    taken.depth = 2
    assert taken.rows == slice(2)


def test_chains_fit_their_record() -> None:
    chains = _chains(Encoder(LAYERS), _finished(_step(False, True, False), drafts=True))
    assert to_batch("draft", chains).num_rows == 2

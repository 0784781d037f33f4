"""The reference drafts of latent attention what real vLLM drafts, from transformers' states."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verification.truth import MASSES, worst
from verification.zoo.engines import run_engines
from verification.zoo.kind import prompts

from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.reference.chain import Chain, draft_chains
from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.trial.drafting import as_served
from driftscope.trace.reader import read_trace

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.nightly]
KIND, RUNNERS = "eagle3_mla", ("v1", "v2")
TIMEOUT_S = 900
"""Time for one engine: without a GPU the V2 runner interprets its kernels."""
NORMS = "in_rms", "prenorm_rms", "postnorm_rms", "fed_rms"
CLOSE = 5e-5
"""Tolerance of masses, absolute, and of RMS, relative. All compute in float32, and transformers has
another epsilon in the norms inside the target's attention."""


@pytest.fixture(scope="module", params=RUNNERS)
def pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[dict[str, Any], Chain, int]]:
    """Recorded row and reference of each chain that the answers contain."""
    from transformers import AutoModelForCausalLM

    folder: Path = tmp_path_factory.mktemp("latent")
    engine = KIND, request.param
    result = run_engines([engine], folder, TIMEOUT_S)[engine]
    assert "error" not in result, result["error"]
    models = folder / "models" / KIND
    target = AutoModelForCausalLM.from_pretrained(models / "target", dtype=torch.float32).eval()
    layers = target.config.num_hidden_layers
    drafter = as_served(open_drafter(str(models / "drafter")), layers).build("cpu")
    rows = read_trace(folder / f"{'-'.join(engine)}-run").draft.to_pylist()
    found = []
    for at, (prompt, output) in enumerate(zip(prompts(), result["tokens"], strict=True)):
        tokens = [*prompt, *output]
        mine = [
            row
            for row in rows
            if row["request"].partition("-")[0] == str(at) and row["position"] < len(tokens) - 1
        ]
        chains = _drafted(target, drafter, tokens, len(prompt), mine)
        found += [(row, chain, 0) for row, chain in zip(mine, chains, strict=True)]
    return found


@torch.no_grad()
def _drafted(
    target: Any, drafter: Drafter, tokens: list[int], prompt_tokens: int, rows: list[dict[str, Any]]
) -> list[Chain]:
    ids, anchors = torch.tensor([tokens]), torch.tensor([row["position"] for row in rows])
    hidden = target(ids[:, :-1], output_hidden_states=True).hidden_states
    aux = tuple(hidden[layer] for layer in drafter.config.aux_layers)
    embeds: Any = SimpleNamespace(embed=target.get_input_embeddings())
    return draft_chains(
        embeds,
        drafter,
        anchors=anchors,
        next_ids=ids[0, anchors + 1],
        aux=tuple(layer[:, anchors] for layer in aux),
        context=drafter.context(drafter.embed(ids[:, 1:], embeds), drafter.fuse(aux)),
        prompt_tokens=prompt_tokens,
        k=rows[0]["k"],
        n_sink=DEFAULT_N_SINK,
    )


def test_every_token_is_drafted_alike(pairs: list[tuple[dict[str, Any], Chain, int]]) -> None:
    assert len(pairs) > 50
    assert [row["token_ids"] for row, _, _ in pairs] == [list(c.token_ids) for _, c, _ in pairs]


def test_masses_and_states_are_alike(pairs: list[tuple[dict[str, Any], Chain, int]]) -> None:
    assert worst(pairs, MASSES, relative=False) < CLOSE
    assert worst(pairs, NORMS, relative=True) < CLOSE

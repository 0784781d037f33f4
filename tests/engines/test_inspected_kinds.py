"""Drafters of other kinds: what the inspection promises is what real vLLM accepts and records."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.checkpoints import (
    TARGET,
    added,
    changed,
    eagle1_drafter,
    fields,
    mtp_checkpoint,
    stored,
)
from support.engine_process.job import PROMPTS, Job, Outcome, run_jobs
from support.inspected_prompts import ENDED, inspected_by_command, served_length
from support.reference_engine import Chain, draft_chains
from typer.testing import CliRunner
from verification.truth import MASSES, RECORD, V2, compare, worst
from verification.zoo.engines import run_engines
from verification.zoo.kind import prompts

from driftscope.cli.app import app
from driftscope.errors import EXIT_GATE_FAILED, EXIT_OK
from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import ReferenceDrafter
from driftscope.inspect.trial.drafting import as_served
from driftscope.trace.reader import read_trace
from engines.test_truth import assert_true

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.nightly]
RUNNERS = "v1", "v2"
CLOSE = 1e-3
"""Largest difference of acceptance lengths over the same rounds: the document is rounded."""


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eagle1_drafter(tmp_path_factory.mktemp("eagle1") / "drafter")


def _served(folder: Path, **models: str) -> dict[str, Outcome]:
    one_batch: dict[str, Any] = {name: V2[name] for name in ("sizes", "llm")}
    jobs = {
        runner: Job(**models, runner=runner, probe=RECORD, sampling=ENDED, **one_batch)
        for runner in RUNNERS
    }
    return run_jobs(jobs, folder)


@pytest.fixture(scope="module")
def served(drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return _served(tmp_path_factory.mktemp("served"), drafter=str(drafter), method="eagle")


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_measured_quantity_equals_the_reference(
    served: dict[str, Outcome], runner: str
) -> None:
    assert_true(compare(served[runner]))


def _as_promised(trial: dict[str, Any], outcome: Outcome) -> None:
    length = trial["acceptance"]["mean_length"]
    assert trial["prompts"] == PROMPTS
    assert length > 1.5, "otherwise the test shows little"
    assert served_length(outcome) == pytest.approx(length, abs=CLOSE)


@pytest.mark.parametrize("runner", RUNNERS)
def test_vllm_accepts_what_the_inspection_promises(
    drafter: Path, served: dict[str, Outcome], runner: str, tmp_path: Path
) -> None:
    document = inspected_by_command(drafter, TARGET, tmp_path)
    assert document["exit_code"] == EXIT_OK
    _as_promised(document["trial"], served[runner])


def test_a_head_of_its_own_is_refused_by_vllm_and_named_by_the_inspection(
    drafter: Path, tmp_path: Path
) -> None:
    head = added("lm_head.weight", stored("target")["model.embed_tokens.weight"].float())
    own = changed(tmp_path / "own", drafter, weights=head)
    job = Job(drafter=str(own), method="eagle", requests=2)
    with pytest.raises(RuntimeError, match="no module or parameter named 'lm_head'"):
        run_jobs({"own": job}, tmp_path / "engines")
    found = CliRunner().invoke(app, ["inspect", str(own), "--json"])
    assert found.exit_code == EXIT_GATE_FAILED
    (result,) = (load for load in json.loads(found.stdout)["results"] if load["level"] == "error")
    assert result["id"] == "unexpected_tensor"
    assert "lm_head.weight" in result["found"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mtp_checkpoint(tmp_path_factory.mktemp("mtp") / "mimo", normed=False)


@pytest.fixture(scope="module")
def served_head(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    models = {"target": str(checkpoint), "drafter": str(checkpoint)}
    return _served(tmp_path_factory.mktemp("served"), **models, method="mtp")


@pytest.mark.parametrize("runner", RUNNERS)
def test_vllm_accepts_what_the_inspection_promises_of_a_head(
    checkpoint: Path, served_head: dict[str, Outcome], runner: str, tmp_path: Path
) -> None:
    """vLLM knows the model type of MiMo from the repository's code only, and for it transformers
    takes the tokenizer as it is, not as Qwen2's."""
    published = changed(tmp_path / "published", checkpoint, config=fields(model_type="mimo"))
    trial = inspected_by_command(published, published, tmp_path)["trial"]
    _as_promised(trial, served_head[runner])


KIND = "eagle3_mla"
TIMEOUT_S = 900
"""Time for one engine: without a GPU the V2 runner interprets its kernels."""
NORMS = "in_rms", "prenorm_rms", "postnorm_rms", "fed_rms"
LATENT_CLOSE = 5e-5
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
    target: Any,
    drafter: ReferenceDrafter,
    tokens: list[int],
    prompt_tokens: int,
    rows: list[dict[str, Any]],
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
    assert worst(pairs, MASSES, relative=False) < LATENT_CLOSE
    assert worst(pairs, NORMS, relative=True) < LATENT_CLOSE

"""vLLM and SGLang agree on one drafter chain by chain, and `compare` says so; it names a shift of
the captured layers between them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.command import run_command
from support.sglang_process.job import installed, shifted_drafter
from verification.sglang.two_engines import REQUESTS, in_sglang, in_vllm

from driftscope.trace.reader import read_trace

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not installed(), reason="`make sglang` builds SGLang's environment"),
    pytest.mark.nightly,
]
TOLERANCE = 1e-4
DRAFTERS = ("eagle3", "eagle31")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("two-engines")
    return made


def compared(vllm: Path, sglang: Path) -> dict[str, Any]:
    """Return the document of `driftscope compare --json`."""
    done = run_command("compare", vllm, sglang, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def chains(run: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the recorded chains by prompt and position."""
    trace = read_trace(run)
    prompts = {row["request"]: row["prompt_digest"] for row in trace.request.to_pylist()}
    return {(prompts[row["request"]], row["position"]): row for row in trace.draft.to_pylist()}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_both_engines_draft_the_same(folder: Path, drafter: str) -> None:
    vllm, sglang = (
        in_vllm(drafter, folder / f"vllm-{drafter}"),
        in_sglang(drafter, folder / f"sglang-{drafter}"),
    )
    assert vllm.tokens() == sglang.tokens()
    ours, theirs = chains(vllm.run), chains(sglang.run)
    both = ours.keys() & theirs.keys()
    assert len(both) > 10 * REQUESTS
    for key in both:
        a, b = ours[key], theirs[key]
        assert a["token_ids"] == b["token_ids"]
        for name in ("sink_mass", "prompt_mass", "generated_mass", "self_mass"):
            assert a[name] == pytest.approx(b[name], abs=TOLERANCE)
        for name in ("prenorm_rms", "fed_rms", "aux_rms"):
            assert a[name] == pytest.approx(b[name], rel=TOLERANCE)
    document = compared(vllm.run, sglang.run)
    assert "differ in their runner (vllm v1 against sglang eagle v2)" in document["warning"]


def test_a_shift_of_the_captured_layers_is_named(folder: Path) -> None:
    """One config in both engines: SGLang adds 1 to its numbers, vLLM does not."""
    same = shifted_drafter("eagle3", folder)
    vllm = in_vllm(str(same), folder / "shifted")
    sglang = folder / "sglang-eagle3" / "run"
    if not sglang.exists():
        sglang = in_sglang("eagle3", folder / "sglang-eagle3").run
    warning = compared(vllm.run, sglang)["warning"]
    assert "captured layers (1, 2, 4 against 2, 3, 5)" in warning

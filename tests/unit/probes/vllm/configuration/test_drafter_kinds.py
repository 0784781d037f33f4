"""The list of kinds: what is found in it, what is not, and that docs/drafters.md shows it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from driftscope.errors import ProbeError
from driftscope.trace.manifest import BY_DEPTH, BY_QUERY
from driftscope_probes.vllm import support
from driftscope_probes.vllm.support import EAGLE3, KINDS, kind_for

PAGE = Path(__file__).parents[5] / "docs" / "drafters.md"


def _speculation(method: str, **more: object) -> Any:
    return SimpleNamespace(method=method, **more)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_is_found_by_what_vllm_loads(kind: support.Kind) -> None:
    for method in kind.methods:
        for drafter in kind.drafters or ("Anything",):
            asked = _speculation(method, parallel_drafting=kind.parallel)
            assert kind_for(asked, drafter, modules=kind.modules) is kind


@pytest.mark.parametrize(
    ("speculation", "drafter", "supported"),
    [
        (_speculation("eagle3"), "Eagle3Unheard", "Eagle3LlamaForCausalLM"),
        (_speculation("eagle3", parallel_drafting=True), "Eagle3Qwen3ForCausalLM", "Eagle3Llama"),
        (_speculation("mtp"), "Gemma4MTP", "DeepSeekMTP"),
        (_speculation("draft_model", parallel_drafting=True), "LlamaForCausalLM", "none"),
        (_speculation("dflash"), "DFlashLagunaForCausalLM", "DFlashQwen3ForCausalLM"),
    ],
)
def test_what_is_not_in_the_list_is_refused(speculation: Any, drafter: str, supported: str) -> None:
    with pytest.raises(ProbeError, match=f"drafter {drafter} of method") as caught:
        kind_for(speculation, drafter)
    assert supported in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dflash_is_always_parallel() -> None:
    asked = _speculation("dflash", parallel_drafting=True)
    assert kind_for(asked, "DFlashQwen3ForCausalLM").query_kind == BY_QUERY
    assert EAGLE3.query_kind == BY_DEPTH


def test_nothing_is_claimed_of_a_drafter_without_a_model() -> None:
    for kind in KINDS:
        if not kind.model:
            assert kind.recorded == ("acceptance", "timing")
        assert ("masses" in kind.recorded) == (kind.model and kind.attention)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_page_has_the_kind(kind: support.Kind) -> None:
    classes = ", ".join(f"`{name}`" for name in kind.drafters)
    note = f"; {kind.note}" if kind.note else ""
    cells = (
        f"{kind.name} (`{'`, `'.join(kind.methods)}`)",
        classes or ("any" if kind.model else "none"),
        ", ".join(kind.recorded) + note,
        kind.v1,
        kind.v2,
    )
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8").splitlines()

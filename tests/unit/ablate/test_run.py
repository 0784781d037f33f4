"""Tokens that a draft vocabulary lacks, counted in text whose regions are plain to see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import TARGET, changed

from driftscope.ablate.run import (
    DraftVocabulary,
    MeasuredPrompt,
    ServedDrafter,
    WorkFile,
    served_dtype,
)
from driftscope.errors import UsageError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.drafting import as_served
from driftscope.inspect.trial.target import Passage
from driftscope_lab.trio import trio_path

PROMPT = "Q: "
CODE = "```py\nx{}\n```\n"


class Characters:
    """A tokenizer whose tokens are the characters of ASCII."""

    all_special_ids = (0,)

    def decode(self, ids: list[int], **_: bool) -> str:
        return "".join(map(chr, ids))

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [chr(each) for each in ids]


def _drafter(known: list[int] | None) -> Any:
    if known is None:
        return SimpleNamespace(config=SimpleNamespace(draft_vocab_size=None))
    d2t = torch.tensor(known) - torch.arange(len(known))
    return SimpleNamespace(
        config=SimpleNamespace(draft_vocab_size=len(known)),
        d2t=d2t,
        target_ids=lambda ids: ids + d2t[ids],
    )


def _passage(answer: str) -> Passage:
    ids = torch.tensor([ord(each) for each in PROMPT + answer])
    return Passage(key="a", ids=ids, prompt_tokens=len(PROMPT), states={})


def test_lacking_tokens_are_counted_in_their_region() -> None:
    known = [each for each in range(128) if chr(each) not in "{}"]
    counted = DraftVocabulary(_drafter(known), Characters()).count(_passage(f"see}} it\n{CODE}"))
    assert counted == {"prose": (8, 1), "code": (len(CODE), 2)}


def test_a_whole_vocabulary_lacks_nothing() -> None:
    counted = DraftVocabulary(_drafter(None), Characters()).count(_passage("a {} b"))
    assert counted == {"prose": (6, 0)}


def test_an_answer_without_text_is_template() -> None:
    class Silent(Characters):
        def decode(self, _ids: list[int], **_: bool) -> str:
            return ""

    counted = DraftVocabulary(_drafter(None), Silent()).count(_passage("ab"))
    assert counted == {"template": (2, 0)}


@pytest.mark.parametrize(
    ("targets", "drafters", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, {"torch_dtype": "float16"}, torch.bfloat16),
        ({"dtype": "torch.float16"}, {}, torch.float16),
        ({}, {"torch_dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "float32"}, {"torch_dtype": "bfloat16"}, None),
        ({}, {"torch_dtype": 16}, None),
    ],
)
def test_the_targets_config_decides_then_the_drafters(
    targets: dict[str, Any], drafters: dict[str, Any], dtype: torch.dtype | None
) -> None:
    target = replace(open_target(str(TARGET)), raw=targets, fields=targets)
    drafter = replace(open_drafter(str(trio_path() / "eagle3")), raw=drafters, fields=drafters)
    assert served_dtype(target, drafter) is dtype


def test_weights_states_and_embeddings_are_rounded_and_the_original_is_not(tmp_path: Path) -> None:
    folder = changed(tmp_path / "d", weights=lambda state: state.update(_third(state)))
    drafter = as_served(open_drafter(str(folder)), 4).build("cpu")

    class Target:
        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.full((*ids.shape, 4), 1 / 3)

    served = ServedDrafter(drafter, Target(), torch.bfloat16)
    third = torch.tensor(1 / 3).bfloat16()
    assert served.drafter.fc.weight.dtype is torch.bfloat16
    assert bool((served.drafter.fc.weight == third).all())
    assert float(drafter.fc.weight[0, 0]) == pytest.approx(1 / 3, abs=1e-7)
    assert bool((served.embed(torch.tensor([1])) == third).all())
    states = {1: torch.full((1, 2, 4), 1 / 3)}
    passage = Passage(key="a", ids=torch.arange(3), prompt_tokens=1, states=states)
    assert bool((served.cast(passage).states[1] == third).all())


def _third(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"fc.weight": torch.full(state["fc.weight"].shape, 1 / 3)}


REQUEST = {"drafter": ["d", None], "--k": 3}


def _measured(key: str, positions: int = 4) -> MeasuredPrompt:
    random = np.random.default_rng(len(key))
    return MeasuredPrompt(
        writing="as-served",
        key=key,
        matches={"as-served": random.random((positions, 3)) < 0.5},
        sums={"as-served": random.random((3, 7)) / 3},
        vocabulary={"prose": (40, 3)},
    )


def test_counts_come_back_to_the_last_digit_after_an_interruption(tmp_path: Path) -> None:
    path = tmp_path / "why.work"
    with pytest.raises(KeyboardInterrupt), WorkFile(path, REQUEST) as work:
        work.add(_measured("a"))
        work.add(_measured("empty", positions=0))
        raise KeyboardInterrupt
    kept = WorkFile(path, REQUEST)
    assert kept.prompts == 2
    for key, positions in (("a", 4), ("empty", 0)):
        mine, theirs = _measured(key, positions), kept.kept("as-served", key)
        assert theirs is not None and theirs.positions == positions
        assert np.array_equal(mine.matches["as-served"], theirs.matches["as-served"])
        assert theirs.matches["as-served"].shape == (positions, 3)
        assert np.array_equal(mine.sums["as-served"], theirs.sums["as-served"])
        assert theirs.vocabulary == {"prose": (40, 3)}
    assert kept.kept("template", "a") is None


def test_nothing_measured_leaves_no_file(tmp_path: Path) -> None:
    with WorkFile(tmp_path / "w", REQUEST):
        pass
    assert not (tmp_path / "w").exists()


def test_the_file_of_another_request_is_refused_with_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "why.work"
    with WorkFile(path, REQUEST) as work:
        work.add(_measured("a"))
    with pytest.raises(UsageError, match=r"why\.work: .* another --k; .*--output"):
        WorkFile(path, {**REQUEST, "--k": 4})


@pytest.mark.parametrize(
    "content", ["", "[]", '{"kind": "report"}', '{"kind": "ablation_work", "request": {}}']
)
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "why.work"
    path.write_text(content)
    with pytest.raises(UsageError, match="is no work file of ablate"):
        WorkFile(path, REQUEST)


def test_a_damaged_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "why.work"
    with WorkFile(path, REQUEST) as work:
        work.add(_measured("a"))
    content = json.loads(path.read_text())
    content["measured"][0]["matches"]["as-served"].append("0")
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="is no work file of ablate"):
        WorkFile(path, REQUEST)

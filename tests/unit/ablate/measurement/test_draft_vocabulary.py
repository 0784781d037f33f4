"""Tokens that a draft vocabulary lacks, counted in text whose regions are plain to see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from driftscope.ablate.run import DraftVocabulary
from driftscope.inspect.trial.target import Passage

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

"""Regions of token ids, with real tokenizers."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from support.answers import answers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from driftscope.regions.answer_regions import AnswerRegions, answer_regions
from driftscope.regions.text_regions import text_regions
from driftscope.regions.token_texts import TokenTexts
from driftscope.vocabulary import Language, Region

SPECIAL = ("<s>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def trained(kind: str) -> Tokenizer:
    """Return a tokenizer trained on the written answers."""
    texts = ["".join(piece for piece, _ in pieces) for pieces in answers()]
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        alphabet = sorted(set("".join(texts)))
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*SPECIAL, *MARKS], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Plain:
    """The methods of a transformers tokenizer that the recorder uses."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.all_special_ids = [tokenizer.token_to_id(each) for each in SPECIAL]
        self.added_tokens_decoder = {tokenizer.token_to_id(each): _Added(each) for each in MARKS}

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: list[int]) -> list[Any]:
        return [self._tokenizer.id_to_token(each) for each in ids]


class _Added(SimpleNamespace):
    special = False

    def __init__(self, text: str) -> None:
        super().__init__(text=text)

    def __str__(self) -> str:
        return str(self.text)


@pytest.fixture(scope="module", params=["byte-level", "metaspace"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(request.param)


def by_token(regions: AnswerRegions, tokens: int) -> list[tuple[str, str]]:
    """Return the region and the language of each token."""
    ends = [*regions.starts[1:], tokens]
    columns = (regions.starts, ends, regions.codes, regions.languages)
    return [
        (Region.ALL[code], Language.ALL[language])
        for begin, end, code, language in zip(*columns, strict=True)
        for _ in range(begin, end)
    ]


def test_regions_and_languages_of_ids_agree_with_those_of_the_text(tokenizer: Tokenizer) -> None:
    """A token has the last region that begins in it or before it."""
    texts, same, tokens, number = TokenTexts(Plain(tokenizer)), 0, 0, 0
    named: Counter[str] = Counter()
    for pieces in answers():
        text = "".join(piece for piece, _ in pieces)
        encoded = tokenizer.encode(text)
        found = by_token(answer_regions(texts, [], encoded.ids), len(encoded.ids))
        marks = [o for o, t in zip(encoded.offsets, encoded.tokens, strict=True) if t in MARKS]
        starts = text_regions(text, marks)
        wanted = [
            [(each.region, each.language) for each in starts if each.start < max(end, 1)][-1]
            for _, end in encoded.offsets
        ]
        same += sum(a == b for a, b in zip(found, wanted, strict=True))
        tokens, number = tokens + len(wanted), number + 1
        named.update(language for _, language in found)
    assert number >= 200
    assert same / tokens >= 0.99, same / tokens
    assert set(named) == {"no fence", "python", "json/yaml", "other"}


def test_a_place_is_that_of_the_token_that_holds_the_first_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Done.\n```py\nx\n```\nDone.").ids
    regions = answer_regions(TokenTexts(Plain(tokenizer)), [], ids)
    texts = TokenTexts(Plain(tokenizer)).of(ids)
    assert [Region.ALL[code] for code in regions.codes] == ["prose", "code", "prose"]
    assert "".join(texts[: regions.starts[1]]).strip() == "Done."
    assert regions.boundaries == regions.starts[1:]


def test_a_prompt_that_opens_thinking_is_seen(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("Go on.<think>").ids
    ids = tokenizer.encode("So.</think>Yes.").ids
    regions = answer_regions(TokenTexts(Plain(tokenizer)), prompt, ids)
    assert [Region.ALL[code] for code in regions.codes] == ["thinking", "template", "prose"]


def test_an_empty_answer_has_empty_columns(tokenizer: Tokenizer) -> None:
    regions = answer_regions(TokenTexts(Plain(tokenizer)), [5], [])
    assert (regions.starts, regions.codes, regions.languages) == ([], [], [])
    assert (regions.boundaries, regions.copies) == ([], [])


def test_copied_passages_are_pairs_of_begin_and_end(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("The cache is filled once and read by every later step. ").ids
    start = tokenizer.encode("Größe").ids
    regions = answer_regions(TokenTexts(Plain(tokenizer)), prompt, [*start, *prompt])
    assert regions.copies == [len(start), len(start) + len(prompt)]

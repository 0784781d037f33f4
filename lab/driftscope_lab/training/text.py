"""Reads the text that a target wrote for its drafters: conversations as token ids, in batches.

A folder of text holds JSON Lines files; each line has `ids`, the tokens of a conversation in the
target's chat template, and `answers`, pairs (first, end) of the tokens that the target answered.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

HELD_OUT_EVERY = 16
"""Of so many files the last is held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedConversation:
    """Token ids of a conversation, and where its answers begin and end."""

    ids: tuple[int, ...]
    answers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Token ids [B, S], padded at the end, and which positions [B, S] count in the loss: those
    before a token of an answer. `group` is the batch's number, the same in every epoch."""

    ids: Tensor
    counted: Tensor
    group: int = 0


def read_conversations(folder: Path, *, held_out: bool = False) -> list[TokenizedConversation]:
    """Read the conversations of one side. Raises ValueError for a folder without any."""
    paths = sorted(folder.glob("*.jsonl"))
    last = HELD_OUT_EVERY - 1
    sided = [p for i, p in enumerate(paths) if (i % HELD_OUT_EVERY == last) == held_out]
    lines = (line for path in sided for line in path.read_text(encoding="utf-8").splitlines())
    found = [_conversation(line) for line in lines]
    if not found:
        side = f"held-out ones need {HELD_OUT_EVERY} files" if held_out else "it holds no text"
        raise ValueError(f"{folder}: no conversations in its *.jsonl files ({side})")
    return found


def _conversation(line: str) -> TokenizedConversation:
    record = json.loads(line)
    answers = tuple((int(first), int(end)) for first, end in record["answers"])
    return TokenizedConversation(ids=tuple(record["ids"]), answers=answers)


def draft_vocabulary(text: Sequence[TokenizedConversation], size: int) -> Tensor:
    """Return the `size` token ids [size] that answers use most, ascending; where they use fewer,
    the lowest of the others, which a tokenizer learnt first."""
    used = Counter(t for one in text for first, end in one.answers for t in one.ids[first:end])
    kept = [token for token, _ in used.most_common(size)]
    others = (token for token in range(size + len(kept)) if token not in used)
    kept += [token for token, _ in zip(others, range(size - len(kept)), strict=False)]
    return torch.tensor(sorted(kept))


def batches(text: Sequence[TokenizedConversation], tokens: int, seed: int) -> Iterator[Batch]:
    """Yield batches of about `tokens` tokens without end, each epoch in another order.

    Conversations of like length share a batch, so that little of it is padding.
    """
    groups = _groups(sorted(text, key=lambda one: len(one.ids)), tokens)
    generator = torch.Generator().manual_seed(seed)
    while True:
        for index in torch.randperm(len(groups), generator=generator).tolist():
            yield padded(groups[index], index)


def _groups(
    ordered: Sequence[TokenizedConversation], tokens: int
) -> list[list[TokenizedConversation]]:
    """Cut conversations that are ordered by length into groups of `tokens` with the padding."""
    groups: list[list[TokenizedConversation]] = [[]]
    for one in ordered:
        if groups[-1] and (len(groups[-1]) + 1) * len(one.ids) > tokens:
            groups.append([])
        groups[-1].append(one)
    return groups


def padded(group: Sequence[TokenizedConversation], number: int = 0) -> Batch:
    """Return conversations as one batch, in which their answers count."""
    length = max(len(one.ids) for one in group)
    ids = torch.zeros(len(group), length, dtype=torch.long)
    counted = torch.zeros(len(group), length, dtype=torch.bool)
    for row, one in enumerate(group):
        ids[row, : len(one.ids)] = torch.tensor(one.ids)
        for first, end in one.answers:
            counted[row, first - 1 : end - 1] = True
    return Batch(ids=ids, counted=counted, group=number)

"""Checks a drafter's vocabulary, its tokenizer and chat template.

`d2t[i]` is the DIFFERENCE of the target's id and the drafter's id i; `t2d` is a mask over the
target's ids. Both are EAGLE-3's convention, which vLLM, SGLang, speculators and SpecForge share.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.boundary.files import read_json, read_text
from driftscope.boundary.text import dumps
from driftscope.inspect.checkpoints import DrafterFiles
from driftscope.inspect.checks.result import (
    VLLM_LOADER,
    Certainty,
    CheckLevel,
    CheckResult,
    Inspected,
    error,
    note,
    warning,
)
from driftscope.inspect.checks.tensors import D2T, T2D

Ids = NDArray[np.int64]
_wrong_table = partial(error, rule=f"{VLLM_LOADER}: target id = draft id + d2t[draft id]")


def check_vocabulary_size(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a result if drafter and target have vocabularies of different sizes."""
    drafter, target = inspected.drafter, inspected.target
    if target is not None and drafter.vocab_size != target.vocab_size:
        yield error(
            id="other_vocabulary",
            title="the drafter was made for a target with another vocabulary",
            expected=f'"vocab_size": {target.vocab_size}, as the target\'s',
            rule="token ids of one vocabulary mean other words in another",
            found=f'"vocab_size": {drafter.vocab_size}',
            change="use a drafter of this target"
            if abs(drafter.vocab_size - target.vocab_size) > target.vocab_size // 100
            else f'"vocab_size": {target.vocab_size}, if only padding differs',
        )


def check_table(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield what is wrong with the table from the drafter's ids to the target's."""
    drafter = inspected.drafter
    table = drafter.tensors.get(D2T)
    smaller = drafter.draft_vocab_size != drafter.vocab_size
    if table is None:
        if smaller:
            yield _wrong_table(
                id="d2t_missing",
                title="the drafter has a vocabulary of its own, and no table d2t",
                expected=f"d2t of {drafter.draft_vocab_size} entries",
                found="none: each draft id would be taken for the target's",
                change="save d2t with the weights",
            )
        return
    if not smaller:
        yield _wrong_table(
            id="d2t_unused",
            title="d2t is there, and both vocabularies have the same size",
            expected='"draft_vocab_size" smaller than "vocab_size", or no d2t',
            found=f"{drafter.draft_vocab_size} of {drafter.vocab_size} tokens",
            change=f'"draft_vocab_size": {table.elements}, or drop d2t',
        )
    if table.is_float:
        yield _wrong_table(
            id="d2t_type",
            title="d2t holds floating-point numbers",
            expected="whole numbers, as torch.long",
            found=f"{table.dtype}, which rounds large differences",
            change="save d2t as it was in training, and convert weights without it",
        )
    if not table.is_readable or table.elements != drafter.draft_vocab_size:
        return  # the check of shapes reports the size
    yield from _entries(drafter, table.array().astype(np.int64).ravel())


def check_special_tokens(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield end tokens of the target that the drafter cannot draft."""
    table, target = _ids(inspected.drafter), inspected.target
    if table is None or target is None:
        return
    missing = [end_token for end_token in target.end_tokens if end_token not in set(table.tolist())]
    if missing:
        yield note(
            id="end_token_not_drafted",
            title="the drafter cannot draft a token that ends an answer",
            expected=f"the target's end tokens {list(target.end_tokens)} in d2t",
            rule="a token outside the drafter's vocabulary is never drafted",
            found=f"no {missing}: each answer's last draft is rejected",
        )


def _entries(drafter: DrafterFiles, table: Ids) -> Iterator[CheckResult]:
    ids, marked = table + np.arange(len(table)), _marked(drafter)
    ascending = len(table) > 1 and bool(np.all(np.diff(table) > 0))
    inside = int(table.min()) >= 0 and int(table.max()) < drafter.vocab_size
    if ascending and inside and int(ids.max()) - drafter.vocab_size >= len(table) // 2:
        yield _wrong_table(
            id="d2t_absolute",
            title="d2t holds the target's ids themselves, not the differences",
            expected="d2t[i] = target id - i",
            found=f"ascending ids from {table[0]} to {table[-1]}",
            change="subtract 0, 1, 2, ... from d2t",
            certainty=Certainty.LIKELY,
        )
    elif (
        not table.any()
        and drafter.draft_vocab_size < drafter.vocab_size
        and (marked is None or not np.array_equal(marked, ids))
    ):
        yield _wrong_table(
            id="d2t_zero",
            title="d2t is all zero: the draft ids are taken for the target's",
            expected="differences that lead to the most frequent tokens",
            found="zeros, as before loading",
            change="save d2t as it was in training; t2d, if it is right, has the same content",
            certainty=Certainty.LIKELY,
        )
    elif ids.min() < 0 or ids.max() >= drafter.vocab_size:
        yield _wrong_table(
            id="d2t_range",
            title="d2t leads outside the target's vocabulary",
            expected=f"target ids from 0 to {drafter.vocab_size - 1}",
            found=f"ids from {ids.min()} to {ids.max()}",
            change="save d2t as it was in training",
        )
    elif len(np.unique(ids)) != len(ids):
        yield _wrong_table(
            id="d2t_repeats",
            title="d2t leads to the same token from several draft ids",
            expected="each target id at most once",
            found=f"{len(ids) - len(np.unique(ids))} repeated target ids",
            change="save d2t as it was in training",
        )
    chosen = _marked(drafter)
    if chosen is not None and not np.array_equal(chosen, np.unique(ids)):
        yield _wrong_table(
            id="t2d_contradicts_d2t",
            title="t2d and d2t name different tokens",
            expected="t2d marks exactly the ids that d2t leads to",
            found=f"{len(np.setxor1d(chosen, ids))} tokens in one of them only",
            change="rebuild d2t from t2d, or the reverse; training used t2d",
            certainty=Certainty.LIKELY,
        )


def _marked(drafter: DrafterFiles) -> Ids | None:
    """Return the ids that t2d marks, ascending; None without a t2d that can be read."""
    stored = drafter.tensors.get(T2D)
    if stored is None or stored.elements != drafter.vocab_size or not stored.is_readable:
        return None
    return np.flatnonzero(stored.array().ravel())


def _ids(drafter: DrafterFiles) -> Ids | None:
    table = drafter.tensors.get(D2T)
    if table is None or table.is_float or not table.is_readable:
        return None
    return np.asarray(table.array().astype(np.int64).ravel() + np.arange(table.elements))


_TOKENIZER, _TEMPLATE, _SETTINGS = "tokenizer.json", "chat_template.jinja", "tokenizer_config.json"
_MOST_BYTES = 256 << 20
"""Bytes of a tokenizer's file; that of a vocabulary of 250,000 tokens has 30 MB."""


def check_tokenizer(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a tokenizer that differs from the target's. A drafter needs none."""
    if inspected.target is None:
        return
    (own, added), (targets, theirs) = (
        _model(checkpoint.folder) for checkpoint in (inspected.drafter, inspected.target)
    )
    moved = any(theirs.get(number, word) != word for number, word in added.items())
    if not own or not targets or (own == targets and not moved):
        return
    differs = own.get("vocab") != targets.get("vocab")
    yield CheckResult(
        id="tokenizer_differs",
        level=CheckLevel.ERROR if differs else CheckLevel.WARNING,
        title="the drafter's tokenizer is not the target's",
        expected="the target's tokenizer.json, or none",
        rule="drafter and target exchange token ids",
        found="another vocabulary"
        if differs
        else f"the same vocabulary, other {'added tokens' if moved else 'merges'}",
        change="use a drafter of this target",
        certainty=Certainty.LIKELY,
    )


def check_template(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a chat template that differs from the target's."""
    if inspected.target is None:
        return
    own, targets = (
        chat_template(checkpoint.folder) for checkpoint in (inspected.drafter, inspected.target)
    )
    if own and targets and own.strip() != targets.strip():
        yield warning(
            id="template_differs",
            title="the drafter was saved with another chat template than the target's",
            expected="the template that the target is served with",
            rule="a drafter knows the template that it was trained with",
            found="another template",
            change="serve with the drafter's template (--chat-template), or train with this one",
            certainty=Certainty.LIKELY,
        )


def _model(folder: Path) -> tuple[dict[str, Any], dict[int, str]]:
    """Return vocabulary and merges of a tokenizer, and its added tokens by id; both empty without
    one."""
    try:
        content = read_json(folder / _TOKENIZER, limit=_MOST_BYTES)
        added = {token["id"]: token["content"] for token in content.get("added_tokens") or ()}
        model = dict(content.get("model") or {})
        # Libraries write a merge as "a b" or as ["a", "b"].
        pairs = model.get("merges") or ()
        merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in pairs]
        return {"vocab": model["vocab"], "merges": merges}, added
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}, {}


def chat_template(folder: Path) -> str | None:
    """Return the chat template that a model was saved with; None if there is none."""
    try:
        return read_text(folder / _TEMPLATE)
    except (OSError, ValueError):
        pass
    try:
        template = read_json(folder / _SETTINGS).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None
    return template if isinstance(template, str) or template is None else dumps(template)

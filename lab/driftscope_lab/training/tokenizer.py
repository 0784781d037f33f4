"""A byte-level BPE of 1024 tokens, trained on the corpus and saved in Hugging Face's format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from driftscope_lab.trio import template

VOCAB_SIZE = 1024
MAX_LENGTH = 2048
NEWLINE = "\u010a"
"""Character that represents a line feed in the byte-level alphabet."""


def train_tokenizer(
    texts: Iterable[str], vocab_size: int = VOCAB_SIZE, more: Sequence[str] = ()
) -> Tokenizer:
    """Learn the merges; the template's special tokens get the ids 0..5, `more` of them the next."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*template.SPECIAL_TOKENS, *more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def newline_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of tokens that start with a line feed, at which text is cut."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return sorted(index for token, index in vocabulary.items() if token.startswith(NEWLINE))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that an OpenAI-compatible server needs next to the target's weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    ends = {"bos_token_id": 0, "eos_token_id": 4, "pad_token_id": 5}
    _write_json(folder / "generation_config.json", {"do_sample": False, **ends})


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": template.BOS,
        "eos_token": template.END,
        "pad_token": template.PAD,
        "chat_template": template.CHAT_TEMPLATE,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")

"""The special tokens and the chat template of the shipped models."""

from __future__ import annotations

from typing import Final

BOS: Final = "<s>"
SYSTEM: Final = "<|system|>"
USER: Final = "<|user|>"
ASSISTANT: Final = "<|assistant|>"
END: Final = "<|end|>"
PAD: Final = "<pad>"
SPECIAL_TOKENS: Final = (BOS, SYSTEM, USER, ASSISTANT, END, PAD)
"""Special tokens, whose ids are 0..5 in this order."""

CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message['role'] }}|>{% if message['role'] != 'assistant' %}{{ '\\n' }}{% endif %}"
    "{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Jinja template, as in `tokenizer_config.json`."""

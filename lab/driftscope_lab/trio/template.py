"""The chat template, and the plain-text rendering of the same conversation.

A model is trained on `chat`. `plain_text_roles` renders the conversation without the special
tokens: a template perturbation under which drafters have been observed to lose acceptance.
"""

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

SYSTEM_TEXT: Final = "You write Python library code."
OTHER_SYSTEM_TEXT: Final = "As an expert programmer, answer with source code only."

CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Jinja template, as in `tokenizer_config.json`; renders the same text as `chat`."""


def request(path: str) -> str:
    """Return the user's words before the code to be continued."""
    return f"Continue {path}:"


def chat(path: str, code: str) -> str:
    """Return the prompt as trained. `code` starts with a newline."""
    system = f"{SYSTEM}\n{SYSTEM_TEXT}{END}"
    return f"{BOS}{system}{USER}\n{request(path)}{code}{END}{ASSISTANT}"


def other_wording(path: str, code: str) -> str:
    """Return the chat template with other words for system and request."""
    system = f"{SYSTEM}\n{OTHER_SYSTEM_TEXT}{END}"
    return f"{BOS}{system}{USER}\nPlease complete the file {path}.{code}{END}{ASSISTANT}"


def no_system_turn(path: str, code: str) -> str:
    """Return the chat template without its system turn."""
    return f"{BOS}{USER}\n{request(path)}{code}{END}{ASSISTANT}"


def code_of(path: str, text: str) -> str:
    """Return the code in a text that `chat` made. Raises ValueError for any other text."""
    start, end = chat(path, "").split(f"{END}{ASSISTANT}")[0], f"{END}{ASSISTANT}"
    if not (text.startswith(start) and text.endswith(end)):
        raise ValueError(f"not a prompt of the chat template: {text[:60]!r}")
    return text[len(start) : -len(end)]


def plain_text_roles(path: str, code: str) -> str:
    """Return the prompt with its roles written out in plain text, after the usual first token."""
    return f"{BOS}System: {SYSTEM_TEXT}\n\nUser: {request(path)}{code}\n\nAssistant:"

"""Checks tokenizer, chat template and quantisation of drafter and target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from driftscope.boundary.files import read_json, read_text
from driftscope.boundary.strict_json import dumps
from driftscope.inspect.checks.check_result import Certainty, CheckResult, Inspected, Level

_TOKENIZER, _TEMPLATE, _SETTINGS = "tokenizer.json", "chat_template.jinja", "tokenizer_config.json"
_MOST_BYTES = 256 << 20
"""Bytes of a tokenizer's file; that of a vocabulary of 250,000 tokens has 30 MB."""


def check_tokenizer(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a tokenizer that differs from the target's. A drafter needs none."""
    if inspected.target is None:
        return
    own, targets = (_model(each.folder) for each in (inspected.drafter, inspected.target))
    if own is None or targets is None or own == targets:
        return
    differs = own.get("vocab") != targets.get("vocab")
    yield CheckResult(
        id="tokenizer_differs",
        level=Level.ERROR if differs else Level.WARNING,
        title="the drafter's tokenizer is not the target's",
        expected="the target's tokenizer.json, or none",
        rule="drafter and target exchange token ids",
        there="another vocabulary" if differs else "the same vocabulary, other merges",
        change="use a drafter of this target",
        certainty=Certainty.LIKELY,
    )


def check_template(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a chat template that differs from the target's."""
    if inspected.target is None:
        return
    own, targets = (chat_template(each.folder) for each in (inspected.drafter, inspected.target))
    if own and targets and own.strip() != targets.strip():
        yield CheckResult(
            id="template_differs",
            level=Level.WARNING,
            title="the drafter was saved with another chat template than the target's",
            expected="the template that the target is served with",
            rule="a drafter knows the template that it was trained with",
            there="another template",
            change="serve with the drafter's template (--chat-template), or train with this one",
            certainty=Certainty.LIKELY,
        )


def check_quantization(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a quantised model beside one that is not."""
    drafter, target = inspected.drafter, inspected.target
    if target is None or drafter.quantized == target.quantized:
        return
    side = "drafter" if drafter.quantized else "target"
    yield CheckResult(
        id="quantized_on_one_side",
        level=Level.NOTE,
        title=f"only the {side} is quantised",
        expected="a drafter trained on the states of the model that is served",
        rule="states of a quantised target differ (vllm-ascend#5974, LLMKube#1423)",
        there=f"quantization_config in the {side}'s config",
        certainty=Certainty.POSSIBLE,
    )


def _model(folder: Path) -> dict[str, Any] | None:
    try:
        content = read_json(folder / _TOKENIZER, limit=_MOST_BYTES)
    except (OSError, ValueError):
        return None
    model = content.get("model") if isinstance(content, dict) else None
    return model if isinstance(model, dict) else None


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

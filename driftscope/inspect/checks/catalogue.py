"""All checks of a checkpoint's files, and the order in which their results are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from driftscope.inspect.checks import (
    captured_layers,
    draft_vocabulary,
    norm_flags,
    positions,
    shapes,
    shared_weights,
    text_files,
    values,
)
from driftscope.inspect.checks.check_result import CheckResult, Inspected, Level

Check = Callable[[Inspected], Iterator[CheckResult]]
FOR_ANY_DRAFTER: tuple[Check, ...] = (
    values.check_values,
    values.check_types,
    text_files.check_tokenizer,
    text_files.check_template,
    text_files.check_quantization,
)
"""Checks that need no knowledge of the format."""
FOR_EAGLE3: tuple[Check, ...] = (
    shapes.check_shapes,
    shapes.check_prefix,
    norm_flags.check_norm_flags,
    norm_flags.check_norm_meaning,
    captured_layers.check_captured_layers,
    captured_layers.check_ignored_layers,
    draft_vocabulary.check_vocabulary_size,
    draft_vocabulary.check_table,
    draft_vocabulary.check_special_tokens,
    positions.check_rope,
    positions.check_context,
    shared_weights.check_width,
    shared_weights.check_embedding,
)
_ORDER = tuple(Level)


def run_checks(inspected: Inspected) -> list[CheckResult]:
    """Return what all checks found, errors first.

    Raises CheckpointError for a file that cannot be read.
    """
    checked = inspected.drafter.format.checked
    checks = (*FOR_EAGLE3, *FOR_ANY_DRAFTER) if checked else FOR_ANY_DRAFTER
    results = [result for check in checks for result in check(inspected)]
    return sorted(results, key=lambda result: _ORDER.index(result.level))


def checks_made(inspected: Inspected) -> int:
    """Return how many checks `run_checks` makes."""
    known = len(FOR_EAGLE3) if inspected.drafter.format.checked else 0
    return known + len(FOR_ANY_DRAFTER)

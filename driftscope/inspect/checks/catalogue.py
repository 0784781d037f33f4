"""All checks of a checkpoint's files, and the order in which their results are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from driftscope.inspect.checks import (
    captured_layers,
    draft_vocabulary,
    eagle1_engines,
    mtp_heads,
    norm_flags,
    positions,
    shapes,
    shared_weights,
    text_files,
    values,
)
from driftscope.inspect.checks.check_result import CheckResult, Inspected, Level
from driftscope.inspect.files.checkpoint_format import Family

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
FOR_EAGLE1: tuple[Check, ...] = (
    shapes.check_shapes,
    shapes.check_prefix,
    eagle1_engines.check_engine,
    eagle1_engines.check_bias,
    positions.check_rope,
    positions.check_context,
    shared_weights.check_width,
    shared_weights.check_embedding,
)
FOR_MTP: tuple[Check, ...] = (
    mtp_heads.check_heads,
    mtp_heads.check_entries,
    mtp_heads.check_quantization,
)
_BY_FAMILY = {Family.EAGLE1: FOR_EAGLE1, Family.MTP: FOR_MTP}
_ORDER = tuple(Level)


def run_checks(inspected: Inspected) -> list[CheckResult]:
    """Return what all checks found, errors first.

    Raises CheckpointError for a file that cannot be read.
    """
    results = [result for check in _checks(inspected) for result in check(inspected)]
    return sorted(results, key=lambda result: _ORDER.index(result.level))


def checks_made(inspected: Inspected) -> int:
    """Return how many checks `run_checks` makes."""
    return len(_checks(inspected))


def _checks(inspected: Inspected) -> tuple[Check, ...]:
    family = inspected.drafter.format.family
    if family is None:
        return FOR_ANY_DRAFTER
    return (*_BY_FAMILY.get(family, FOR_EAGLE3), *FOR_ANY_DRAFTER)

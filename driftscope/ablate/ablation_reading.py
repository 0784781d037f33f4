"""Reads an ablation from its JSON document, which may come from anyone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.decomposition import Decomposition, Part
from driftscope.ablate.effect import Effect, PairedBy
from driftscope.ablate.intervention import INTERVENTIONS, Intervention
from driftscope.ablate.vocabulary_coverage import RegionCoverage, VocabularyCoverage
from driftscope.analysis.statistics.intervals import Interval
from driftscope.boundary.files import first_line, read_json
from driftscope.boundary.json_document import ABLATION, SCHEMA_VERSION
from driftscope.errors import UsageError
from driftscope.inspect.trial.acceptance import Acceptance

DOCUMENT = "ablation.json"
"""Name of the JSON document in the run directory of an ablation."""
Content = Mapping[str, Any]


def read_ablation(path: Path) -> Ablation:
    """Return the ablation in a run directory or in a document of `driftscope ablate --json`.

    Raises UsageError for another file or a damaged one.
    """
    path = path / DOCUMENT if path.is_dir() else path
    try:
        document = read_json(path)
        if (document["kind"], document["schema_version"]) != (ABLATION, SCHEMA_VERSION):
            raise UsageError(f"{path}: is no document of `driftscope ablate --json`")
        return _ablation(document)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else first_line(error)
        raise UsageError(f"{path}: is no ablation ({reason}); make it again") from error


def _ablation(document: Content) -> Ablation:
    k = int(document["k"])
    effects = tuple(_effect(each, k) for each in document["effects"])
    if not effects:
        raise ValueError("it has no effect")
    return Ablation(
        drafter=str(document["drafter"]),
        target=str(document["target"]),
        k=k,
        prompts=int(document["prompts"]),
        positions=int(document["positions"]),
        effects=effects,
        decomposition=_decomposition(document["decomposition"]),
        vocabulary=VocabularyCoverage(
            lacking=float(document["lacking_tokens"]),
            by_region=tuple(_region(each) for each in document["lacking_by_region"]),
        ),
        not_applicable={str(k): str(v) for k, v in dict(document["not_applicable"]).items()},
    )


def _effect(content: Content, k: int) -> Effect:
    return Effect(
        intervention=_intervention(content),
        prompts=int(content["prompts"]),
        acceptance=_acceptance(content["acceptance"], k),
        agreement=_by_depth(content["agreement"], k),
        conditional=tuple(None if each is None else float(each) for each in content["conditional"]),
        figures={name: _by_depth(each, k) for name, each in dict(content["figures"]).items()},
        difference=float(content["difference"]),
        interval=_interval(content["difference_interval"]),
    )


def _intervention(content: Content) -> Intervention:
    name = str(content["id"])
    known = INTERVENTIONS.get(name, Intervention(id=name, changes=""))
    rewritten = PairedBy(content["paired_by"]) is PairedBy.PROMPT
    return replace(known, changes=str(content["changes"]), rewritten=rewritten)


def _acceptance(content: Content, k: int) -> Acceptance:
    marginal = _by_depth(content["marginal"], k)
    return Acceptance(
        length=float(content["mean_length"]),
        length_interval=_interval(content["mean_length_interval"]),
        marginal=marginal,
        marginal_interval=tuple(_interval(each) for each in content["marginal_interval"]),
        rounds=int(content["rounds"]),
    )


def _by_depth(values: Sequence[float], k: int) -> tuple[float, ...]:
    if len(values) != k:
        raise ValueError(f"{len(values)} depths at K = {k}")
    return tuple(float(each) for each in values)


def _decomposition(content: Content | None) -> Decomposition | None:
    if content is None:
        return None
    return Decomposition(
        first=float(content["first"]),
        last=float(content["last"]),
        loss=_part(content["loss"]),
        tokens=_part(content["tokens"]),
        states=_part(content["states"]),
        rest=_part(content["rest"]),
    )


def _part(content: Content) -> Part:
    orders = content["orders"]
    return Part(
        value=float(content["value"]),
        interval=_interval(content["interval"]),
        orders=None if orders is None else (float(orders[0]), float(orders[1])),
    )


def _region(content: Content) -> RegionCoverage:
    return RegionCoverage(
        region=str(content["region"]),
        tokens=int(content["tokens"]),
        lacking=float(content["lacking"]),
        interval=_interval(content["interval"]),
    )


def _interval(ends: Content | None) -> Interval | None:
    return None if ends is None else Interval.of(float(ends["low"]), float(ends["high"]))

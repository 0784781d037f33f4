"""A suite: prompts, the conditions they are asked in, and settings; a small YAML file.

    about: Does the chat template matter?
    prompts: chat                    # a shipped set, or a file that a reader knows
    settings: {max_tokens: 128, temperature: 0}
    baseline: regular
    conditions:
      regular: []
      plain roles:
        - template: {template: roles}
        - whitespace: {}

A condition is a list of transforms, done one after the other; [] leaves prompts as they are. Every
prompt is asked in every condition.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from driftscope.boundary.bounds import first_fault
from driftscope.boundary.files import first_line, read_text
from driftscope.errors import DriftscopeError, UsageError
from driftscope.workloads.suites.plan import LoadLevel
from driftscope.workloads.suites.prompts import Prompt, ServerFacts, prompts_of
from driftscope.workloads.suites.transforms import (
    TRANSFORMS,
    NotApplicableError,
    Transform,
    document,
)

SUITES = "suites"
LEAST_CHARACTERS, MOST_CHARACTERS = 0.25, 64.0
"""Bounds of the characters per token of any tokenizer; a server's value outside them is ignored."""
SAMPLE_CHARACTERS = 4000
"""Characters of filler text whose tokens are counted once."""


class SuiteFile(BaseModel):
    """Content of a suite's YAML file."""

    model_config = ConfigDict(extra="forbid")
    about: str = ""
    prompts: str
    limit: int | None = Field(default=None, gt=0)
    settings: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0
    repeat: int = Field(default=1, gt=0)
    baseline: str
    conditions: dict[str, list[dict[str, dict[str, Any]]]] = Field(min_length=1)
    concurrency: list[int] = Field(default_factory=list)
    rate: list[float] = Field(default_factory=list)

    @model_validator(mode="after")
    def _whole(self) -> SuiteFile:
        if self.baseline not in self.conditions:
            raise ValueError(f"baseline {self.baseline!r} is not one of the conditions")
        if any(level < 1 for level in self.concurrency) or any(rate <= 0 for rate in self.rate):
            raise ValueError("concurrency: give whole numbers from 1; rate: give a number above 0")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Prompts of a suite as they will be sent."""

    conditions: Mapping[str, Sequence[Prompt]]
    notes: tuple[str, ...]
    """Notes on what was left out, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A validated suite; create it with `load_suite`."""

    name: str
    file: SuiteFile
    folder: Path | None
    """Folder in which `file.prompts` is searched for, if it is a file."""
    conditions: Mapping[str, Sequence[Transform]]
    digest: str
    """First 16 hex digits of the file's sha256."""

    def levels(self) -> list[LoadLevel]:
        """Return the load levels that the file names."""
        return levels_of(self.file.concurrency, self.file.rate)

    def description(self) -> dict[str, Any]:
        """Return the suite's description for the manifest."""
        return {
            "suite": self.name,
            "suite_digest": self.digest,
            "baseline": self.file.baseline,
            "conditions": list(self.conditions),
            "prompts": self.file.prompts,
            "settings": self.file.settings,
        }

    def make(
        self,
        facts: ServerFacts,
        *,
        prompts: Sequence[Prompt] | None = None,
        limit: int | None = None,
        seed: int | None = None,
    ) -> Made:
        """Return every prompt in every condition; a condition that does not apply is left out with
        a note."""
        originals = (
            list(prompts) if prompts is not None else prompts_of(self.file.prompts, self.folder)
        )
        originals = originals[: limit or self.file.limit]
        by_condition: dict[str, list[Prompt]] = {}
        notes: list[str] = []
        for name, transforms in self.conditions.items():
            try:
                by_condition[name] = [
                    changed(prompt, transforms, facts, f"{seed} {name} {prompt.key}")
                    for prompt in originals
                ]
            except NotApplicableError as error:
                notes.append(f"condition {name} left out: {error}")
        return Made(conditions=by_condition, notes=tuple(notes))


def changed(
    prompt: Prompt, transforms: Sequence[Transform], facts: ServerFacts, seed: str
) -> Prompt:
    """Return the prompt after all transforms; raises NotApplicableError."""
    prompt = replace(prompt)  # always: prompts of two conditions are distinct objects
    for number, transform in enumerate(transforms):
        if prompt.is_text and not transform.of_text:
            raise NotApplicableError(
                f"{transform.name} changes conversations, and {prompt.key} is plain text"
            )
        prompt = transform.apply(prompt, random.Random(f"{seed} {number}"), facts)
    return prompt


def levels_of(concurrency: Sequence[int], rate: Sequence[float]) -> list[LoadLevel]:
    """Return one level per rate, each limited by the single concurrency; without rates, one level
    per concurrency. Raises UsageError for rates with several concurrencies."""
    if not rate:
        return [LoadLevel(concurrency=requests) for requests in concurrency]
    if len(concurrency) > 1:
        raise UsageError("with a rate, concurrency must be one number: the most requests at once")
    return [LoadLevel(concurrency=concurrency[0] if concurrency else None, rate=r) for r in rate]


def shipped_suites() -> list[str]:
    """Return the names of the suites that are shipped with driftscope."""
    folder = files("driftscope.workloads") / SUITES
    return sorted(
        path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml")
    )


def load_suite(name: str) -> Suite:
    """Return a shipped suite, or the one in the file `name`; raises UsageError."""
    if name in shipped_suites():
        text = (files("driftscope.workloads") / SUITES / f"{name}.yaml").read_text("utf-8")
        return parse_suite(text, name)
    path = Path(name)
    if not path.is_file():
        raise UsageError(
            f"--suite {name}: neither a shipped suite ({', '.join(shipped_suites())}) nor a file"
        )
    try:
        text = read_text(path)
    except ValueError as error:
        raise UsageError(f"{path}: not readable as text ({first_line(error)})") from error
    return parse_suite(text, path.stem, where=str(path), folder=path.parent)


def parse_suite(
    text: str, name: str, *, where: str | None = None, folder: Path | None = None
) -> Suite:
    """Return the suite that `text` describes; raise UsageError, whose message names the fault."""
    where = where or f"suite {name}"
    try:
        content = yaml.safe_load(text)
        if not isinstance(content, dict):
            raise ValueError("is no suite (docs/suites.md); --prompts takes a file of prompts")
        file = SuiteFile.model_validate(content)
        conditions = {
            label: tuple(_transform(one, f"conditions.{label}") for one in steps)
            for label, steps in file.conditions.items()
        }
        levels_of(file.concurrency, file.rate)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not YAML ({' '.join(str(error).split())})") from error
    except ValidationError as error:
        raise UsageError(f"{where}: {first_fault(error)}") from error
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Suite(name=name, file=file, folder=folder, conditions=conditions, digest=digest)


async def facts_for(
    suite: Suite, facts: ServerFacts, count: Callable[[str], Awaitable[int]]
) -> ServerFacts:
    """Return `facts` with the server's characters per token, if the suite makes text of a given
    length.

    `count` returns the server's number of tokens of a text.
    """
    if not any(hasattr(step, "tokens") for steps in suite.conditions.values() for step in steps):
        return facts
    sample = document(SAMPLE_CHARACTERS, random.Random(0))
    try:
        tokens = await count(sample)
    except DriftscopeError:  # no /tokenize: lengths are approximate
        return facts
    per_token = len(sample) / max(tokens, 1)
    if not LEAST_CHARACTERS <= per_token <= MOST_CHARACTERS:
        return facts
    return replace(facts, characters_per_token=per_token)


def _transform(step: Mapping[str, Mapping[str, Any]], where: str) -> Transform:
    if len(step) != 1:
        raise ValueError(f"{where}: give one transform per entry, such as - whitespace: {{}}")
    ((name, fields),) = step.items()
    if name not in TRANSFORMS:
        raise ValueError(f"{where}: no transform {name!r}; known are {', '.join(TRANSFORMS)}")
    try:
        return TRANSFORMS[name].model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{where}.{name}: {first_fault(error)}") from error

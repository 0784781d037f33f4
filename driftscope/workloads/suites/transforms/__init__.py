"""Transforms of prompts, by name."""

from __future__ import annotations

from driftscope.workloads.suites.transforms.agent import AgentLoop, Tools
from driftscope.workloads.suites.transforms.base import NotApplicableError, Transform
from driftscope.workloads.suites.transforms.context import Filler
from driftscope.workloads.suites.transforms.system import OwnCache, System
from driftscope.workloads.suites.transforms.template import Reworded, Template, Whitespace
from driftscope.workloads.suites.transforms.wording import MixedLanguages, Sampling

__all__ = ["TRANSFORMS", "NotApplicableError", "Transform"]

TRANSFORMS: dict[str, type[Transform]] = {
    kind.name: kind
    for kind in (
        Template,
        Whitespace,
        Reworded,
        System,
        OwnCache,
        Filler,
        Tools,
        AgentLoop,
        MixedLanguages,
        Sampling,
    )
}

"""A drafter in the dtype in which an engine serves it."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.files.target_files import TargetFiles
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.reference.target import Embeds
from driftscope.inspect.trial.passages import Passage

_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_FIELDS = ("torch_dtype", "dtype")


def served_dtype(target: TargetFiles, drafter: DrafterFiles) -> torch.dtype | None:
    """Return the dtype of the target's config, in which vLLM serves the drafter too, or else that
    of the drafter's; None if neither names one that is narrower than float32."""
    for fields in (target.raw, target.fields, drafter.raw, drafter.fields):
        for name in _FIELDS:
            if isinstance(named := fields.get(name), str):
                return _NARROW.get(named.removeprefix("torch."))
    return None


class ServedDrafter:
    """A drafter with its target's embedding, cast to a dtype."""

    def __init__(self, drafter: Drafter, target: Embeds, dtype: torch.dtype) -> None:
        """Copy the drafter; the original keeps its dtype."""
        self.drafter = copy.deepcopy(drafter).to(dtype)
        self._target, self._dtype = target, dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids [...] to [..., H]."""
        return self._target.embed(ids).to(self._dtype)

    def cast(self, passage: Passage) -> Passage:
        """Return the passage with its states rounded to the dtype."""
        states = {layer: each.to(self._dtype) for layer, each in passage.states.items()}
        return replace(passage, states=states)

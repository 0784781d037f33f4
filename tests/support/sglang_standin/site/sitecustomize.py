"""Declares the operators that torchvision's CUDA build expects, so that it can be imported.

transformers imports torchvision if it is installed, and SGLang needs it installed. Its wheel on the
index is built for CUDA's torch, so that beside a CPU torch its own operators are missing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _DeclareOperators(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", _SIGNATURE)


sys.meta_path.insert(0, _DeclareOperators())

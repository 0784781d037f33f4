"""Process in which the installed SGLang builds drafters without weights; see `engine_process`.

SGLang's draft workers build a class from the drafter's config alone, so its target is a stand-in
here: what SGLang asks of a target by its own options is not checked.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from driftscope.boundary.text import dumps
from driftscope.inspect.drafter_classes import DRAFTS, SMALL_LLAMA
from driftscope.inspect.engine_process import Absent, EngineModels, run

_ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "EAGLE"}
"""Method -> SGLang's name of the algorithm; others are spelled in capitals."""
_KERNELS = "sgl_kernel"


def _kernel(kernels: Any, name: str) -> Any:
    """Return a kernel, or a stand-in for one of a CPU that is not here: models import it."""
    try:
        return super(type(kernels), kernels).__getattr__(name)
    except AttributeError:
        if name.endswith("_cpu"):
            return getattr(Absent(_KERNELS), name)
        raise


class SglangModels(EngineModels):
    """The installed SGLang."""

    package = "sglang"
    judges = ("srt/configs/", "srt/model_loader/", "srt/models/")
    absent = ("torchvision", "torchaudio", _KERNELS)

    def refuse_untracked(self, config: Any, model: nn.Module, loaded: Any) -> None:
        """See EngineModels. SGLang refuses none."""

    def config(self, question: Mapping[str, Any]) -> Any:
        """See EngineModels."""
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.models.registry import ModelRegistry

        speculative = question["speculative"]
        method = str(speculative["method"])
        config = ModelConfig(
            model_path=speculative.get("model", question["target"]),
            trust_remote_code=False,
            is_draft_model=True,
            speculative_algorithm=_ALGORITHMS.get(method, method.upper()),
        )
        name = self.architecture(config)
        if not (DRAFTS.search(name) and ModelRegistry.is_arch_supported(name)):
            raise NotImplementedError(f"SGLang has no class that drafts of the name {name}")
        return config

    def architecture(self, config: Any) -> str:
        """See EngineModels."""
        return str(config.hf_config.architectures[0])

    def model(self, config: Any) -> nn.Module:
        """See EngineModels."""
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.model_loader import loader
        from sglang.srt.model_loader.utils import set_default_torch_dtype

        how = LoadConfig(load_format="dummy")
        with set_default_torch_dtype(config.dtype), torch.device("meta"):
            quantization = loader._get_quantization_config(config, how)
            model: nn.Module = loader._initialize_model(config, how, quantization)
        return model

    def prepare(self) -> None:
        """See EngineModels."""
        if not torch.cuda.is_available():
            os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
        kernels = torch.ops.sgl_kernel
        kernels.__class__ = type("Kernels", (type(kernels),), {"__getattr__": _kernel})
        from sglang.srt import runtime_context
        from sglang.srt.distributed.parallel_state import (
            init_distributed_environment,
            initialize_model_parallel,
        )
        from sglang.srt.layers.dp_attention import initialize_dp_attention_flags
        from sglang.srt.server_args import ServerArgs

        folder = Path(tempfile.mkdtemp())
        (folder / "config.json").write_text(dumps(SMALL_LLAMA))
        arguments = ServerArgs(
            model_path=str(folder),
            device="cuda" if torch.cuda.is_available() else "cpu",
            skip_tokenizer_init=True,
            load_format="dummy",
        )
        ranks = runtime_context.SpawnRanks(world_rank=0)
        runtime_context.publish(arguments, role="scheduler", ranks=ranks)
        init_distributed_environment(
            backend="gloo",
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{folder / 'meeting'}",
        )
        initialize_model_parallel()
        initialize_dp_attention_flags(arguments)
        from sglang.srt.layers.rotary_embedding import factory

        factory.get_rope_cpu = lambda *args: factory.get_rope(*args[:-1])  # less the device


if __name__ == "__main__":
    run(SglangModels())

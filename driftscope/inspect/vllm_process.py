"""Process in which the installed vLLM builds drafters without weights; see `engine_process`."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Container, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from driftscope.inspect.engine_process import EngineModels, run

_OF_FLASH_ATTENTION = ("compile_flash_attn_varlen_func_from_specs",)
"""Functions that vLLM defines on platforms with flash attention alone."""


_OF_CUDA = (
    ("vllm.models.deepseek_v4", "mtp", "DeepSeekV4MTP"),
    ("vllm.models.deepseek_v4", "dspark", "DSparkDeepseekV4ForCausalLM"),
)
"""Package, module and class of models that vLLM has for CUDA, where its registry gives another."""


class _AnyPlatform:
    """The platform, which claims to have kernels of CUDA: experts are not run."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def is_cuda_alike(self) -> bool:
        """Return True."""
        return True

    def get_device_capability(self, *_: Any) -> Any:
        """Return that of Hopper."""
        from vllm.platforms.interface import DeviceCapability

        return DeviceCapability(9, 0)


class VllmModels(EngineModels):
    """The installed vLLM."""

    package = "vllm"
    judges = (
        "config/",
        "model_executor/model_loader/",
        "model_executor/models/",
        "models/",
        "transformers_utils/",
    )
    absent = ("torchvision", "vllm.vllm_flash_attn", "vllm.third_party.deep_gemm")
    started = False

    def own_types(self) -> Container[str]:
        """See EngineModels."""
        from vllm.transformers_utils.config import _CONFIG_REGISTRY

        return frozenset(_CONFIG_REGISTRY)

    def config(self, question: Mapping[str, Any]) -> Any:
        """See EngineModels."""
        from vllm.engine.arg_utils import EngineArgs

        return EngineArgs(
            model=question["target"],
            speculative_config=dict(question["speculative"]),
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=False,
            load_format="dummy",
        ).create_engine_config()

    def architecture(self, config: Any) -> str:
        """See EngineModels."""
        return str(config.speculative_config.draft_model_config.architectures[0])

    def refuse_untracked(self, config: Any, model: nn.Module, loaded: Any) -> None:
        """See EngineModels."""
        from vllm.config import LoadConfig
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        if config.speculative_config.draft_model_config.quantization is None:
            DefaultModelLoader(LoadConfig()).track_weights_loading(model, loaded)

    def model(self, config: Any) -> nn.Module:
        """See EngineModels."""
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        from vllm.model_executor.model_loader import utils
        from vllm.utils.torch_utils import set_default_torch_dtype

        if not self.started:
            meeting = Path(tempfile.mkdtemp()) / "meeting"
            with set_current_vllm_config(VllmConfig()):  # of no model: groups for experts too
                init_distributed_environment(
                    world_size=1,
                    rank=0,
                    local_rank=0,
                    distributed_init_method=f"file://{meeting}",
                    backend="gloo",
                )
                initialize_model_parallel(1, 1)
            self.started = True
        draft = config.speculative_config.draft_model_config
        config.compilation_config.static_forward_context.clear()
        with (
            set_current_vllm_config(config),
            set_default_torch_dtype(draft.dtype),
            torch.device("meta"),
        ):
            if config.quant_config is not None:  # as loading the target does first
                target, _ = utils.get_model_architecture(config.model_config)
                utils.configure_quant_config(config.quant_config, target)
            model: nn.Module = utils.initialize_model(config, model_config=draft)
        return model

    def prepare(self) -> None:
        """See EngineModels."""
        from vllm.config import VllmConfig
        from vllm.model_executor.layers.fused_moe import config
        from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts
        from vllm.model_executor.models import registry
        from vllm.platforms import current_platform
        from vllm.transformers_utils import repo_utils
        from vllm.v1.attention.backends import fa_utils
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        registry._run_in_subprocess = lambda function: function()
        repo_utils.time = SimpleNamespace(sleep=lambda _: None)  # no file of the hub is waited for

        def any_backend(*_: Any, attn_selector_config: Any, **__: Any) -> str:
            latent = attn_selector_config.use_mla
            kind = AttentionBackendEnum.CPU_MLA if latent else AttentionBackendEnum.CPU_ATTN
            return str(kind.get_path())

        platform = type(current_platform)
        platform.get_attn_backend_cls = classmethod(any_backend)
        platform.update_block_size_for_backend = classmethod(lambda *_: None)  # no cache is made
        FusedMoEExperts.is_supported_config = staticmethod(lambda *_: (True, None))
        for package, module, name in _OF_CUDA:
            with contextlib.suppress(Exception):  # its kernels' libraries may be needed
                source = importlib.import_module(f"{package}.nvidia.{module}")
                setattr(importlib.import_module(package), name, getattr(source, name))
                kernels = importlib.import_module(f"{package}.nvidia.ops.o_proj")
                kernels.__dict__["current_platform"] = _AnyPlatform(current_platform)
        config.__dict__["current_platform"] = _AnyPlatform(current_platform)
        for name in _OF_FLASH_ATTENTION:
            if not hasattr(fa_utils, name):
                setattr(fa_utils, name, None)
        for runner in ("v1", "v2"):  # which of both serves a drafter is not asked
            setattr(VllmConfig, f"_validate_{runner}_model_runner", lambda _: None)


if __name__ == "__main__":
    run(VllmModels())

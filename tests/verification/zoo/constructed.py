"""Discovery on drafters that only a GPU serves: a class is built from its tiny config, with random
weights and without an engine, and the probe watches one forward without a cache.
What stands in for a GPU is in `stand_in`; norms, projections and the way of the states between them
are vLLM's own.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from support.every_drafter import V

from driftscope.trace.manifest import FED_AFTER, FED_BEFORE

SPARSE, OWN = "sparse attention", "attention of its own"
SOURCE: dict[str, tuple[str | None, str | None]] = {
    "DeepseekV32MTPModel": (FED_AFTER, SPARSE),
    "Glm5NextMTPModel": (FED_AFTER, SPARSE),
    "Dots3NoteMTPModel": (FED_AFTER, None),  # latent, with a window
    "MiniMaxM3MTP": (FED_BEFORE, OWN),
    "InklingMTPModel": (FED_BEFORE, OWN),  # after it with chain_hidden_post_norm
    "KimiK3MTPModel": (FED_BEFORE, OWN),
    "K3DSparkModel": (None, OWN),
}
"""Facts from vLLM's source about each class: the state that it is fed, and why its masses are not
measured."""
ON_GPU = {"DeepseekV32MTPModel": ("vllm.models.deepseek_v32.nvidia.mtp", "DeepseekV32MTP")}
"""Classes of which vLLM's registry has another one on a CPU."""
ROUNDED = ("Glm5NextMTPModel", "InklingMTPModel")
"""Classes whose kernels take bfloat16 alone."""
ABSENT = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "vllm.vllm_flash_attn",
    "vllm.vllm_flash_attn.flash_attn_interface",
    "vllm.models.dots3_note.nvidia.multimodal",
    "flashinfer",
)
"""Modules that a CPU build does not have or load, and that no forward without a cache calls."""


def stand_in() -> None:
    """Put something in the place of a GPU, of kernels that only run on one, and of experts."""
    import torch
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends import fa_utils
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    sys.modules.update({name: MagicMock() for name in ABSENT})
    norms: Any = ModuleType("flashinfer.norm")
    norms.gemma_rmsnorm, norms.gemma_fused_add_rmsnorm = _gemma_norm, _gemma_norm_of_sum
    sys.modules["flashinfer.norm"] = norms
    torch._dynamo.config.disable = True
    for owner, name in ((torch, "Event"), (torch.cuda, "Event"), (torch.cuda, "Stream")):
        setattr(owner, name, MagicMock)
    torch.accelerator.empty_cache = lambda: None
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=1)
    on_cpu = current_platform.get_attn_backend_cls

    def backend(selected_backend: Any, attn_selector_config: Any, num_heads: Any = None) -> str:
        if attn_selector_config.use_sparse:
            return AttentionBackendEnum.FLASHMLA_SPARSE.get_path()
        return on_cpu(selected_backend, attn_selector_config, num_heads)

    type(current_platform).get_attn_backend_cls = staticmethod(backend)
    fa_utils.compile_flash_attn_varlen_func_from_specs = None
    prefill = importlib.import_module("vllm.v1.attention.backends.mla.prefill.flash_attn")
    prefill.flash_attn_varlen_func = MagicMock()
    minimax = importlib.import_module("vllm.models.minimax_m3.nvidia.model")

    class Experts(torch.nn.Module):
        def __init__(self, **_: Any) -> None:
            super().__init__()

        def forward(self, hidden_states: Any, *_: Any, **__: Any) -> Any:
            return hidden_states

    minimax.FusedMoEFactory = Experts


def _gemma_norm(x: Any, weight: Any, eps: float) -> Any:
    y = x.float()
    return (y * (y.square().mean(-1, keepdim=True) + eps).rsqrt() * (1 + weight)).to(x.dtype)


def _gemma_norm_of_sum(x: Any, residual: Any, weight: Any, eps: float) -> None:
    residual.add_(x)
    x.copy_(_gemma_norm(residual, weight, eps))


def discovered(folder: Path, name: str) -> dict[str, Any]:
    """Return what the probe finds in a constructed class."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.model_loader.utils import process_weights_after_loading
    from vllm.model_executor.models import ModelRegistry
    from vllm.transformers_utils.config import get_config
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.worker.workspace import init_workspace_manager

    from driftscope_probes.discovery import ROWS, made_up
    from driftscope_probes.vllm.drafter import open_drafter
    from driftscope_probes.witness import StartWitness, _Forward
    from verification.zoo.classes import DEPTHS, configured, method_of, random_weight

    stand_in()
    drafter, target, _ = configured(folder / f"{name}-constructed", name, alone=True)
    speculation = {**method_of(name), "num_speculative_tokens": DEPTHS, "model": str(drafter)}
    config = EngineArgs(
        model=str(target),
        load_format="dummy",
        speculative_config=speculation,
        dtype="bfloat16" if name in ROUNDED else "float32",
        max_model_len=128,
        max_num_seqs=4,
        enforce_eager=True,
        skip_tokenizer_init=True,
    ).create_engine_config()
    draft = config.speculative_config.draft_model_config
    config.model_config.hf_config = whole = get_config(str(drafter), False)
    config.model_config.hf_text_config = whole.get_text_config()
    init_workspace_manager(torch.device("cpu"))
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{folder}/{name}-group", 0, "gloo")
        initialize_model_parallel(1, 1)
        if name in ON_GPU:
            module, kind = ON_GPU[name]
            built = getattr(importlib.import_module(module), kind)
        else:
            built = ModelRegistry.models[draft.hf_config.architectures[0]].load_model_cls()
        with set_default_torch_dtype(draft.dtype):
            model = built(vllm_config=config, prefix="")
        if getattr(model.model, "embed_tokens", None) is None:  # the target's
            model.model.embed_tokens = torch.nn.Embedding(V, draft.get_hidden_size())
            model.model.embed_tokens.to(draft.dtype)
        for parameter in model.parameters():
            random_weight(parameter)
        for part in model.modules():
            part._cpu_skip_gemm_dispatch = True
        process_weights_after_loading(model, draft, torch.device("cpu"))
        given = {
            "input_ids": torch.zeros(ROWS, dtype=torch.int32),
            "positions": torch.arange(ROWS),
            "hidden_states": made_up(torch.empty(ROWS, draft.get_hidden_size(), dtype=draft.dtype)),
        }
        names = config.compilation_config.static_forward_context
        found = open_drafter(model, list(names), config, given)
        if not found.kind.fed:
            del given["hidden_states"]
        with torch.inference_mode(), set_forward_context(None, config, num_tokens=ROWS):
            result = model(**given)
    witness = StartWitness(found, {}, None)
    witness._forwards = [_Forward(outputs=result if isinstance(result, tuple) else (result,))]
    return {
        "fed": witness._fed_state(),
        "columns": list(found.kind.columns),
        "notes": list(found.notes),
        "windows": [layer.kind.window for layer in found.layers.values()],
    }


def as_source(name: str, found: dict[str, Any]) -> bool:
    """Return whether what was found of a class is what vLLM's source says."""
    fed, sort = SOURCE[name]
    notes = found.get("notes", ["?"])
    return bool(found.get("fed") == fed and (sort in notes[0] if sort else not notes))

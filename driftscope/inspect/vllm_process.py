"""Process that lets the installed vLLM read configs and load tensors that have a shape, no content.

It runs beside the command that asks (`vllm_loading`), because vLLM takes seconds to import and a
config of a stranger may stop it. Each line of stdin is one question and each line of stdout its
answer, both JSON. Nothing of a checkpoint is executed: vLLM gets no permission to run its code, and
its tensors are on torch's meta device, where they need no memory.

vLLM builds the class that it would serve, on this machine's platform. Attention is never run, so
any backend is good enough to build it; what else this platform cannot build stays unknown.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.boundary.strict_json import dumps

MEMORY_BYTES = 16 << 30
"""Memory that this process may have beyond what vLLM's import took: a config may ask for any."""
MOST_FAULTS = 8
"""Tensors at which loading stops that are named; after each one the rest is loaded without it."""
_SHORT = 400
_JUDGES = (
    "config/",
    "model_executor/model_loader/",
    "model_executor/models/",
    "models/",
    "transformers_utils/",
)
"""Folders of vLLM whose errors are of a config or of weights; those of kernels, attention and
platforms are of this machine."""
_OPTIONAL = re.compile(r"\.(q|k|v|prob)_scale$|_zero_point$")
"""Names of parameters of a quantised cache or matrix that files need not have."""
_NOTHING: dict[str, dict[str, tuple[int, int]]] = {"unfilled": {}, "cut": {}}
_FILLS = ("copy_", "fill_", "zero_", "index_put_")
_LOADER = re.compile(r"load_.*weights|^_load_module$|^track_")
"""Names of functions that go through all tensors."""
_HERE = re.compile(
    r"\b(cpu|gpu|cuda|rocm|triton|platform|backend|kernel|meta|flashinfer|deep_?gemm|runner"
    r"|trust_remote_code|recognize|inspected)\b",
    re.IGNORECASE,
)
"""Words of a reason that is this machine's or this installation's, not the checkpoint's."""
_OF_TARGET = ("embed_tokens", "lm_head", "shared_head.head", "draft_id_to_target_id", "embedding")
"""Parts of names of parameters that vLLM takes from the target, or that a drafter may lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why vLLM stopped."""

    reason: str
    place: str
    """File, line and function of vLLM."""
    tensor: str | None = None
    """Tensor at which it stopped; None if it was not at one."""
    certain: bool = True
    """Whether it is the checkpoint that vLLM refuses, and not this machine that lacks something."""


class _Fills(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements that are written into each storage, and read from each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: Counter[int] = Counter()
        self.read: Counter[int] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _FILLS and isinstance(args[0], Tensor):
            values = args[2] if name == "index_put_" else args[0]
            self.written[_storage(args[0])] += values.numel()
        if name == "copy_" and isinstance(args[1], Tensor):
            self.read[_storage(args[1])] += args[1].numel()
        return func(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@dataclass(slots=True)
class VllmModels:
    """The installed vLLM, prepared to build drafters without weights."""

    started: bool = field(default=False)

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return what vLLM says of a drafter: `config`, `model` or `weights`, where it stopped, or
        `loaded`; why; and which parameters no tensor fills."""
        for folder in question["folders"]:
            _know_type(Path(folder))
        try:
            config = self._config(question["target"], question["speculative"])
        except Exception as error:  # vLLM, transformers and pydantic raise anything
            return _stopped("config", [_refusal(error, {})])
        draft = config.speculative_config.draft_model_config
        known = {"architecture": draft.architectures[0]}
        tensors = {
            name: torch.empty(shape, dtype=_TYPES.get(dtype, torch.uint8), device="meta")
            for name, (shape, dtype) in question["tensors"].items()
        }
        faults = list[Refusal]()
        while True:
            try:
                model = self._model(config)
            except Exception as error:  # each class is built by code of its own
                return known | _stopped("model", [*faults, _refusal(error, {})])
            known["class"] = type(model).__name__
            known["parameters"] = {name: list(one.shape) for name, one in model.named_parameters()}
            fault, lacking = self._loaded(model, draft, tensors, strict=not faults)
            if fault is not None:
                faults.append(fault)
                if fault.tensor is not None and len(faults) < MOST_FAULTS:
                    del tensors[fault.tensor]
                    continue
            if faults:
                return known | _stopped("weights", faults)
            return known | {"stage": "loaded", "refusals": [], **lacking}

    def _config(self, target: str, speculative: dict[str, Any]) -> Any:
        from vllm.engine.arg_utils import EngineArgs

        return EngineArgs(
            model=target,
            speculative_config=dict(speculative),
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=False,
            load_format="dummy",
        ).create_engine_config()

    def _model(self, config: Any) -> nn.Module:
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

    def _loaded(
        self, model: nn.Module, draft: Any, tensors: Mapping[str, Tensor], *, strict: bool
    ) -> tuple[Refusal | None, dict[str, dict[str, tuple[int, int]]]]:
        """Return why vLLM's loader stops, if it does, which parameters it does not fill, and of
        which tensors it takes a part only: elements that it does, and all."""
        from vllm.config import LoadConfig
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        names = {_storage(tensor): name for name, tensor in tensors.items()}
        before = {name: _storage(each) for name, each in model.named_parameters()}
        fills = _Fills()
        try:
            with fills, torch.device("meta"):
                loaded = model.load_weights(iter(tensors.items()))  # type: ignore[operator]
        except Exception as error:  # each model has a loader of its own
            return _refusal(error, names), _NOTHING
        cut = {
            name: (taken, tensor.numel())
            for name, tensor in tensors.items()
            if 0 < (taken := fills.read[_storage(tensor)]) < tensor.numel()
            and not any(part in name for part in _OF_TARGET)
        }
        unfilled = {
            name: (fills.written[before[name]], parameter.numel())
            for name, parameter in model.named_parameters()
            if before.get(name) == _storage(parameter)
            and not any(part in name for part in _OF_TARGET)
            and not _OPTIONAL.search(name)
            and fills.written[before[name]] < (parameter.numel() if parameter.dim() > 1 else 1)
        }
        if strict and loaded is not None and draft.quantization is None:
            try:
                DefaultModelLoader(LoadConfig()).track_weights_loading(model, loaded)
            except ValueError as error:
                if unfilled:  # else it takes what it lacks from the target
                    return _refusal(error, names), _NOTHING
        return None, {"unfilled": unfilled, "cut": cut}


_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "BOOL": torch.bool,
}


def _stopped(stage: str, refusals: Iterable[Refusal]) -> dict[str, Any]:
    return {
        "stage": stage,
        "refusals": [
            {
                "reason": found.reason,
                "place": found.place,
                "tensor": found.tensor,
                "certain": found.certain,
            }
            for found in refusals
        ],
        **_NOTHING,
    }


def _refusal(error: Exception, names: Mapping[int, str]) -> Refusal:
    """Return an error in words, with the place in vLLM and the tensor at which it was raised."""
    cause = _cause(error)
    frames = list(_frames(cause.__traceback__))
    tensor = _tensor_of(cause, frames, names)
    words = " ".join(str(cause).split()) or "an assertion"
    words = words.partition(" Supported architectures:")[0].partition(" You can update ")[0]
    own = [(file, line, name) for file, line, name, _ in frames if "/vllm/" in file]
    at = own or [(file, line, name) for file, line, name, _ in frames] or [("unknown", 0, "")]
    file, line, name = at[-1]
    return Refusal(
        reason=f"{type(cause).__name__}: {words[:_SHORT]}",
        place=f"{file.rpartition('/vllm/')[2] or file}:{line} {name}",
        tensor=tensor,
        certain=_of_checkpoint(cause, words, tensor)
        and (tensor is not None or at[-1][0].rpartition("/vllm/")[2].startswith(_JUDGES)),
    )


def _tensor_of(
    cause: Exception, frames: Sequence[tuple[str, int, str, list[Any]]], names: Mapping[int, str]
) -> str | None:
    """Return the tensor that vLLM was loading when it stopped.

    After its loop a loader still holds the last tensor, which a later error does not concern.
    """
    for _, _, function, values in reversed(frames):
        places = [_storage(value) for value in values if isinstance(value, Tensor)]
        found = [names[place] for place in places if place in names]
        if found and isinstance(cause, KeyError):
            last = str(cause).strip("'").rpartition(".")[0].rpartition(".")[2]
            return next((name for name in found if last in name), found[-1])
        if found:
            return None if _LOADER.search(function) else found[-1]
    return None


def _of_checkpoint(cause: Exception, words: str, tensor: str | None) -> bool:
    """Whether vLLM refuses the checkpoint, and does not lack something of this machine or a field
    that another version of transformers has a default for."""
    if _HERE.search(words) or _AS_WRITTEN in words:
        return False
    of_files = tensor is not None or "checkpoint" in words
    return of_files or isinstance(cause, ValueError | AssertionError)


_AS_WRITTEN = "WrittenConfig"


def _know_type(folder: Path) -> None:
    """Have a config be read as it is written, if its class is in the checkpoint's own code, which
    is not run. Fields that this class would add are then missing."""
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    kind = json.loads((folder / "config.json").read_text()).get("model_type")
    if not isinstance(kind, str) or kind in CONFIG_MAPPING or kind in _CONFIG_REGISTRY:
        return

    def read(config: Any, text_config: Any = None, **others: Any) -> None:
        PretrainedConfig.__init__(config, **others)
        if isinstance(text_config, dict):
            config.text_config = PretrainedConfig(**text_config)

    names = {"model_type": kind, "__init__": read}
    AutoConfig.register(kind, type(_AS_WRITTEN, (PretrainedConfig,), names))


def _cause(error: Exception) -> Exception:
    """Return the error that a validation by pydantic wraps."""
    listed = getattr(error, "errors", None)
    if callable(listed):
        with contextlib.suppress(Exception):
            inner = listed()[0].get("ctx", {}).get("error")
            if isinstance(inner, Exception):
                return inner
    return error


def _frames(at: TracebackType | None) -> Iterator[tuple[str, int, str, list[Any]]]:
    while at is not None:
        code = at.tb_frame.f_code
        yield code.co_filename, at.tb_lineno, code.co_name, list(at.tb_frame.f_locals.values())
        at = at.tb_next


_ABSENT = ("torchvision", "vllm.vllm_flash_attn", "vllm.third_party.deep_gemm")
"""Modules that some models import and that building them does not need."""


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


class _Absent(ModuleType):
    """Stands for a module that is not installed here; any name in it is a class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None})


class _AbsentModules(MetaPathFinder, Loader):
    """Finds `_Absent` for each module of the list that no other finder finds."""

    def find_spec(self, name: str, *_: object) -> Any:
        """Return that this object loads the module, if it is in the list."""
        if any(name == absent or name.startswith(f"{absent}.") for absent in _ABSENT):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


def _prepare() -> None:
    """Change what keeps vLLM from building a model on a platform that does not serve it."""
    from vllm.config import VllmConfig
    from vllm.model_executor.layers.fused_moe import config
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.transformers_utils import repo_utils
    from vllm.v1.attention.backends import fa_utils
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    for name in _ABSENT:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules.pop(name, None)
            sys.modules[name] = _Absent(name)
    sys.meta_path.append(_AbsentModules())
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
    if not torch.cuda.is_available():
        for place, name in ((torch.cuda, "Stream"), (torch.cuda, "Event"), (torch, "Event")):
            setattr(place, name, _Absent("torch.cuda").Stream)
    for runner in ("v1", "v2"):  # which of both serves a drafter is not asked
        setattr(VllmConfig, f"_validate_{runner}_model_runner", lambda _: None)


def main() -> None:
    """Answer each line of stdin on stdout; a first line says that vLLM is there."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever vLLM prints
    import vllm

    _prepare()
    models = VllmModels()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, hard))
    print(dumps({"version": vllm.__version__}), file=out)
    for line in sys.stdin:
        try:
            answer = models.answer(json.loads(line))
        except Exception as error:  # the process goes on with the next question
            answer = _stopped("config", [_refusal(error, {})])
            answer["refusals"][0]["certain"] = False
        print(dumps(answer), file=out)


if __name__ == "__main__":
    main()

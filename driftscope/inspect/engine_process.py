"""Process that lets an installed engine read configs, and load tensors that have no content.

It runs beside the command that asks (`engine_loading`), because an engine takes seconds to import
and a config of a stranger may stop it. Each line of stdin is one question and each line of stdout
its answer, both JSON. Nothing of a checkpoint is executed: the engine gets no permission to run its
code, and its tensors are on torch's meta device, where they need no memory.

The engine builds the class that it would serve, on this machine's platform. Attention is never run,
so any backend is good enough to build it; what else this platform cannot build stays unknown.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import os
import re
import resource
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.boundary.text import dumps
from driftscope.inspect.files import IN_TORCH

MEMORY_BYTES = 16 << 30
"""Memory that this process may have beyond what the engine's import took: a config may ask for
any."""
MOST_FAULTS = 8
"""Tensors at which loading stops that are named; after each one the rest is loaded without it."""
_SHORT, _FEW = 400, 3
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
    """Why the engine stopped."""

    reason: str
    place: str
    """File, line and function of the engine."""
    tensor: str | None = None
    """Tensor at which it stopped; None if it was not at one."""
    certain: bool = True
    """Whether it is the checkpoint that it refuses, and not this machine that lacks something."""


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


class EngineModels(ABC):
    """An installed engine, prepared to build drafters without weights."""

    package: str
    """Name of the engine's package."""
    judges: tuple[str, ...]
    """Folders of the engine whose errors are of a config or of weights; those of kernels, attention
    and platforms are of this machine."""
    absent: tuple[str, ...]
    """Modules that some models import and that building them does not need."""

    @abstractmethod
    def prepare(self) -> None:
        """Change what keeps the engine from building a model on a platform that does not serve
        it."""

    @abstractmethod
    def config(self, question: Mapping[str, Any]) -> Any:
        """Return the engine's config of the drafter that a question is about."""

    @abstractmethod
    def architecture(self, config: Any) -> str:
        """Return the architecture that the engine looks up."""

    @abstractmethod
    def model(self, config: Any) -> nn.Module:
        """Return the drafter without weights."""

    def own_types(self) -> Container[str]:
        """Return model types of which the engine, and not transformers, has a config class."""
        return ()

    @abstractmethod
    def refuse_untracked(self, config: Any, model: nn.Module, loaded: Any) -> None:
        """Raise ValueError if the engine refuses a model of which it loaded these parameters."""

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the engine says of a drafter: `config`, `model` or `weights`, where it
        stopped, or `loaded`; why; and which parameters no tensor fills."""
        try:
            for folder in question["folders"]:
                self._know(Path(folder))
            config = self.config(question)
        except Exception as error:  # engines, transformers and pydantic raise anything
            return _stopped("config", [self.refusal(error, {})])
        known: dict[str, Any] = {"architecture": self.architecture(config)}
        tensors = {
            name: torch.empty(
                shape, dtype=getattr(torch, IN_TORCH.get(dtype, "uint8")), device="meta"
            )
            for name, (shape, dtype) in question["tensors"].items()
        }
        faults = list[Refusal]()
        while True:
            try:
                model = self.model(config)
            except Exception as error:  # each class is built by code of its own
                return known | _stopped("model", [*faults, self.refusal(error, {})])
            known["class"] = type(model).__name__
            known["parameters"] = {name: list(one.shape) for name, one in model.named_parameters()}
            fault, lacking = self._loaded(model, config, tensors, strict=not faults)
            if fault is not None:
                faults.append(fault)
                if fault.tensor is not None and len(faults) < MOST_FAULTS:
                    del tensors[fault.tensor]
                    continue
            if faults:
                return known | _stopped("weights", faults)
            return known | {"stage": "loaded", "refusals": [], **lacking}

    def _loaded(
        self, model: nn.Module, config: Any, tensors: Mapping[str, Tensor], *, strict: bool
    ) -> tuple[Refusal | None, dict[str, dict[str, tuple[int, int]]]]:
        """Return why the engine's loader stops, if it does, which parameters it does not fill, and
        of which tensors it takes a part only: elements that it does, and all."""
        names = {_storage(tensor): name for name, tensor in tensors.items()}
        before = {name: _storage(parameter) for name, parameter in model.named_parameters()}
        fills = _Fills()
        try:
            with fills, torch.device("meta"):
                loaded = model.load_weights(iter(tensors.items()))  # type: ignore[operator]
        except Exception as error:  # each model has a loader of its own
            return self.refusal(error, names), _NOTHING
        cut = {
            name: (filled, tensor.numel())
            for name, tensor in tensors.items()
            if 0 < (filled := fills.read[_storage(tensor)]) < tensor.numel()
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
        if strict and loaded is not None:
            try:
                self.refuse_untracked(config, model, loaded)
            except ValueError as error:
                if unfilled:  # else it takes what it lacks from the target
                    return self.refusal(error, names), _NOTHING
        return None, {"unfilled": unfilled, "cut": cut}

    def refusal(self, error: Exception, names: Mapping[int, str]) -> Refusal:
        """Return an error in words, with its place in the engine and the tensor at which it was
        raised."""
        cause, inside = _cause(error), f"/{self.package}/"
        frames = list(_frames(cause.__traceback__))
        tensor = _tensor_of(cause, frames, names)
        words = " ".join(str(cause).split())
        words = words.partition(" Supported architectures:")[0].partition(" You can update ")[0]
        own = [(file, line, name) for file, line, name, _ in frames if inside in file]
        at = own or [(file, line, name) for file, line, name, _ in frames] or [("unknown", 0, "")]
        file, line, name = at[-1]
        words = words or _assertion(file, line)
        return Refusal(
            reason=f"{type(cause).__name__}: {words[:_SHORT]}",
            place=f"{file.rpartition(inside)[2] or file}:{line} {name}",
            tensor=tensor,
            certain=_of_checkpoint(cause, words, tensor)
            and (tensor is not None or at[-1][0].rpartition(inside)[2].startswith(self.judges)),
        )

    def _know(self, folder: Path) -> None:
        """Have a config be read as it is written, if its class is in the checkpoint's own code,
        which is not run. Fields that this class would add are then missing."""
        from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

        kind = json.loads((folder / "config.json").read_text()).get("model_type")
        if not isinstance(kind, str) or kind in CONFIG_MAPPING or kind in self.own_types():
            return

        def read(config: Any, text_config: Any = None, **others: Any) -> None:
            PretrainedConfig.__init__(config, **others)
            if isinstance(text_config, dict):
                config.text_config = PretrainedConfig(**text_config)

        names = {"model_type": kind, "__init__": read}
        AutoConfig.register(kind, type(_AS_WRITTEN, (PretrainedConfig,), names))


def _stopped(stage: str, refusals: Iterable[Refusal]) -> dict[str, Any]:
    return {"stage": stage, "refusals": [asdict(found) for found in refusals], **_NOTHING}


def _assertion(file: str, line: int) -> str:
    """Return the source of an assertion without words, of which `line` is one line."""
    source = linecache.getlines(file)
    begin = max((n for n in range(line) if "assert " in source[n]), default=line - 1)
    return " ".join(part.strip() for part in source[begin : max(line, begin + _FEW)])


def _tensor_of(
    cause: Exception, frames: Sequence[tuple[str, int, str, list[Any]]], names: Mapping[int, str]
) -> str | None:
    """Return the tensor that the engine was loading when it stopped.

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
    """Whether the engine refuses the checkpoint, and does not lack something of this machine or a
    field that another version of transformers has a default for."""
    if _HERE.search(words) or _AS_WRITTEN in words:
        return False
    of_files = tensor is not None or "checkpoint" in words
    return of_files or isinstance(cause, ValueError | AssertionError)


_AS_WRITTEN = "WrittenConfig"


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


class _AnyName(type):
    """Class of stand-ins, which have every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {"__init__": lambda *_, **__: None})


class Absent(ModuleType):
    """Stands for a module that is not installed here; any name in it is a class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {"__init__": lambda *_, **__: None})


class _AbsentModules(MetaPathFinder, Loader):
    """Finds `Absent` for each module of a list, and for those inside it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> Any:
        """Return that this object loads the module, if it is in the list."""
        if any(name == absent or name.startswith(f"{absent}.") for absent in self._names):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


_VISION = "torchvision"
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _is_broken(name: str) -> bool:
    """Whether a module is not installed, or was built for another platform."""
    try:
        importlib.import_module(name)
    except Exception:  # an extension module may raise anything
        for module in [other for other in sys.modules if f"{other}.".startswith(f"{name}.")]:
            del sys.modules[module]
        return True
    return False


def run(models: EngineModels) -> None:
    """Answer each line of stdin on stdout; a first line says that the engine is there."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the engine prints
    if _is_broken(_VISION) and find_spec(_VISION) is not None:  # built for another torch
        for operator in ("nms", "qnms"):
            torch.library.define(f"{_VISION}::{operator}", _SIGNATURE)
    importlib.import_module("transformers")  # before it takes a stand-in for an installed module
    absent = tuple(filter(_is_broken, models.absent))
    sys.modules.update({name: Absent(name) for name in absent})
    sys.meta_path.append(_AbsentModules(absent))
    if not torch.cuda.is_available():
        for place, name in ((torch.cuda, "Stream"), (torch.cuda, "Event"), (torch, "Event")):
            setattr(place, name, Absent("torch.cuda").Stream)
    models.prepare()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, hard))
    print(dumps({"version": importlib.import_module(models.package).__version__}), file=out)
    for line in sys.stdin:
        try:
            answer = models.answer(json.loads(line))
        except Exception as error:  # the process goes on with the next question
            answer = _stopped("config", [replace(models.refusal(error, {}), certain=False)])
        print(dumps(answer), file=out)
